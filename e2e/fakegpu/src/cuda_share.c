/* libcuda: memory that came from elsewhere: shared pools, external memory,
 * multicast objects. None of it costs the one who receives it. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- pools of another process ---- */

struct pool_token {
	char kind[8];
	uint64_t client, card;
};

struct pointer_token {
	char kind[8];
	uint64_t size, card;
};

CU_API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags)
{
	struct pool_token t = { .kind = "fgpool" };
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!out || !pool || pool->magic != M_POOL || pool->card < 0 || pool->is_default || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	t.client = fg_p->fg.client;
	t.card = (uint64_t)pool->card;
	int fd = memfd_create("fakegpu-pool", MFD_CLOEXEC);
	if (fd < 0 || write(fd, &t, sizeof t) != sizeof t)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type, unsigned long long flags)
{
	struct pool_token t;
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!pool || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    pread((int)(intptr_t)handle, &t, sizeof t, 0) != sizeof t || memcmp(t.kind, "fgpool", 7))
		return CUDA_ERROR_INVALID_VALUE;
	*pool = cu_pool_imported((int)t.card);
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr ptr)
{
	struct pointer_token t = { .kind = "fgpptr" };
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	struct alloc *a = cu_map_find(ptr);
	if (out && a && a->kind == A_POOL && a->ptr == ptr) {
		t.size = a->size;
		t.card = (uint64_t)a->card;
		memset(out, 0, sizeof *out);
		memcpy(out, &t, sizeof t);
	} else {
		r = CUDA_ERROR_INVALID_VALUE;
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	struct pointer_token t;
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!ptr || !pool || pool->magic != M_POOL || !pool->imported || !data)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&t, data, sizeof t);
	if (memcmp(t.kind, "fgpptr", 7))
		return CUDA_ERROR_INVALID_VALUE;
	/* Freed like any pointer of a pool, and worth nothing. */
	struct alloc *a = cu_map_add(A_LINEAR, (int)t.card, NULL, t.size, 0);
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ptr = a->ptr;
	return CUDA_SUCCESS;
}

/* ---- external memory: any file descriptor is taken for memory of the current card ---- */

struct CUextMemory_st {
	uint32_t magic;
	uint64_t size;
	CUcontext ctx;
};

typedef struct {
	int type;
	union {
		int fd;
		struct { void *handle; const void *name; } win32;
		const void *nvSciBufObject;
	} handle;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct {
	unsigned long long offset, size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

typedef struct CUextMemory_st *CUexternalMemory;

CU_API CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!out || !d || !d->size || d->type != 1 /* an opaque descriptor */ || d->handle.fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	CUexternalMemory e = calloc(1, sizeof *e);
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*e = (struct CUextMemory_st){ M_EXTERNAL, d->size, c };
	*out = e;
	return CUDA_SUCCESS;
}

CU_API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *ptr, CUexternalMemory e, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *d)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!e || e->magic != M_EXTERNAL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!ptr || !d || !d->size || d->offset > e->size || d->size > e->size - d->offset)
		return CUDA_ERROR_INVALID_VALUE;
	struct alloc *a = cu_map_add(A_LINEAR, e->ctx->card, e->ctx, d->size, 0);
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ptr = a->ptr;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDestroyExternalMemory(CUexternalMemory e)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!e || e->magic != M_EXTERNAL)
		return CUDA_ERROR_INVALID_HANDLE;
	e->magic = M_DEAD;
	free(e);
	return CUDA_SUCCESS;
}

/* ---- multicast: one address, written on several cards that a switch joins ---- */

typedef struct {
	unsigned int numDevices;
	size_t size;
	unsigned long long handleTypes, flags;
} CUmulticastObjectProp;

CU_API CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *p, int option)
{
	CUresult r = cu_ready();

	(void)option;
	if (r)
		return r;
	if (!granularity || !p || !p->numDevices)
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = 2 << 20;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *p)
{
	/* The object itself has no memory of a card. */
	const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_HOST, 0 } };
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!handle || !p || !p->numDevices || !p->size)
		return CUDA_ERROR_INVALID_VALUE;
	return cuMemCreate(handle, p->size, &prop, 0);
}

CU_API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	const struct fg_card_desc *d = &fg_p->fg.node.card[card];
	(void)handle;
	return d->cc_major >= 9 && d->nvlinks ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CU_API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle mem,
				   size_t mem_offset, size_t size, unsigned long long flags)
{
	CUmemAllocationProp prop;
	CUresult r = cuMemGetAllocationPropertiesFromHandle(&prop, handle);

	(void)offset;
	(void)mem_offset;
	if (!r)
		r = cuMemGetAllocationPropertiesFromHandle(&prop, mem);
	if (r)
		return r;
	return size && !flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr ptr, size_t size, unsigned long long flags)
{
	CUmemAllocationProp prop;
	CUresult r = cuMemGetAllocationPropertiesFromHandle(&prop, handle);

	(void)offset;
	if (r)
		return r;
	return ptr && size && !flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice dev, size_t offset, size_t size)
{
	int card;

	(void)handle;
	(void)offset;
	(void)size;
	return cu_device_card(dev, &card);
}

/* Memory given to parts of a sparse array was paid for when it was created. */
CU_API CUresult cuMemMapArrayAsync(void *list, unsigned int count, CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	return list && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemMapArrayAsync_ptsz(void *list, unsigned int count, CUstream s)
{
	return cuMemMapArrayAsync(list, count, s ? s : CU_STREAM_PER_THREAD);
}
