/* cudaprobe: a CUDA program for tests; see probe.c. */
#ifndef FAKEGPU_PROBE_H
#define FAKEGPU_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* Pointers to the driver's functions; NULL where the driver has none. */
struct calls {
#define CALL(name, base, params) CUresult(*name) params;
#include "calls.h"
#undef CALL
};

extern struct calls cu;

/* The device that the program uses. */
extern CUdevice probe_device;


/* Fills cu by the way named. On failure returns false with a message on
 * stderr. lib: which file to open, NULL: the usual name. version is for
 * the way "procaddress"; per_thread asks for the forms of per-thread default
 * streams. */
bool probe_resolve(const char *via, const char *lib, int version, bool per_thread);

/* Becomes the program that is linked with libcuda, unless it is that already. */
void probe_relink(char **argv);

/* A function the driver lacks is a result of its own. */
#define TRY(name, ...) (cu.name ? cu.name(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND)

/* --- probe.c --- */

uint64_t probe_size(const char *text);  /* "20Gi" in bytes */
uint64_t probe_time(const char *text);  /* "1ms" in nanoseconds */
uint64_t probe_now(void);
const char *probe_name(CUresult r);

/* --- memory.c: steps that take memory; what they took is remembered --- */

CUresult probe_take(const char *family, uint64_t size);
CUresult probe_give_last(void);
CUresult probe_until_oom(uint64_t piece);
size_t probe_held(void);
/* The context is gone, and with it all that was taken. */
void probe_forget(void);

/* --- kernels.c: steps that use the card's time --- */

CUresult probe_launches(const char *how, uint64_t ns, unsigned long count);
CUresult probe_busy(uint64_t ns, uint64_t duration);
CUresult probe_timed(uint64_t ns);
CUresult probe_churn(uint64_t duration);
CUresult probe_capture(const char *mode);
/* One launch of ns, by launch, launchex, coop or, with its graph, graph; after
 * probe_load_spin. */
CUresult probe_load_spin(void);
CUresult probe_launch_one(const char *how, uint64_t ns, CUgraphExec graph, CUstream stream);
CUresult probe_graph_of(uint64_t ns, CUgraphExec *e);
/* The context is gone, and with it the modules. */
void probe_unload(void);

/* --- work.c: longer stories of kernels --- */

CUresult probe_work(const char *arg);
CUresult probe_capturing(const char *mode, unsigned long count);

#endif
