/* libcuda: stream-ordered memory.
 *
 * A pool takes memory from the card in steps of 32 MiB (2 MiB when a step no
 * longer fits) and gives it back only when work is waited for, down to what is
 * used or to its release threshold, whichever is more.
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

#define STEP (32ull << 20)
#define SMALL_STEP (2ull << 20)

static uint64_t up_to(uint64_t n, uint64_t step)
{
	return (n + step - 1) / step * step;
}

static bool pool_valid(CUmemoryPool p)
{
	for (struct CUmemPoolHandle_st *q = fg_p->pools; q; q = q->next)
		if (q == p)
			return !q->gone;
	return false;
}

static struct CUmemPoolHandle_st *new_pool(int card, bool is_default)
{
	struct CUmemPoolHandle_st *p = fg_p->pools;

	while (p && !p->gone)
		p = p->next;
	if (p) {
		struct CUmemPoolHandle_st *next = p->next;
		memset(p, 0, sizeof *p);
		p->next = next;
	} else {
		p = calloc(1, sizeof *p);
		if (!p)
			return NULL;
		p->next = fg_p->pools;
		fg_p->pools = p;
	}
	p->magic = M_POOL;
	p->card = card;
	p->is_default = is_default;
	return p;
}

struct CUmemPoolHandle_st *cu_pool_imported(int card)
{
	cu_lock();
	struct CUmemPoolHandle_st *p = new_pool(card, false);
	if (p)
		p->imported = true;
	cu_unlock();
	return p;
}

/* Under the process lock. */
static struct CUmemPoolHandle_st *default_pool(int card)
{
	if (!fg_p->default_pool[card])
		fg_p->default_pool[card] = new_pool(card, true);
	return fg_p->default_pool[card];
}

static struct CUmemPoolHandle_st *current_pool(int card)
{
	return fg_p->current_pool[card] ? fg_p->current_pool[card] : default_pool(card);
}

static bool grow(struct CUmemPoolHandle_st *p, uint64_t used)
{
	const uint64_t steps[] = { STEP, SMALL_STEP };

	for (int i = 0; i < 2; i++) {
		uint64_t want = up_to(used, steps[i]);
		if (p->max && want > p->max)
			want = p->max;
		if (want < used)
			return false;
		if (p->card < 0 || fg_mem_take(&fg_p->fg, p->card, want - p->reserved)) {
			p->reserved = want;
			if (p->reserved > p->reserved_high)
				p->reserved_high = p->reserved;
			return true;
		}
	}
	return false;
}

static void shrink(struct CUmemPoolHandle_st *p, uint64_t keep)
{
	uint64_t least = up_to(p->used, STEP) < p->reserved ? up_to(p->used, STEP) : p->reserved;
	uint64_t target = keep > least ? keep : least;

	if (target < p->reserved) {
		if (p->card >= 0)
			fg_mem_give(&fg_p->fg, p->card, p->reserved - target);
		p->reserved = target;
	}
}

void cu_pools_synced(int card)
{
	cu_lock();
	for (struct CUmemPoolHandle_st *p = fg_p->pools; p; p = p->next)
		if (p->card == card)
			shrink(p, p->threshold);
	cu_unlock();
}

/* Allocates from p, or from the card's current pool. */
static CUresult take(struct CUmemPoolHandle_st *p, int card, size_t size, CUdeviceptr *ptr)
{
	const uint64_t taken = cu_round(size);
	CUresult r = CUDA_SUCCESS;

	if (!size || taken < size)
		return size ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	if (!p)
		p = current_pool(card);
	else if (!pool_valid(p) || p->imported)
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r && (!p || (p->used + taken > p->reserved && !grow(p, p->used + taken))))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (!r) {
		p->used += taken;
		if (p->used > p->used_high)
			p->used_high = p->used;
	}
	cu_unlock();
	if (r)
		return r;
	struct alloc *a = cu_map_add(A_POOL, p->card, NULL, size, 0);
	cu_lock();
	if (a) {
		a->pool = p;
		*ptr = a->ptr;
	} else {
		p->used -= taken;
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	cu_unlock();
	return r;
}

CUresult cu_pool_free(struct alloc *a)
{
	a->pool->used -= cu_round(a->size);
	cu_map_drop(a);
	return CUDA_SUCCESS;
}

static CUresult alloc_on(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	if (real && real->capture)
		return cu_capture_alloc(real, ptr, size);
	return take(pool, c->card, size, ptr);
}

static CUresult free_on(CUdeviceptr ptr, CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (real && real->capture)
		return cu_capture_free(real, ptr);
	return cu_free(ptr);
}

CU_API CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream s)
{
	return alloc_on(ptr, size, NULL, s);
}

