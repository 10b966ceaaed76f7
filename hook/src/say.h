/* One line on stderr, once for a process: why CUDA is refused here. */
#ifndef SLUICE_SAY_H
#define SLUICE_SAY_H

__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

#endif
