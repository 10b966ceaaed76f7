/*
 * Stream-ordered memory. A pool takes memory of the card in large steps and
 * keeps what is freed, so the pool is charged with what it has reserved, not
 * the pointers with their sizes.
 *
 * Before an allocation that the pool cannot serve from what it has, the least
 * that it must grow by is charged. Afterwards the pool says what it really
 * took. If that is more than the cap allows, the allocation is undone and
 * refused: for that moment, and no longer than the work on the stream needs to
 * let go of it, the pool may be above the cap by one of the driver's growth
 * steps, and is charged so.
 */
#include "pool.h"

#include "claim.h"
#include "real.h"

enum { MIN_STEP = 2 << 20, MANY = 64 };

/* entry.tag of process->pools: on a card that is limited, or elsewhere (on a
 * whole card, in host memory) */
enum { LIMITED, NOT_LIMITED };

static bool attribute(CUmemoryPool pool, int which, uint64_t *value)
{
    *value = 0;
    return REAL(cuMemPoolGetAttribute)(pool, which, value) == CUDA_SUCCESS;
}

/* Under the card's pool lock: the pool's charge becomes what it has reserved. */
static bool settle(struct card *c, CUmemoryPool pool, uint64_t *reserved)
{
    struct entry e = {.key = (uintptr_t)pool, .card = (uint32_t)(c - process->card)};
    struct entry had;
    if (!attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved))
        return false;
    bool known = map_get(&process->pools, e.key, &had);
    if (known)
        e = had;
    uint64_t now = to_units(*reserved), before = e.units;
    if (known && now == before)
        return true;
    e.units = now;
    if (!map_put(&process->pools, &e))
        return false;
    if (now > before)
        card_force(c, now - before);
    else
        card_return(c, before - now);
    return true;
}

struct list {
    uint32_t card;
    unsigned n;
    CUmemoryPool pool[MANY];
};

static bool list_pool(struct entry *e, void *arg)
{
    struct list *l = arg;
    if (e->card == l->card && e->tag == LIMITED && l->n < MANY)
        l->pool[l->n++] = (CUmemoryPool)(uintptr_t)e->key;
    return false;
}

static void settle_all(struct card *c, bool trim)
{
    struct list l = {.card = (uint32_t)(c - process->card)};
    uint64_t reserved;
    if (c->has_graphs)
        graphs_settle(c, trim);
    if (!c->has_pools)
        return;
    map_sweep(&process->pools, list_pool, &l);
    for (unsigned i = 0; i < l.n; i++) {
        if (trim)
            REAL(cuMemPoolTrimTo)(l.pool[i], 0);
        settle(c, l.pool[i], &reserved);
    }
}

static bool has_any(const struct card *c)
{
    return __atomic_load_n(&c->has_pools, __ATOMIC_RELAXED) || __atomic_load_n(&c->has_graphs, __ATOMIC_RELAXED);
}

void pools_settle(struct card *c)
{
    if (!has_any(c))
        return;
    lock_take(&c->pools);
    settle_all(c, false);
    lock_drop(&c->pools);
}

bool pools_trim(struct card *c)
{
    if (!has_any(c))
        return false;
    lock_take(&c->pools);
    settle_all(c, true);
    lock_drop(&c->pools);
    return true;
}

void pool_settle(CUmemoryPool pool)
{
    struct entry e;
    uint64_t reserved;
    if (!map_get(&process->pools, (uintptr_t)pool, &e) || e.tag != LIMITED)
        return;
    struct card *c = &process->card[e.card];
    lock_take(&c->pools);
    settle(c, pool, &reserved);
    lock_drop(&c->pools);
}

/* What one allocation is about. */
struct order {
    CUdeviceptr *ptr;
    size_t bytes;
    CUmemoryPool pool; /* 0: the current one of the stream's device */
    CUstream stream;   /* as the program names it */
    CUstream named;    /* what that means in the legacy functions */
};

typedef CUresult (*take_fn)(const struct order *);