CU_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t size, CUstream s)
{
	return alloc_on(ptr, size, NULL, s ? s : CU_STREAM_PER_THREAD);
}

CU_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream s)
{
	return pool ? alloc_on(ptr, size, pool, s) : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream s)
{
	return cuMemAllocFromPoolAsync(ptr, size, pool, s ? s : CU_STREAM_PER_THREAD);
}

CU_API CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream s)
{
	return free_on(ptr, s);
}

CU_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream s)
{
	return free_on(ptr, s ? s : CU_STREAM_PER_THREAD);
}

/* ---- pools as objects ---- */

/* The card that a pool takes memory from; -1: none, it is the host's. Managed
 * memory without a card of its own is taken from that of the context that is
 * current when its pool is made. */
static CUresult pool_place(const CUmemPoolProps *props, int *card)
{
	const int where = props->location.type;
	const bool host = where == CU_MEM_LOCATION_TYPE_HOST || where == CU_MEM_LOCATION_TYPE_HOST_NUMA;
	CUcontext c;

	*card = -1;
	if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED && props->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	if (where == CU_MEM_LOCATION_TYPE_DEVICE)
		return cu_device_card(props->location.id, card);
	if (props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED)
		return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (!host && where != CU_MEM_LOCATION_TYPE_INVALID)
		return CUDA_ERROR_INVALID_VALUE;
	*card = cu_current(&c) ? 0 : c->card;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	int card;
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!pool || !props)
		return CUDA_ERROR_INVALID_VALUE;
	r = pool_place(props, &card);
	if (r)
		return r;
	cu_lock();
	*pool = new_pool(card, false);
	if (*pool)
		(*pool)->max = props->maxSize;
	cu_unlock();
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Memory still allocated from it keeps its share until it is freed; here the
 * pool lives on, out of sight, as the real driver's does. */
CU_API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	if (!pool_valid(pool) || pool->is_default) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		pool->threshold = 0;
		shrink(pool, 0);
		for (int i = 0; i < FG_MAX_CARDS; i++)
			if (fg_p->current_pool[i] == pool)
				fg_p->current_pool[i] = NULL;
		pool->gone = !pool->used && !pool->reserved && !pool->imported;
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	if (pool_valid(pool))
		shrink(pool, keep);
	else
		r = CUDA_ERROR_INVALID_VALUE;
	cu_unlock();
	return r;
}

CU_API CUresult cuMemPoolSetAttribute(CUmemoryPool p, CUmemPool_attribute attribute, void *value)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	if (!pool_valid(p)) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		const cuuint64_t v = attribute >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? *(cuuint64_t *)value : 0;
		switch (attribute) {
		case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
		case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
		case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: break;
		case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: p->threshold = v; break;
		case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
			if (v)
				r = CUDA_ERROR_INVALID_VALUE;
			else
				p->reserved_high = p->reserved;
			break;
		case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
			if (v)
				r = CUDA_ERROR_INVALID_VALUE;
			else
				p->used_high = p->used;
			break;
		default: r = CUDA_ERROR_INVALID_VALUE;
		}
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemPoolGetAttribute(CUmemoryPool p, CUmemPool_attribute attribute, void *value)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	if (!pool_valid(p)) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		cuuint64_t *v = value;
		switch (attribute) {
		case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
		case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
		case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)value = 1; break;
		case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *v = p->threshold; break;
		case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *v = p->reserved; break;
		case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *v = p->reserved_high; break;
		case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *v = p->used; break;
		case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *v = p->used_high; break;
		default: r = CUDA_ERROR_INVALID_VALUE;
		}
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	return pool && (desc || !count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!flags || !pool || !location)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	*pool = default_pool(card);
	cu_unlock();
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	*pool = current_pool(card);
	cu_unlock();
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	cu_lock();
	if (pool_valid(pool) && pool->card == card)
		fg_p->current_pool[card] = pool;
	else
		r = CUDA_ERROR_INVALID_VALUE;
	cu_unlock();
	return r;
}

/* The forms of 13.0, by location and kind of memory. */

static CUresult located(const CUmemLocation *l, CUmemAllocationType type)
{
	return l && l->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *l, CUmemAllocationType type)
{
	CUresult r = located(l, type);

	return r ? r : cuDeviceGetDefaultMemPool(pool, l->id);
}

CU_API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *l, CUmemAllocationType type)
{
	CUresult r = located(l, type);

	return r ? r : cuDeviceGetMemPool(pool, l->id);
}

CU_API CUresult cuMemSetMemPool(CUmemLocation *l, CUmemAllocationType type, CUmemoryPool pool)
{
	CUresult r = located(l, type);

	return r ? r : cuDeviceSetMemPool(l->id, pool);
}
