/* cudaprobe: a CUDA program for tests; see probe.c. */
#ifndef FAKEGPU_PROBE_H
#define FAKEGPU_PROBE_H

#include <stdbool.h>

#include "cuda_abi.h"

/* Pointers to the driver's functions; NULL where the driver has none. */
struct calls {
#define CALL(name, base, params) CUresult(*name) params;
#include "calls.h"
#undef CALL
};

extern struct calls cu;

/* Fills cu by the way named. On failure returns false with a message on
 * stderr. lib: which file to open, NULL: the usual name. version is for
 * the way "procaddress"; per_thread asks for the forms of per-thread default
 * streams. */
bool probe_resolve(const char *via, const char *lib, int version, bool per_thread);

/* Becomes the program that is linked with libcuda, unless it is that already. */
void probe_relink(char **argv);

#endif
