/* libcuda: peers, memory shared between processes, and what else programs ask
 * for on their way. */
#include "cuda.h"

#include <string.h>

CU_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b)
{
	int ca, cb;
	CUresult r = cu_device_card(a, &ca);

	if (!r)
		r = cu_device_card(b, &cb);
	if (r)
		return r;
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	*can = a != b;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice a, CUdevice b)
{
	int ca, cb;
	CUresult r = cu_device_card(a, &ca);

	if (!r)
		r = cu_device_card(b, &cb);
	if (r)
		return r;
	if (!value || a == b)
		return CUDA_ERROR_INVALID_VALUE;
	*value = attribute == 2; /* access, but no performance rank and no atomics */
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	return !peer || flags || peer == c ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CU_API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	return peer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- memory of another process ---- */

struct ipc {
	char kind[8];
	uint64_t client, ptr, size, card;
};

CU_API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	struct ipc i = { .kind = "fgipc" };
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	cu_lock();
	struct alloc *a = cu_map_find(ptr);
	if (handle && a && a->kind == A_LINEAR) {
		i.client = fg_p->fg.client;
		i.ptr = a->ptr;
		i.size = a->size;
		i.card = (uint64_t)a->card;
		memset(handle, 0, sizeof *handle);
		memcpy(handle, &i, sizeof i);
	} else {
		r = CUDA_ERROR_INVALID_VALUE;
	}
	cu_unlock();
	return r;
}

/* The opener pays nothing: the memory is its owner's. */
CU_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	struct ipc i;
	CUcontext c;
	CUresult r = cu_current(&c);

	(void)flags;
	if (r)
		return r;
	memcpy(&i, &handle, sizeof i);
	if (!ptr || memcmp(i.kind, "fgipc", 6))
		return CUDA_ERROR_INVALID_VALUE;
	if (i.client == fg_p->fg.client)
		return CUDA_ERROR_INVALID_CONTEXT; /* one's own memory cannot be opened */
	struct alloc *a = cu_map_add(A_IPC, (int)i.card, c, i.size, 0);
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ptr = a->ptr;
	return CUDA_SUCCESS;
}

CU_API CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	return cuIpcOpenMemHandle_v2(ptr, handle, flags);
}

CU_API CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	struct alloc *a = cu_map_find(ptr);
	if (a && a->kind == A_IPC && a->ptr == ptr)
		cu_map_drop(a);
	else
		r = CUDA_ERROR_INVALID_VALUE;
	cu_unlock();
	return r;
}

/* ---- hints and bookkeeping that change nothing here ---- */

CU_API CUresult cuMemAdvise(CUdeviceptr ptr, size_t size, int advice, CUdevice dev)
{
	(void)advice;
	(void)dev;
	CUresult r = cu_ready();

	return r ? r : ptr && size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemPrefetchAsync(CUdeviceptr ptr, size_t size, CUdevice dev, CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	(void)dev;
	return r ? r : ptr && size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr ptr, size_t size, CUdevice dev, CUstream s)
{
	return cuMemPrefetchAsync(ptr, size, dev, s ? s : CU_STREAM_PER_THREAD);
}

CU_API CUresult cuProfilerStart(void)
{
	CUcontext c;

	return cu_current(&c);
}

CU_API CUresult cuProfilerStop(void)
{
	CUcontext c;

	return cu_current(&c);
}

static int cache_config;

CU_API CUresult cuCtxGetCacheConfig(int *config)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = cache_config;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxSetCacheConfig(int config)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (!r)
		cache_config = config;
	return r;
}
