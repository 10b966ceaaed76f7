/* libcuda: copies and fills.
 *
 * Managed and host memory is really copied. Memory of the card has contents
 * only where something was ever written, and only in its first KEPT bytes:
 * enough for programs that check what they moved, without a host that needs
 * as much memory as its cards. What was never written reads as zero. Copies
 * take no time on the card.
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KEPT (64ull << 20)

/* Where [ptr, ptr+n) can be read or written: *n is cut to what is kept. NULL
 * for memory of the card without contents; false when nothing is there. */
static bool place(CUdeviceptr ptr, size_t *n, bool write, char **out)
{
	struct alloc *a = cu_map_find(ptr);

	*out = NULL;
	if (!a) {
		if (cu_vmm_range(ptr, NULL, NULL)) {
			*n = 0;
			return true;
		}
		/* Not the card's: host memory by its own address. */
		*out = (char *)(uintptr_t)ptr;
		return ptr > 4096;
	}
	const uint64_t off = ptr - a->ptr;
	if (*n > a->size - off)
		return false;
	if (a->kind != A_MANAGED) {
		if (!a->host && write && off < KEPT) {
			void *at = mmap(NULL, a->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
			a->host = at == MAP_FAILED ? NULL : at;
		}
		if (off >= KEPT)
			*n = 0;
		else if (*n > KEPT - off)
			*n = KEPT - off;
	}
	if (a->host)
		*out = (char *)a->host + off;
	return true;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	size_t n_to = bytes, n_from = bytes;
	char *dst, *src;
	CUresult r = CUDA_SUCCESS;

	if (!bytes)
		return CUDA_SUCCESS;
	cu_lock();
	if (!place(from, &n_from, false, &src) || !place(to, &n_to, true, &dst)) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else if (dst && n_to) {
		const size_t n = src && n_from < n_to ? n_from : src ? n_to : 0;
		memmove(dst, src ? src : dst, n);
		memset(dst + n, 0, n_to - n);
	}
	cu_unlock();
	return r;
}

static CUresult sync_copy(CUdeviceptr to, CUdeviceptr from, size_t n)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (!r)
		r = cu_unsafe();
	if (r)
		return r;
	fg_wait(&fg_p->fg, c->card, c->mark);
	return copy(to, from, n);
}

static CUresult async_copy(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (real && real->capture)
		return cu_capture_kernel(real, 0);
	return copy(to, from, n);
}

static CUdeviceptr host(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

CU_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) { return sync_copy(to, from, n); }
CU_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n) { return sync_copy(to, host(from), n); }
CU_API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) { return sync_copy(host(to), from, n); }
CU_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) { return sync_copy(to, from, n); }
CU_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return async_copy(to, from, n, s); }
CU_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s) { return async_copy(to, host(from), n, s); }
CU_API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s) { return async_copy(host(to), from, n, s); }
CU_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return async_copy(to, from, n, s); }

CU_API CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t n) { return sync_copy(to, from, n); }
CU_API CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t n) { return sync_copy(to, host(from), n); }
CU_API CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t n) { return sync_copy(host(to), from, n); }
CU_API CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t n) { return sync_copy(to, from, n); }
CU_API CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return async_copy(to, from, n, s); }
CU_API CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t n, CUstream s) { return async_copy(to, host(from), n, s); }
CU_API CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t n, CUstream s) { return async_copy(host(to), from, n, s); }
CU_API CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return async_copy(to, from, n, s); }

static CUresult fill(CUdeviceptr ptr, const void *value, size_t width, size_t count)
{
	size_t n;
	char *at;
	CUresult r = CUDA_SUCCESS;

	if (__builtin_mul_overflow(width, count, &n) || ptr % width)
		return CUDA_ERROR_INVALID_VALUE;
	if (!n)
		return CUDA_SUCCESS;
	cu_lock();
	if (!place(ptr, &n, true, &at))
		r = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; !r && at && i + width <= n; i += width)
		memcpy(at + i, value, width);
	cu_unlock();
	return r;
}

static CUresult sync_fill(CUdeviceptr ptr, const void *value, size_t width, size_t count)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	fg_wait(&fg_p->fg, c->card, c->mark);
	return fill(ptr, value, width, count);
}

static CUresult async_fill(CUdeviceptr ptr, const void *value, size_t width, size_t count, CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (real && real->capture)
		return cu_capture_kernel(real, 0);
	return fill(ptr, value, width, count);
}

CU_API CUresult cuMemsetD8_v2(CUdeviceptr p, unsigned char v, size_t n) { return sync_fill(p, &v, 1, n); }
CU_API CUresult cuMemsetD16_v2(CUdeviceptr p, unsigned short v, size_t n) { return sync_fill(p, &v, 2, n); }
CU_API CUresult cuMemsetD32_v2(CUdeviceptr p, unsigned int v, size_t n) { return sync_fill(p, &v, 4, n); }
CU_API CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) { return async_fill(p, &v, 1, n, s); }
CU_API CUresult cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream s) { return async_fill(p, &v, 2, n, s); }
CU_API CUresult cuMemsetD32Async(CUdeviceptr p, unsigned int v, size_t n, CUstream s) { return async_fill(p, &v, 4, n, s); }

CU_API CUresult cuMemsetD8_v2_ptds(CUdeviceptr p, unsigned char v, size_t n) { return sync_fill(p, &v, 1, n); }
CU_API CUresult cuMemsetD16_v2_ptds(CUdeviceptr p, unsigned short v, size_t n) { return sync_fill(p, &v, 2, n); }
CU_API CUresult cuMemsetD32_v2_ptds(CUdeviceptr p, unsigned int v, size_t n) { return sync_fill(p, &v, 4, n); }
CU_API CUresult cuMemsetD8Async_ptsz(CUdeviceptr p, unsigned char v, size_t n, CUstream s) { return async_fill(p, &v, 1, n, s); }
CU_API CUresult cuMemsetD16Async_ptsz(CUdeviceptr p, unsigned short v, size_t n, CUstream s) { return async_fill(p, &v, 2, n, s); }
CU_API CUresult cuMemsetD32Async_ptsz(CUdeviceptr p, unsigned int v, size_t n, CUstream s) { return async_fill(p, &v, 4, n, s); }
