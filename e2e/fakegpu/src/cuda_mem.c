/* libcuda: linear, pitched, managed and host memory; what is free.
 *
 * An allocation takes its size, rounded up to 512 bytes, from the card. (The
 * real driver carves small ones from chunks of 2 MiB; taking them exactly lets
 * a test say to the byte where memory ends.)
 */
#include "cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static CUresult linear(CUcontext c, enum alloc_kind kind, uint64_t size, struct alloc **out)
{
	const uint64_t taken = cu_round(size);

	CUresult r = size ? cu_unsafe() : CUDA_ERROR_INVALID_VALUE;

	if (!r)
		r = __atomic_load_n(&fg_p->health[c->card], __ATOMIC_RELAXED); /* as last seen */
	if (r)
		return r;
	if (taken < size || !fg_mem_take(&fg_p->fg, c->card, taken))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = cu_map_add(kind, c->card, c, size, taken);
	if (!*out) {
		fg_mem_give(&fg_p->fg, c->card, taken);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
	CUcontext c;
	struct alloc *a;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	r = linear(c, A_LINEAR, size, &a);
	if (!r)
		*ptr = a->ptr;
	return r;
}

/* Behind the private export table; see cuda_proc.c. */
CUresult cu_private_alloc(CUdeviceptr *ptr, size_t size)
{
	return cuMemAlloc_v2(ptr, size);
}

CU_API CUresult cuMemAlloc(CUdeviceptr_v1 *ptr, unsigned int size)
{
	CUcontext c;
	struct alloc *a;
	const uint64_t taken = cu_round(size);
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!ptr || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fg_mem_take(&fg_p->fg, c->card, taken))
		return CUDA_ERROR_OUT_OF_MEMORY;
	a = cu_map_add_low(c->card, c, size, taken);
	if (!a) {
		fg_mem_give(&fg_p->fg, c->card, taken);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ptr = (CUdeviceptr_v1)a->ptr;
	return CUDA_SUCCESS;
}

#define PITCH 512ull

CU_API CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	const size_t row = (width + PITCH - 1) / PITCH * PITCH;
	size_t size;
	CUresult r;

	if (!ptr || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (row < width || __builtin_mul_overflow(row, height, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = cuMemAlloc_v2(ptr, size);
	if (!r)
		*pitch = row;
	return r;
}

CU_API CUresult cuMemAllocPitch(CUdeviceptr_v1 *ptr, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element)
{
	const uint64_t row = (width + PITCH - 1) / PITCH * PITCH, size = row * height;
	CUresult r;

	if (!ptr || !pitch || !size || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (size > UINT32_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = cuMemAlloc(ptr, (unsigned)size);
	if (!r)
		*pitch = (unsigned)row;
	return r;
}

/* Managed memory has contents in host memory at its own address, since the
 * program reads and writes it directly. */
CU_API CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	CUcontext c;
	struct alloc *a;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!ptr || !flags)
		return CUDA_ERROR_INVALID_VALUE;
	r = linear(c, A_MANAGED, size, &a);
	if (r)
		return r;
	void *at = mmap((void *)(uintptr_t)a->ptr, size, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	cu_lock();
	if (at == MAP_FAILED) {
		cu_map_drop(a);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		a->host = at;
		*ptr = a->ptr;
	}
	cu_unlock();
	return r;
}

CUresult cu_free(CUdeviceptr ptr)
{
	CUresult r = CUDA_SUCCESS;

	cu_lock();
	struct alloc *a = cu_map_find(ptr);
	if (!a || a->ptr != ptr || a->kind == A_IPC || (a->kind == A_GRAPH && !a->exec))
		r = CUDA_ERROR_INVALID_VALUE;
	else if (a->kind == A_POOL)
		r = cu_pool_free(a);
	else if (a->kind == A_GRAPH)
		cu_graph_freed(a);
	else
		cu_map_drop(a);
	cu_unlock();
	return r;
}

CU_API CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (!r)
		r = cu_unsafe();
	return r ? r : cu_free(ptr);
}

CU_API CUresult cuMemFree(CUdeviceptr_v1 ptr)
{
	return cuMemFree_v2(ptr);
}

/* Either result may be NULL. */
CU_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	const uint64_t usable = fg_room(&fg_p->fg, c->card);
	const uint64_t used = fg_mem_used(&fg_p->fg, c->card);
	if (free_bytes)
		*free_bytes = usable - used;
	if (total)
		*total = usable;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
	size_t f, t;
	CUresult r = cuMemGetInfo_v2(&f, &t);

	if (r)
		return r;
	if (free_bytes)
		*free_bytes = f > UINT32_MAX ? UINT32_MAX : (unsigned)f;
	if (total)
		*total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	cu_lock();
	struct alloc *a = cu_map_find(ptr);
	if (a) {
		if (base)
			*base = a->ptr;
		if (size)
			*size = a->size;
	} else if (!cu_vmm_range(ptr, base, size)) {
		r = CUDA_ERROR_NOT_FOUND;
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 ptr)
{
	CUdeviceptr b;
	size_t s;
	CUresult r = cuMemGetAddressRange_v2(&b, &s, ptr);

	if (r)
		return r;
	if (base)
		*base = (CUdeviceptr_v1)b;
	if (size)
		*size = (unsigned)s;
	return CUDA_SUCCESS;
}

/* ---- host memory: the card pays nothing ---- */

CU_API CUresult cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	(void)flags;
	if (r)
		return r;
	if (!ptr || !size)
		return CUDA_ERROR_INVALID_VALUE;
	return posix_memalign(ptr, 4096, size) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CU_API CUresult cuMemAllocHost_v2(void **ptr, size_t size)
{
	return cuMemHostAlloc(ptr, size, 0);
}

CU_API CUresult cuMemAllocHost(void **ptr, unsigned int size)
{
	return cuMemHostAlloc(ptr, size, 0);
}

CU_API CUresult cuMemFreeHost(void *ptr)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	free(ptr);
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *ptr, unsigned int flags)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!out || !ptr || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUdeviceptr)(uintptr_t)ptr;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemHostRegister_v2(void *ptr, size_t size, unsigned int flags)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	(void)flags;
	if (r)
		return r;
	return ptr && size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemHostRegister(void *ptr, size_t size, unsigned int flags)
{
	return cuMemHostRegister_v2(ptr, size, flags);
}

CU_API CUresult cuMemHostUnregister(void *ptr)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	return ptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- what a pointer is ---- */

CU_API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	struct alloc *a = cu_map_find(ptr);
	const int card = a ? a->card : cu_vmm_card(ptr);
	CUcontext ctx = a ? a->ctx : NULL;
	const bool managed = a && a->kind == A_MANAGED;
	if (a) {
		base = a->ptr;
		size = a->size;
	} else {
		cu_vmm_range(ptr, &base, &size);
	}
	cu_unlock();
	if (card < 0)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = ctx; break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = CU_MEMORYTYPE_DEVICE; break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = ptr; break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!managed)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = (void *)(uintptr_t)ptr;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)data = managed; break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = base; break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = size; break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		for (int i = 0; i < fg_p->devices; i++)
			if (fg_p->card_of[i] == card)
				*(int *)data = i;
		break;
	default: return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_SUCCESS;
}

CU_API CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	/* For an address that is not ours each answer is zero, not an error. */
	for (unsigned i = 0; i < n; i++)
		if (cuPointerGetAttribute(data[i], attributes[i], ptr))
			memset(data[i], 0, attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
					attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? 4 : 8);
	return CUDA_SUCCESS;
}
