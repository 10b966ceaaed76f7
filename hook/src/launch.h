/*
 * Around every launch:
 *
 *     if (launch_quick())
 *         return NOW(cuLaunchKernel)(...);
 *     if (launch_free() || launch_pass(f, gx, gy, gz, stream))
 *         return NOW(cuLaunchKernel)(...);
 *     struct launch l;
 *     CUresult r = launch_begin(&l, f, gx, gy, gz, stream);
 *     return r ? r : launch_end(&l, REAL(cuLaunchKernel)(...));
 *
 * in three functions: each of the first two calls nothing but the driver and
 * the next one, at its end, so that the compiler makes jumps of the calls, and
 * the arguments stay where they are.
 */
#ifndef SLUICE_LAUNCH_H
#define SLUICE_LAUNCH_H

#include "process.h"
#include "real.h"

struct launch {
    struct gate *gate; /* 0: nothing to do after it */
    struct gate_launch passage;
};

/* There is one limited card at most, and it is not held to a rate now. */
static inline bool launch_quick(void)
{
    const uint32_t *first = __atomic_load_n(&process->gated[0], __ATOMIC_ACQUIRE);
    return first && !__atomic_load_n(first, __ATOMIC_RELAXED) && process->gates == 1;
}

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

/* The driver's function, of a process that is attached: it is looked up. */
#define NOW(name) ((type_##name)__atomic_load_n(&real_functions[FN_##name], __ATOMIC_RELAXED))

/* The launch is held to a rate and may go on at once. */
static inline bool launch_pass(const void *what, unsigned x, unsigned y, unsigned z, CUstream named)
{
    struct gate *g = __atomic_load_n(&process->card[0].gate, __ATOMIC_ACQUIRE);
    return g && process->cards == 1 && gate_pass(g, gate_key(g, what, x, y, z), named);
}

/* A stream by the name that the legacy functions know it by. */
static inline CUstream launch_stream(CUstream stream, CUstream unnamed)
{
    return stream ? stream : unnamed;
}

/* Not SUCCESS: refused, return it. */
CUresult launch_begin(struct launch *l, const void *what, unsigned x, unsigned y, unsigned z, CUstream named);

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
