/*
 * Around every launch:
 *
 *     if (launch_free())
 *         return REAL(cuLaunchKernel)(...);
 *     struct launch l;
 *     CUresult r = launch_begin(&l, f, gx, gy, gz, stream);
 *     return r ? r : launch_end(&l, REAL(cuLaunchKernel)(...));
 */
#ifndef SLUICE_LAUNCH_H
#define SLUICE_LAUNCH_H

#include "process.h"

struct launch {
    struct gate *gate; /* 0: nothing to do after it */
    struct gate_launch passage;
};

/* No card of this process is held to a rate now. */
static inline bool launch_free(void)
{
    const uint32_t *first = __atomic_load_n(&process->gated[0], __ATOMIC_ACQUIRE);
    if (__builtin_expect(!first || __atomic_load_n(first, __ATOMIC_RELAXED), 0))
        return false;
    for (uint32_t i = 1; i < process->gates; i++)
        if (__atomic_load_n(process->gated[i], __ATOMIC_RELAXED))
            return false;
    return true;
}

/* Not SUCCESS: refused, return it. */
CUresult launch_begin_slowly(struct launch *l, const void *what, unsigned x, unsigned y, unsigned z, CUstream named);

static inline CUresult launch_begin(struct launch *l, const void *what, unsigned x, unsigned y, unsigned z, CUstream named)
{
    struct gate *g = __atomic_load_n(&process->card[0].gate, __ATOMIC_ACQUIRE);
    l->gate = 0;
    if (__builtin_expect(g && process->cards == 1 && gate_pass(g, gate_key(g, what, x, y, z), named), 1))
        return CUDA_SUCCESS;
    return launch_begin_slowly(l, what, x, y, z, named);
}

/* The same for a launch on a card that is not the current context's. */
CUresult launch_begin_on(struct launch *l, struct card *c, const void *what, unsigned x, unsigned y, unsigned z,
                         CUstream named);

/* r is the driver's answer, and the result. */
static inline CUresult launch_end(struct launch *l, CUresult r)
{
    if (__builtin_expect(l->gate != 0, 0))
        gate_leave(l->gate, &l->passage, r);
    return r;
}

#endif
