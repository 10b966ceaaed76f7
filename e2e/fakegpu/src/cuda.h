/* Inside the simulated libcuda: objects, and what its files ask of each other.
 *
 * All process-wide state hangs on one page that the kernel wipes in a forked
 * child (MADV_WIPEONFORK). A child therefore begins uninitialised and may call
 * cuInit to attach on its own; a zeroed mutex is an unlocked one.
 *
 * Lock order: the process mutex may be held while taking a card's lock, never
 * the reverse; neither is held while waiting for work.
 */
#ifndef FAKEGPU_CUDA_H
#define FAKEGPU_CUDA_H

#include <pthread.h>

#include "../abi/cuda_abi.h"
#include "faults.h"
#include "mig.h"
#include "sim.h"

#define CU_API __attribute__((visibility("default")))
#define FG_CUDA_VERSION 13000

enum magic { M_CTX = 0x43545831, M_STREAM, M_EVENT, M_MODULE, M_FUNC, M_ARRAY, M_MIPMAP, M_POOL, M_GRAPH, M_NODE, M_EXEC, M_EXTERNAL, M_DEAD };

enum alloc_kind { A_NONE, A_LINEAR, A_MANAGED, A_POOL, A_GRAPH, A_IPC };

struct alloc {
	enum alloc_kind kind;
	int card;
	CUdeviceptr ptr;
	uint64_t size;          /* bytes asked for */
	uint64_t taken;         /* bytes taken from the card (0 where a pool has them) */
	void *host;             /* contents, where anything was ever copied */
	CUcontext ctx;          /* whose end frees it; NULL: no context's */
	CUmemoryPool pool;
	CUgraphExec exec;
	struct alloc *prev, *next; /* in ctx's list; next also in the free list */
};

struct CUctx_st {
	uint32_t magic;
	bool primary, alive;
	int device, card;
	int refs;
	unsigned flags;
	unsigned long long id;
	uint64_t overhead;      /* bytes the context itself and its modules cost */
	struct alloc *allocs;
	struct CUarray_st *arrays;
	struct CUmod_st *modules;
	uint64_t mark;          /* last work submitted through it */
	struct CUctx_st *next;
};

struct CUstream_st {
	uint32_t magic;
	CUcontext ctx;
	unsigned flags;
	int priority;
	uint64_t mark;
	CUgraph capture;        /* being captured into; NULL: not */
	bool capture_origin;    /* it was begun here, not forked into */
	struct CUstream_st *next;
};

struct CUevent_st {
	uint32_t magic;
	CUcontext ctx;
	unsigned flags;
	int cell;               /* in the shared event cells; -1 when timing is off */
	uint64_t mark;          /* 0: never recorded */
	CUgraph captured;
};

struct process {
	pthread_mutex_t mu;
	bool up;
	struct fg fg;
	int devices;
	int card_of[FG_MAX_CARDS];
	uint64_t health_looked;             /* when the faults were read last */
	CUresult health[FG_MAX_CARDS];
	uint64_t ecc_before[FG_MAX_CARDS];  /* uncorrected errors when we began */
	struct CUctx_st *ctxs;
	struct CUctx_st *primary[FG_MAX_CARDS];
	unsigned long long next_id;
	struct CUstream_st *streams;
	int captures;           /* under way */
	uint64_t event_cells[FG_MAX_CARDS][FG_EVENTS / 64];
	struct CUmemPoolHandle_st *default_pool[FG_MAX_CARDS], *current_pool[FG_MAX_CARDS];
	struct CUmemPoolHandle_st *pools;
	struct map *map;        /* address -> allocation */
	struct vmm *vmm;
	uint64_t graph_used[FG_MAX_CARDS], graph_used_high[FG_MAX_CARDS];
	uint64_t graph_reserved[FG_MAX_CARDS], graph_reserved_high[FG_MAX_CARDS];
};

extern struct process *fg_p;

/* --- cuda_init.c, cuda_device.c, cuda_context.c --- */

/* CUDA_SUCCESS, or why no call can work now. */
CUresult cu_ready(void);
CUresult cu_driver_version(int *version);
/* What a call on a card that broke under the program says. Looks at most every
 * 10 ms. */
