/* A driver library that is only there to be found. */
extern int fakegpu_empty;
