#define _GNU_SOURCE
#include <errno.h>
#include <time.h>

#include "gate.h"

uint64_t gate_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void gate_sleep(uint64_t ns)
{
    int saved = errno;
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, 0); /* a signal ends it early, and the caller looks again */
    errno = saved;
}
