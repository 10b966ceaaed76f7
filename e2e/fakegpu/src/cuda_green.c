/* libcuda: green contexts: a context that runs on part of the card's SMs. Here
 * it is a context like any other, with the same cost; the parts only count. */
#include "cuda.h"

#include <string.h>

typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef struct CUgreenCtx_st *CUgreenCtx;

typedef struct {
	int type; /* 1: SMs */
	unsigned char internal[92];
	union {
		struct { unsigned int smCount, minSmPartitionSize, smCoscheduledAlignment, flags; } sm;
		unsigned char room[48];
	};
} CUdevResource;

CU_API CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource *out, int type)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!out || type != 1)
		return CUDA_ERROR_INVALID_VALUE;
	memset(out, 0, sizeof *out);
	out->type = type;
	out->sm.smCount = (unsigned)cu_sms(card);
	out->sm.minSmPartitionSize = 8;
	out->sm.smCoscheduledAlignment = 8;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned int n)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!out || !resources || !n || resources[0].type != 1)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUdevResourceDesc)(uintptr_t)(resources[0].sm.smCount + 1);
	return CUDA_SUCCESS;
}

CU_API CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	CUcontext ctx, gone;
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!out || !desc || flags != 1)
		return CUDA_ERROR_INVALID_VALUE;
	r = cuCtxCreate_v2(&ctx, 0, dev);
	if (r)
		return r;
	cuCtxPopCurrent_v2(&gone); /* creation does not make it current */
	*out = (CUgreenCtx)ctx;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGreenCtxDestroy(CUgreenCtx ctx)
{
	return cuCtxDestroy_v2((CUcontext)ctx);
}

CU_API CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!out || !ctx)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUcontext)ctx;
	return CUDA_SUCCESS;
}
