#include "launch.h"

#include <stdlib.h>
#include <string.h>

#include "pool.h"
#include "real.h"

/* Two threads that come together: one gate stays. */
static struct gate *gate_of(struct card *c)
{
    struct gate *g = __atomic_load_n(&c->gate, __ATOMIC_ACQUIRE), *none = 0;
    if (g || !(g = calloc(1, sizeof *g)))
        return g;
    for (unsigned i = 0; i < c->shares; i++) {
        struct share *s = &process->share[c->share[i]];
        g->share[i] = (struct gate_share){.account = s->ledger.account, .slot = s->ledger.slot, .grant = s->grant};
    }
    g->shares = c->shares;
    /* Programs that use several cards wait on one for the others. Held at the
     * same instants, they wait less. What counts is what the container was
     * given, for each process may see but one of its cards. */
    for (uint32_t i = 0; i < process->shares; i++)
        g->windows |= memcmp(process->share[i].card, c->uuid, sizeof c->uuid) != 0;
    gate_begin(g);
    if (__atomic_compare_exchange_n(&c->gate, &none, g, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return g;
    free(g);
    return none;
}

static bool is_gated(const struct card *c)
{
    for (unsigned i = 0; i < c->shares; i++)
        if (!__atomic_load_n(&process->share[c->share[i]].grant->core_gated, __ATOMIC_RELAXED))
            return false;
    return c->shares > 0;
}

CUresult launch_begin_on(struct launch *l, struct card *c, const void *what, unsigned x, unsigned y, unsigned z,
                         CUstream named)
{
    struct gate *g;
    l->gate = 0;
    if (!c || c->whole || !is_gated(c) || !(g = gate_of(c)))
        return CUDA_SUCCESS;
    uint64_t key = gate_key(g, what, x, y, z);
    if (gate_pass(g, key, named) || stream_capturing(named))
        return CUDA_SUCCESS;
    gate_enter(g, &l->passage, key, named);
    l->gate = g;
    return CUDA_SUCCESS;
}

CUresult launch_begin(struct launch *l, const void *what, unsigned x, unsigned y, unsigned z, CUstream named)
{
    CUdevice device = 0;
    CUresult r = process_enter();
    l->gate = 0;
    if (r)
        return r == CUDA_ERROR_NOT_INITIALIZED ? CUDA_SUCCESS : r;
    struct card *c = &process->card[0];
    if (process->cards != 1)
        c = REAL(cuCtxGetDevice)(&device) ? 0 : process_card(device);
    return launch_begin_on(l, c, what, x, y, z, named);
}
