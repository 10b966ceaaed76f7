/*
 * Contexts: what each takes of the card is charged when it is made, and all
 * that lives in it is returned when it ends.
 */
#include "claim.h"
#include "pool.h"
#include "real.h"

static bool of_context(struct entry *e, void *sum)
{
    uint64_t *s = sum;
    if (e->kind != KIND_LINEAR || e->tag != s[0])
        return false;
    s[1] += e->units;
    return true;
}

/* Launches in other contexts look at the events of this one as well, so that they
 * must not know them any more when the driver takes them away. */
static void forget_events(struct card *c, CUcontext ctx)
{
    struct gate *g = __atomic_load_n(&c->gate, __ATOMIC_ACQUIRE);
    if (g)
        gate_forget(g, ctx);
}

/* The driver has freed what was allocated in the context. */
static void context_emptied(struct card *c, CUcontext ctx, uint64_t overhead)
{
    uint64_t sum[2] = {(uintptr_t)ctx, 0};
    forget_events(c, ctx);
    map_sweep(&process->pointers, of_context, sum);
    card_return(c, sum[1] + overhead);
    pools_settle(c);
}

static void context_ended(struct card *c, CUcontext ctx, uint64_t overhead)
{
    context_emptied(c, ctx, overhead);
    card_count_context(c, -1);
}

static bool primary_active(CUdevice dev)
{
    unsigned flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(dev, &flags, &active) == CUDA_SUCCESS && active;
}

struct card *context_card(CUcontext ctx)
{
    struct entry e;
    for (uint32_t i = 0; ctx && i < process->cards; i++)
        if (__atomic_load_n(&process->card[i].primary, __ATOMIC_RELAXED) == ctx)
            return &process->card[i];
    return map_get(&process->contexts, (uintptr_t)ctx, &e) ? &process->card[e.card] : 0;
}

/* The driver tells the primary context only to those who retain it. */
static bool is_primary(struct card *c, CUcontext ctx)
{
    CUcontext primary = 0;
    if (!primary_active(c->device) || REAL(cuDevicePrimaryCtxRetain)(&primary, c->device))
        return false;
    if (HAS(cuDevicePrimaryCtxRelease_v2))
        REAL(cuDevicePrimaryCtxRelease_v2)(c->device);
    else
        REAL(cuDevicePrimaryCtxRelease)(c->device);
    return primary == ctx;
}

static void adopt(struct card *c, CUcontext ctx)
{
    struct entry e;
    lock_take(&c->contexts);
    if (c->primary != ctx && !map_get(&process->contexts, (uintptr_t)ctx, &e)) {
        if (!c->primary && is_primary(c, ctx)) {
            c->primary = ctx;
            c->primary_units = card_context_overhead(c);
            card_force(c, c->primary_units);
            card_count_context(c, 1);
        } else {
            /* A green context, most likely, which takes next to nothing beside
             * the context that it is of. */
            e = (struct entry){
                .key = (uintptr_t)ctx,
                .card = (uint32_t)(c - process->card),
                .kind = CONTEXT_FOUND,
            };
            map_put(&process->contexts, &e);
        }
    }
    lock_drop(&c->contexts);
}

void context_adopt(struct card *c, CUcontext ctx)
{
    struct entry e;
    if (__builtin_expect(__atomic_load_n(&c->primary, __ATOMIC_RELAXED) == ctx, 1) ||
        map_get(&process->contexts, (uintptr_t)ctx, &e))
        return;
    adopt(c, ctx);
}

/* The limited card of a device; 0 with r: refused, 0 without: let it pass. */
static struct card *limited(CUdevice dev, CUresult *r)
{
    *r = process_enter();
    if (*r == CUDA_ERROR_NOT_INITIALIZED)
        *r = CUDA_SUCCESS;
    else if (!*r) {
        struct card *c = process_card(dev);
        return c && !c->whole ? c : 0;
    }
    return 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    CUresult r;
    struct card *c = limited(dev, &r);
    if (!c)
        return r ? r : REAL(cuDevicePrimaryCtxRetain)(ctx, dev);
    lock_take(&c->contexts);
    uint64_t overhead = c->primary ? 0 : card_context_overhead(c);
    if (overhead && !card_charge(c, overhead)) {
        r = card_refuse(c);
    } else if ((r = REAL(cuDevicePrimaryCtxRetain)(ctx, dev))) {
        card_return(c, overhead);
    } else if (!c->primary) {
        c->primary = *ctx;
        c->primary_units = overhead;
        card_count_context(c, 1);
    }
    lock_drop(&c->contexts);
    return r;
}

