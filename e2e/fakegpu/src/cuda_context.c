/* libcuda: contexts, and each thread's stack of them. */
#include "cuda.h"

#include <stdlib.h>

/* A thread's stack of contexts. It names the attachment that it belongs to:
 * in a forked child it is void. */
static _Thread_local struct {
	word client;
	int depth;
	CUcontext ctx[16];
} tls;

bool cu_ctx_valid(CUcontext ctx)
{
	for (struct CUctx_st *c = fg_p->ctxs; c; c = c->next)
		if (c == ctx)
			return c->alive;
	return false;
}

static int depth(void)
{
	if (tls.client != fg_p->fg.client) {
		tls.client = fg_p->fg.client;
		tls.depth = 0;
	}
	return tls.depth;
}

CUresult cu_current(CUcontext *ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!depth() || !tls.ctx[tls.depth - 1])
		return CUDA_ERROR_INVALID_CONTEXT;
	*ctx = tls.ctx[tls.depth - 1];
	return (*ctx)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult push(CUcontext ctx)
{
	if (depth() == (int)(sizeof tls.ctx / sizeof tls.ctx[0]))
		return CUDA_ERROR_INVALID_CONTEXT;
	tls.ctx[tls.depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult cu_ctx_up(struct CUctx_st *c)
{
	struct fg_faults faults;

	fg_faults_read(fg_p->fg.dir, &faults);
	if (faults.unloaded || faults.lost[c->card])
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	const CUresult r = cu_mps(c->card);
	if (r)
		return r;
	if (!fg_mem_take(&fg_p->fg, c->card, fg_p->fg.node.context_bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	fg_contexts_add(&fg_p->fg, c->card, 1);
	c->overhead = fg_p->fg.node.context_bytes;
	c->id = fg_p->next_id++;
	c->alive = true;
	return CUDA_SUCCESS;
}

void cu_ctx_down(struct CUctx_st *c)
{
	cu_streams_end(c);
	cu_allocs_end(c);
	cu_arrays_end(c);
	cu_modules_end(c);
	fg_mem_give(&fg_p->fg, c->card, c->overhead);
	fg_contexts_add(&fg_p->fg, c->card, -1);
	c->overhead = 0;
	c->alive = false;
	c->refs = 0;
}

struct CUctx_st *cu_ctx_new(CUdevice dev, int card, unsigned flags)
{
	struct CUctx_st *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	c->magic = M_CTX;
	c->device = dev;
	c->card = card;
	c->flags = flags;
	c->next = fg_p->ctxs;
	fg_p->ctxs = c;
	return c;
}

CU_API CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	struct CUctx_st *c = cu_ctx_new(dev, card, flags);
	r = c ? cu_ctx_up(c) : CUDA_ERROR_OUT_OF_MEMORY;
	cu_unlock();
	if (r)
		return r;
	*ctx = c;
	return push(c);
}

CU_API CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	return cuCtxCreate_v2(ctx, flags, dev);
}

CU_API CUresult cuCtxCreate_v3(CUcontext *ctx, void *affinity, int n, unsigned int flags, CUdevice dev)
{
	(void)affinity;
	return n < 0 ? CUDA_ERROR_INVALID_VALUE : cuCtxCreate_v2(ctx, flags, dev);
}

CU_API CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
	(void)params;
	return cuCtxCreate_v2(ctx, flags, dev);
}

CU_API CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	if (!ctx || !cu_ctx_valid(ctx) || ctx->primary) {
		cu_unlock();
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	cu_unlock();
	cu_drain(ctx->card);
	cu_lock();
	if (ctx->alive)
		cu_ctx_down(ctx);
	cu_unlock();
	if (depth() && tls.ctx[tls.depth - 1] == ctx)
		tls.depth--;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxDestroy(CUcontext ctx)
{
	return cuCtxDestroy_v2(ctx);
}

CU_API CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	bool ok = ctx && cu_ctx_valid(ctx);
	cu_unlock();
	return ok ? push(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

CU_API CUresult cuCtxPushCurrent(CUcontext ctx)
{
	return cuCtxPushCurrent_v2(ctx);
}

CU_API CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!depth())
		return CUDA_ERROR_INVALID_CONTEXT;
	tls.depth--;
	if (ctx)
		*ctx = tls.ctx[tls.depth];
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxPopCurrent(CUcontext *ctx)
{
	return cuCtxPopCurrent_v2(ctx);
}

CU_API CUresult cuCtxSetCurrent(CUcontext ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!ctx) {
		if (depth())
			tls.depth--;
		return CUDA_SUCCESS;
	}
	cu_lock();
	bool ok = cu_ctx_valid(ctx);
	cu_unlock();
	if (!ok)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!depth())
		return push(ctx);
	tls.ctx[tls.depth - 1] = ctx;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	*ctx = depth() ? tls.ctx[tls.depth - 1] : NULL;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetDevice(CUdevice *dev)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	*dev = c->device;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetFlags(unsigned int *flags)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = c->flags;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
	CUresult r = ctx ? cu_ready() : cu_current(&ctx);

	if (r)
		return r;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = ctx->id;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
	CUresult r = ctx ? cu_ready() : cu_current(&ctx);

	if (r)
		return r;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 3020;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (!r && limit == CU_LIMIT_MALLOC_HEAP_SIZE && value > fg_room(&fg_p->fg, c->card))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	return r;
}

CU_API CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	*value = limit == CU_LIMIT_STACK_SIZE ? 1024 : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? 1 << 20 : 8 << 20;
	return CUDA_SUCCESS;
}

void cu_drain(int card)
{
	struct fg *f = &fg_p->fg;

	/* Marks only grow, so a marker queued now is behind all earlier work. */
	fg_wait(f, card, fg_submit(f, card, 0, 0));
	cu_pools_synced(card);
}

CU_API CUresult cuCtxSynchronize(void)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (!r)
		r = cu_unsafe();
	if (r)
		return r;
	cu_drain(c->card);
	return cu_health(c->card);
}