/* The driver names no default stream by 0 in the per-thread variants. */
CUstream stream_named(CUstream stream, bool per_thread)
{
    return stream ? stream : per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

bool stream_capturing(CUstream stream)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (stream == CU_STREAM_LEGACY) /* cannot be captured, and dislikes the question */
        return false;
    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static struct card *stream_card(CUstream stream)
{
    CUcontext ctx = 0;
    CUdevice device;
    if (process->cards == 1)
        return &process->card[0];
    if (stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD && !REAL(cuStreamGetCtx)(stream, &ctx)) {
        struct card *c = context_card(ctx);
        if (c)
            return c;
    }
    return REAL(cuCtxGetDevice)(&device) ? 0 : process_card(device);
}

/* The card of a pool that the program did not make: a card's own one, or else
 * whatever the stream is on. */
static struct card *pool_card(CUmemoryPool pool, CUstream stream)
{
    for (uint32_t i = 0; process->cards > 1 && i < process->cards; i++) {
        CUmemoryPool own;
        if (!REAL(cuDeviceGetDefaultMemPool)(&own, process->card[i].device) && own == pool)
            return &process->card[i];
    }
    return stream_card(stream);
}

/* The least by which the pool must grow for bytes more. */
static uint64_t growth(CUmemoryPool pool, uint64_t reserved, uint64_t bytes)
{
    uint64_t used = 0, need;
    attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    if (__builtin_add_overflow(used, bytes, &need) || need > SLUICE_MAX_BYTES)
        return SLUICE_MAX_BYTES;
    need = (need + MIN_STEP - 1) / MIN_STEP * MIN_STEP;
    return need > reserved ? need - reserved : 0;
}

static CUresult undo(struct card *c, const struct order *o)
{
    struct entry e;
    map_take(&process->pointers, *o->ptr, &e);
    REAL(cuMemFreeAsync)(*o->ptr, o->named);
    settle_all(c, true);
    return card_refuse(c);
}

/* Under the card's pool lock. */
static CUresult take_charged(struct card *c, const struct order *o, take_fn take)
{
    uint64_t reserved, now, grows;
    __atomic_store_n(&c->has_pools, 1, __ATOMIC_RELAXED);
    if (!settle(c, o->pool, &reserved))
        return CUDA_ERROR_NOT_SUPPORTED; /* a pool that cannot be accounted for */
    grows = to_units(growth(o->pool, reserved, o->bytes));
    if (grows && !card_charge(c, grows)) {
        settle_all(c, true);
        if (!settle(c, o->pool, &reserved))
            return CUDA_ERROR_NOT_SUPPORTED;
        grows = to_units(growth(o->pool, reserved, o->bytes));
        if (grows && !card_charge(c, grows))
            return card_refuse(c);
    }
    CUresult r = take(o);
    if (!attribute(o->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &now))
        now = reserved + (grows << SLUICE_UNIT_SHIFT);
    uint64_t charged = to_units(reserved) + grows, holds = to_units(now);
    bool fits = holds <= charged || card_charge(c, holds - charged);
    if (!fits)
        card_force(c, holds - charged);
    else if (holds < charged)
        card_return(c, charged - holds);
    struct entry pool = {.key = (uintptr_t)o->pool, .units = holds, .card = (uint32_t)(c - process->card)};
    struct entry pointer = {
        .key = r ? 0 : *o->ptr,
        .units = to_units(o->bytes),
        .tag = (uintptr_t)o->pool,
        .card = pool.card,
        .kind = KIND_POOLED,
    };
    if (!map_put(&process->pools, &pool) || (!r && (!fits || !map_put(&process->pointers, &pointer))))
        return r ? r : undo(c, o);
    return r;
}

static CUresult allocate(struct order *o, bool per_thread, take_fn take)
{
    struct entry e = {.tag = LIMITED};
    struct card *c;
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    o->named = stream_named(o->stream, per_thread);
    if (r || !o->ptr || !o->bytes || stream_capturing(o->named))
        return take(o);
    if (o->pool && map_get(&process->pools, (uintptr_t)o->pool, &e))
        c = &process->card[e.card];
    else
        c = o->pool ? pool_card(o->pool, o->named) : stream_card(o->named);
    if (!c || c->whole || e.tag == NOT_LIMITED)
        return take(o);
    if (!o->pool && REAL(cuDeviceGetMemPool)(&o->pool, c->device))
        return take(o); /* no context or no pools: the driver will say so */
    lock_take(&c->pools);
    r = take_charged(c, o, take);
    lock_drop(&c->pools);
    return r;
}

static CUresult from_current(const struct order *o)
{
    return REAL(cuMemAllocAsync)(o->ptr, o->bytes, o->stream);
}

static CUresult from_current_ptsz(const struct order *o)
{
    return REAL(cuMemAllocAsync_ptsz)(o->ptr, o->bytes, o->stream);
}

static CUresult from_pool(const struct order *o)
{
    return REAL(cuMemAllocFromPoolAsync)(o->ptr, o->bytes, o->pool, o->stream);
}

static CUresult from_pool_ptsz(const struct order *o)
{
    return REAL(cuMemAllocFromPoolAsync_ptsz)(o->ptr, o->bytes, o->pool, o->stream);
}

CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
    struct order o = {.ptr = ptr, .bytes = bytes, .stream = stream};
    return allocate(&o, false, from_current);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
    struct order o = {.ptr = ptr, .bytes = bytes, .stream = stream};
    return allocate(&o, true, from_current_ptsz);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    struct order o = {.ptr = ptr, .bytes = bytes, .pool = pool, .stream = stream};
    return pool ? allocate(&o, false, from_pool) : from_pool(&o);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    struct order o = {.ptr = ptr, .bytes = bytes, .pool = pool, .stream = stream};
    return pool ? allocate(&o, true, from_pool_ptsz) : from_pool_ptsz(&o);
}