/* After a release or a reset: the driver says whether it still lives. */
static CUresult primary_left(CUdevice dev, CUresult (*leave)(CUdevice), bool ends)
{
    CUresult r;
    struct card *c = limited(dev, &r);
    if (!c)
        return r ? r : leave(dev);
    lock_take(&c->contexts);
    if (ends && c->primary)
        forget_events(c, c->primary);
    r = leave(dev);
    if (!r && c->primary && !primary_active(dev)) {
        context_ended(c, c->primary, c->primary_units);
        c->primary = 0;
        c->primary_units = 0;
    }
    lock_drop(&c->contexts);
    return r;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return primary_left(dev, REAL(cuDevicePrimaryCtxRelease), false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    return primary_left(dev, REAL(cuDevicePrimaryCtxRelease_v2), false);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return primary_left(dev, REAL(cuDevicePrimaryCtxReset), true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    return primary_left(dev, REAL(cuDevicePrimaryCtxReset_v2), true);
}

/* Before and after the driver makes a context. */
static CUresult creation(struct claim *claim, CUdevice dev)
{
    CUresult r;
    struct card *c = limited(dev, &r);
    claim->card = 0;
    if (r || !c)
        return r;
    claim->units = card_context_overhead(c);
    if (!card_charge(c, claim->units))
        return card_refuse(c);
    claim->card = c;
    return CUDA_SUCCESS;
}

static CUresult created(struct claim *claim, CUresult r, CUcontext ctx)
{
    if (!claim->card)
        return r;
    struct entry e = {
        .key = (uintptr_t)ctx,
        .units = claim->units,
        .card = (uint32_t)(claim->card - process->card),
    };
    if (!r && !map_put(&process->contexts, &e)) {
        REAL(cuCtxDestroy_v2)(ctx);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r)
        claim_abort(claim);
    else
        card_count_context(claim->card, 1);
    return r;
}

CUresult cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice dev)
{
    struct claim c;
    CUresult r = creation(&c, dev);
    if (r)
        return r;
    r = REAL(cuCtxCreate)(ctx, flags, dev);
    return created(&c, r, r ? 0 : *ctx);
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev)
{
    struct claim c;
    CUresult r = creation(&c, dev);
    if (r)
        return r;
    r = REAL(cuCtxCreate_v2)(ctx, flags, dev);
    return created(&c, r, r ? 0 : *ctx);
}

CUresult cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *affinity, int n, unsigned flags, CUdevice dev)
{
    struct claim c;
    CUresult r = creation(&c, dev);
    if (r)
        return r;
    r = REAL(cuCtxCreate_v3)(ctx, affinity, n, flags, dev);
    return created(&c, r, r ? 0 : *ctx);
}

CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned flags, CUdevice dev)
{
    struct claim c;
    CUresult r = creation(&c, dev);
    if (r)
        return r;
    r = REAL(cuCtxCreate_v4)(ctx, params, flags, dev);
    return created(&c, r, r ? 0 : *ctx);
}

/* The device's malloc heap and printf buffer are taken of the card as large as
 * they are set. What the driver has without being told is part of the context's
 * overhead. One of each lives in a context, in the map of pointers under a key
 * that is no pointer's (contexts are aligned), and ends with it. */
CUresult cuCtxSetLimit(int limit, size_t value)
{
    struct claim c;
    CUresult r = claim_begin(&c, 0);
    if (r)
        return r;
    if (!c.card || (limit != CU_LIMIT_MALLOC_HEAP_SIZE && limit != CU_LIMIT_PRINTF_FIFO_SIZE))
        return REAL(cuCtxSetLimit)(limit, value);
    struct entry e = {
        .key = (uintptr_t)c.context + (unsigned)limit,
        .tag = (uintptr_t)c.context,
        .card = (uint32_t)(c.card - process->card),
        .kind = KIND_LINEAR,
    };
    map_take(&process->pointers, e.key, &e);
    uint64_t had = e.units;
    c.units = had;
    /* A larger one is charged before it is taken, a smaller one after. */
    if (to_units(value) > had && !claim_correct(&c, value))
        r = card_refuse(c.card);
    else
        r = REAL(cuCtxSetLimit)(limit, value);
    claim_correct(&c, r ? had << SLUICE_UNIT_SHIFT : value);
    e.units = c.units;
    if (e.units && !map_put(&process->pointers, &e))
        return CUDA_ERROR_OUT_OF_MEMORY; /* it stays charged */
    return r;
}

static CUresult destroy(CUcontext ctx, CUresult (*destroy_it)(CUcontext))
{
    struct entry e;
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    if (r || !map_take(&process->contexts, (uintptr_t)ctx, &e))
        return destroy_it(ctx);
    forget_events(&process->card[e.card], ctx);
    if ((r = destroy_it(ctx)))
        map_put(&process->contexts, &e);
    else if (e.kind == CONTEXT_MADE)
        context_ended(&process->card[e.card], ctx, e.units);
    else
        context_emptied(&process->card[e.card], ctx, 0);
    return r;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    return destroy(ctx, REAL(cuCtxDestroy));
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    return destroy(ctx, REAL(cuCtxDestroy_v2));
}
