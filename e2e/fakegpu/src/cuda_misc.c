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