CUresult cu_health(int card);
/* The calling thread's context. */
CUresult cu_current(CUcontext *ctx);
CUresult cu_device_card(CUdevice dev, int *card);
/* Multiprocessors of the card, or of our instance of it. */
int cu_sms(int card);
bool cu_ctx_valid(CUcontext ctx);
/* A context that is not alive yet. Under the process lock, as the next two. */
struct CUctx_st *cu_ctx_new(CUdevice dev, int card, unsigned flags);
/* Gives life to it: the card pays. */
CUresult cu_ctx_up(struct CUctx_st *c);
/* Makes the process a client of MPS, where it has to be one to use the card. */
CUresult cu_mps(int card);
/* Ends it and all that is its own. */
void cu_ctx_down(struct CUctx_st *c);
/* Returns when all work of the process on the card is done. */
void cu_drain(int card);

void cu_lock(void);
void cu_unlock(void);

/* --- cuda_map.c, cuda_mem.c --- */

uint64_t cu_round(uint64_t bytes);
/* Enters an allocation into the address map; the bytes have been taken. */
struct alloc *cu_map_add(enum alloc_kind kind, int card, CUcontext ctx, uint64_t size, uint64_t taken);
/* The same for an address below 4 GiB. */
struct alloc *cu_map_add_low(int card, CUcontext ctx, uint64_t size, uint64_t taken);
/* The allocation that holds the address. Under the process lock. */
struct alloc *cu_map_find(CUdeviceptr ptr);
/* Removes it and gives its bytes back. Under the process lock. */
void cu_map_drop(struct alloc *a);
void cu_allocs_end(CUcontext ctx);
CUresult cu_free(CUdeviceptr ptr);

/* --- cuda_vmm.c, under the process lock --- */

/* The mapping that holds the address; false when none does. */
bool cu_vmm_range(CUdeviceptr ptr, CUdeviceptr *base, size_t *size);
/* The card behind it; -1 when it is none's. */
int cu_vmm_card(CUdeviceptr ptr);

/* --- others, at a context's or process's end --- */

void cu_arrays_end(CUcontext ctx);
void cu_modules_end(CUcontext ctx);
void cu_streams_end(CUcontext ctx);

/* --- cuda_pool.c --- */

struct CUmemPoolHandle_st {
	uint32_t magic;
	int card;
	bool is_default, imported;
	bool gone;                        /* destroyed and empty: the handle is given out again */
	uint64_t used, used_high;
	uint64_t reserved, reserved_high; /* what the pool has taken from the card */
	uint64_t threshold;               /* may be kept beyond what is used */
	uint64_t max;                     /* 0: no bound of its own */
	struct CUmemPoolHandle_st *next;
};

/* Work on the card was waited for: pools give back what they may not keep. */
void cu_pools_synced(int card);
CUresult cu_pool_free(struct alloc *a);
/* A pool that another process owns: nothing can be allocated from it here. */
struct CUmemPoolHandle_st *cu_pool_imported(int card);

/* --- cuda_graph.c, cuda_capture.c --- */

void cu_graph_freed(struct alloc *a);
/* Before a call that may wait or allocate; see cuda_capture.c. */
CUresult cu_unsafe(void);
/* For such a call on a stream that is being captured. */
CUresult cu_capture_spoil(CUstream s);
CUresult cu_capture_kernel(CUstream s, uint64_t ns);
CUresult cu_capture_alloc(CUstream s, CUdeviceptr *ptr, size_t bytes);
CUresult cu_capture_free(CUstream s, CUdeviceptr ptr);

/* --- cuda_stream.c --- */

/* Resolves a stream argument: its context, and the stream itself (NULL for a
 * default stream). */
CUresult cu_stream(CUstream s, CUcontext *ctx, CUstream *real);
void cu_stream_submitted(CUcontext ctx, CUstream real, uint64_t mark);

/* --- cuda_launch.c --- */

/* How long the kernel occupies the card with these arguments. */
CUresult cu_kernel_ns(CUfunction f, unsigned gx, unsigned gy, unsigned gz, void **params, void **extra, uint64_t *ns);

/* --- calls of the API that its own files make --- */

CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *, CUmemGenericAllocationHandle);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxPopCurrent_v2(CUcontext *);

#endif
