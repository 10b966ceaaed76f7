/* libcuda: the primary context of each device, which a process shares. */
#include "cuda.h"

CU_API CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	struct CUctx_st *c = fg_p->primary[dev];
	if (!c) {
		c = fg_p->primary[dev] = cu_ctx_new(dev, card, 0);
		if (c)
			c->primary = true;
	}
	if (!c)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	else if (!c->alive)
		r = cu_ctx_up(c);
	if (!r)
		c->refs++;
	cu_unlock();
	*ctx = r ? NULL : c;
	return r;
}

static CUresult end_primary(CUdevice dev, bool all)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	cu_lock();
	struct CUctx_st *c = fg_p->primary[dev];
	if (!c || !c->alive) {
		cu_unlock();
		return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	}
	bool last = all || c->refs == 1;
	if (!last)
		c->refs--;
	cu_unlock();
	if (!last)
		return CUDA_SUCCESS;
	cu_drain(card);
	cu_lock();
	if (c->alive)
		cu_ctx_down(c);
	cu_unlock();
	return CUDA_SUCCESS;
}

CU_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	return end_primary(dev, false);
}

CU_API CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return end_primary(dev, false);
}

CU_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	return end_primary(dev, true);
}

CU_API CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	return end_primary(dev, true);
}

CU_API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	struct CUctx_st *c = fg_p->primary[dev];
	if (flags)
		*flags = c ? c->flags : 0;
	if (active)
		*active = c && c->alive;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	cu_lock();
	if (!fg_p->primary[dev]) {
		fg_p->primary[dev] = cu_ctx_new(dev, card, flags);
		if (fg_p->primary[dev])
			fg_p->primary[dev]->primary = true;
	} else {
		fg_p->primary[dev]->flags = flags;
	}
	cu_unlock();
	return CUDA_SUCCESS;
}

CU_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}