/* The pool keeps what is freed until work is waited for; its charge follows at
 * the next allocation, report or refusal. In a capture the free is only noted. */
static CUresult release(CUdeviceptr ptr, CUstream stream, bool per_thread, CUresult (*free_it)(CUdeviceptr, CUstream))
{
    struct entry e;
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    if (r || stream_capturing(stream_named(stream, per_thread)) || !map_take(&process->pointers, ptr, &e))
        return free_it(ptr, stream);
    if ((r = free_it(ptr, stream)))
        map_put(&process->pointers, &e);
    else if (e.kind != KIND_POOLED)
        card_return(&process->card[e.card], e.units);
    return r;
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
    return release(ptr, stream, false, REAL(cuMemFreeAsync));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
    return release(ptr, stream, true, REAL(cuMemFreeAsync_ptsz));
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    bool attached = !r;
    r = REAL(cuMemPoolCreate)(pool, props);
    if (r || !attached)
        return r;
    struct card *c;
    if ((r = claim_location(props->allocType, &props->location, &c))) {
        REAL(cuMemPoolDestroy)(*pool);
        return r;
    }
    struct entry e = {
        .key = (uintptr_t)*pool,
        .tag = c && !c->whole ? LIMITED : NOT_LIMITED,
        .card = c ? (uint32_t)(c - process->card) : 0,
    };
    if (map_put(&process->pools, &e))
        return CUDA_SUCCESS;
    REAL(cuMemPoolDestroy)(*pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* What is still allocated from a destroyed pool lives until it is freed. */
static bool orphan(struct entry *e, void *arg)
{
    uint64_t *pool_and_sum = arg;
    if (e->kind == KIND_POOLED && e->tag == pool_and_sum[0]) {
        e->kind = KIND_ORPHAN;
        e->tag = 0;
        pool_and_sum[1] += e->units;
    }
    return false;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct entry e;
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    if (r || !map_get(&process->pools, (uintptr_t)pool, &e))
        return REAL(cuMemPoolDestroy)(pool);
    struct card *c = &process->card[e.card];
    lock_take(&c->pools);
    /* Out of the map before the driver can give the handle out again. */
    bool known = map_take(&process->pools, (uintptr_t)pool, &e);
    r = REAL(cuMemPoolDestroy)(pool);
    if (known && r) {
        map_put(&process->pools, &e);
    } else if (known && e.tag == LIMITED) {
        uint64_t pool_and_sum[2] = {(uintptr_t)pool, 0};
        map_sweep(&process->pointers, orphan, pool_and_sum);
        if (pool_and_sum[1] > e.units)
            card_force(c, pool_and_sum[1] - e.units);
        else
            card_return(c, e.units - pool_and_sum[1]);
    }
    lock_drop(&c->pools);
    return r;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    CUresult answer = REAL(cuMemPoolTrimTo)(pool, keep);
    if (!r)
        pool_settle(pool);
    return answer;
}
