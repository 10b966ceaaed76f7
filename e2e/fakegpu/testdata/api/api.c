/* What the driver promises about memory, contexts, pools and graphs, told as
 * one behaviour a function. The card is a T4; a context costs nothing.
 *
 *   api NAME     runs one; prints what was not so and exits 1
 *   api          lists the names
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_abi.h"

#define DECLARE(name, params) extern CUresult name params;
DECLARE(cuInit, (unsigned))
DECLARE(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))
DECLARE(cuCtxSetCurrent, (CUcontext))
DECLARE(cuCtxGetCurrent, (CUcontext *))
DECLARE(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))
DECLARE(cuCtxDestroy_v2, (CUcontext))
DECLARE(cuCtxSynchronize, (void))
DECLARE(cuMemGetInfo_v2, (size_t *, size_t *))
DECLARE(cuMemAlloc_v2, (CUdeviceptr *, size_t))
DECLARE(cuMemFree_v2, (CUdeviceptr))
DECLARE(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))
DECLARE(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))
DECLARE(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))
DECLARE(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))
DECLARE(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))
DECLARE(cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t))
DECLARE(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))
DECLARE(cuMemFreeAsync, (CUdeviceptr, CUstream))
DECLARE(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))
DECLARE(cuMemPoolGetAttribute, (CUmemoryPool, CUmemPool_attribute, void *))
DECLARE(cuMemPoolSetAttribute, (CUmemoryPool, CUmemPool_attribute, void *))
DECLARE(cuMemPoolTrimTo, (CUmemoryPool, size_t))
DECLARE(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))
DECLARE(cuMemRelease, (CUmemGenericAllocationHandle))
DECLARE(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))
DECLARE(cuMemAddressFree, (CUdeviceptr, size_t))
DECLARE(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))
DECLARE(cuMemUnmap, (CUdeviceptr, size_t))
DECLARE(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))
DECLARE(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *, void *))
DECLARE(cuMemExportToShareableHandle, (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))
DECLARE(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))
DECLARE(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))
DECLARE(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned))
DECLARE(cuIpcCloseMemHandle, (CUdeviceptr))
DECLARE(cuArray3DCreate_v2, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))
DECLARE(cuArrayDestroy, (CUarray))
DECLARE(cuStreamCreate, (CUstream *, unsigned))
DECLARE(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))
DECLARE(cuStreamEndCapture, (CUstream, CUgraph *))
DECLARE(cuGraphCreate, (CUgraph *, unsigned))
DECLARE(cuGraphAddMemAllocNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *))
DECLARE(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))
DECLARE(cuGraphLaunch, (CUgraphExec, CUstream))
DECLARE(cuDeviceGraphMemTrim, (CUdevice))
DECLARE(cuDeviceGetGraphMemAttribute, (CUdevice, CUgraphMem_attribute, void *))

#define MI ((size_t)1 << 20)
#define GI ((size_t)1 << 30)

static CUcontext primary;

#define OK(call) is(call, CUDA_SUCCESS, #call, __LINE__)
#define IS(call, want) is(call, want, #call, __LINE__)
#define SAME(a, b) same((unsigned long long)(a), (unsigned long long)(b), #a, __LINE__)

static void is(CUresult got, CUresult want, const char *what, int line)
{
	if (got == want)
		return;
	printf("line %d: %s gave %d, want %d\n", line, what, (int)got, (int)want);
	exit(1);
}

static void same(unsigned long long got, unsigned long long want, const char *what, int line)
{
	if (got == want)
		return;
	printf("line %d: %s is %llu, want %llu\n", line, what, got, want);
	exit(1);
}

static size_t used(void)
{
	size_t f, t;

	OK(cuMemGetInfo_v2(&f, &t));
	return t - f;
}

static const CUmemAllocationProp on_card = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
};

/* ---- behaviours ---- */

static void virtual_memory_lives_until_the_last_handle_and_mapping(void)
{
	const CUmemAccessDesc rw = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle h, again, copy;
	CUdeviceptr p, base;
	size_t size;
	int fd;

	IS(cuMemCreate(&h, MI, &on_card, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemCreate(&h, 4 * MI, &on_card, 0));
	OK(cuMemAddressReserve(&p, 16 * MI, 0, 0, 0));
	OK(cuMemMap(p + 4 * MI, 4 * MI, 0, h, 0));
	IS(cuMemMap(p, 16 * MI, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemMap(p + 6 * MI, 4 * MI, 0, h, 0), CUDA_ERROR_ALREADY_MAPPED);
	OK(cuMemSetAccess(p + 4 * MI, 4 * MI, &rw, 1));
	OK(cuMemRelease(h));
	SAME(used(), 4 * MI);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(p + 5 * MI)));
	OK(cuMemGetAddressRange_v2(&base, &size, p + 5 * MI));
	SAME(base, p + 4 * MI);
	OK(cuMemUnmap(p + 4 * MI, 4 * MI));
	SAME(used(), 4 * MI);
	OK(cuMemExportToShareableHandle(&fd, again, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&copy, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	SAME(used(), 4 * MI);
	OK(cuMemRelease(again));
	SAME(used(), 4 * MI);
	OK(cuMemRelease(copy));
	SAME(used(), 0);
	IS(cuMemRelease(copy), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAddressFree(p, 16 * MI));
}

static void host_locations_of_virtual_memory_cost_the_card_nothing(void)
{
	CUmemAllocationProp prop = on_card;
	CUmemGenericAllocationHandle h;

	prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	OK(cuMemCreate(&h, GI, &prop, 0));
	SAME(used(), 0);
	OK(cuMemRelease(h));
}

static uint64_t pool(CUmemoryPool p, CUmemPool_attribute a)
{
	cuuint64_t v;

	OK(cuMemPoolGetAttribute(p, a, &v));
	return v;
}

static void pools_keep_what_they_may_until_work_is_waited_for(void)
{
	CUmemoryPool p;
	CUdeviceptr a, b;
	cuuint64_t threshold = 64 * MI;

	OK(cuDeviceGetDefaultMemPool(&p, 0));
	OK(cuMemAllocAsync(&a, MI, NULL));
	SAME(used(), 32 * MI);
	OK(cuMemAllocAsync(&b, 100 * MI, NULL));
	SAME(pool(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 128 * MI);
	SAME(pool(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 101 * MI);
	OK(cuMemFreeAsync(b, NULL));
	SAME(used(), 128 * MI);
	OK(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	OK(cuCtxSynchronize());
	SAME(used(), 64 * MI);
	OK(cuMemPoolTrimTo(p, 0));
	SAME(used(), 32 * MI);
	OK(cuMemFree_v2(a)); /* an async pointer by the plain call */
	OK(cuMemPoolTrimTo(p, 0));
	SAME(used(), 0);
	SAME(pool(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 101 * MI);
	/* A step of 32 MiB no longer fits: smaller ones are taken. */
	OK(cuMemAlloc_v2(&a, (15360 - 265 - 10) * MI));
	OK(cuMemAllocAsync(&b, 9 * MI, NULL));
	SAME(pool(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 10 * MI);
	IS(cuMemAllocAsync(&a, 2 * MI, NULL), CUDA_ERROR_OUT_OF_MEMORY);
}

static void end_of_a_context_frees_its_memory_and_no_other(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1 };
	CUcontext own, now;
	CUdeviceptr a, b;
	CUarray array;

	OK(cuMemAlloc_v2(&a, MI));
	OK(cuCtxCreate_v2(&own, 0, 0));
	OK(cuMemAlloc_v2(&b, 7 * MI));
	OK(cuArray3DCreate_v2(&array, &d));
	SAME(used(), 12 * MI);
	OK(cuCtxDestroy_v2(own));
	OK(cuCtxGetCurrent(&now));
	SAME(now == primary, true);
	SAME(used(), MI);
	IS(cuMemFree_v2(b), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(a));
	IS(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
	IS(cuCtxDestroy_v2(own), CUDA_ERROR_INVALID_CONTEXT);
}

static void sparse_arrays_have_no_memory_of_their_own(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 32768, .Height = 32768, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4, .Flags = CUDA_ARRAY3D_SPARSE };
	CUarray a;

	OK(cuArray3DCreate_v2(&a, &d));
	SAME(used(), 0);
	d.Flags = 0;
	IS(cuArray3DCreate_v2(&a, &d), CUDA_ERROR_OUT_OF_MEMORY);
}

static void graph_memory_is_taken_at_launch_and_kept_until_trimmed(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = { .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } },
					 .bytesize = 3 * MI };
	CUgraph g;
	CUgraphNode n;
	CUgraphExec e, freeing;
	cuuint64_t v;

	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&n, g, NULL, 0, &p));
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	SAME(used(), 0);
	OK(cuGraphLaunch(e, NULL));
	SAME(used(), 4 * MI);
	IS(cuGraphLaunch(e, NULL), CUDA_ERROR_INVALID_VALUE); /* its memory was not freed */
	OK(cuMemFree_v2(p.dptr));
	OK(cuCtxSynchronize());
	SAME(used(), 4 * MI);
	OK(cuGraphInstantiateWithFlags(&freeing, g, 1)); /* auto free on launch */
	OK(cuGraphLaunch(freeing, NULL));
	OK(cuGraphLaunch(freeing, NULL));
	OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &v));
	SAME(v, 3 * MI);
	OK(cuMemFree_v2(p.dptr));
	IS(cuMemFree_v2(p.dptr), CUDA_ERROR_INVALID_VALUE);
	OK(cuDeviceGraphMemTrim(0));
	SAME(used(), 0);
}

static void captured_allocation_becomes_graph_memory(void)
{
	CUstream s;
	CUgraph g;
	CUgraphExec e;
	CUdeviceptr p;

	OK(cuStreamCreate(&s, 1));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemAllocAsync(&p, 8 * MI, s));
	OK(cuMemFreeAsync(p, s));
	OK(cuStreamEndCapture(s, &g));
	SAME(used(), 0);
	OK(cuGraphInstantiateWithFlags(&e, g, 0));
	OK(cuGraphLaunch(e, s));
	OK(cuGraphLaunch(e, s));
	SAME(used(), 8 * MI);
	OK(cuDeviceGraphMemTrim(0));
	SAME(used(), 0);
}

static void contents_survive_copies(void)
{
	CUdeviceptr a, b, m;
	unsigned host[4] = { 1, 2, 3, 4 }, back[4] = { 0 };

	OK(cuMemAlloc_v2(&a, GI));
	OK(cuMemAlloc_v2(&b, GI));
	OK(cuMemcpyDtoH_v2(back, a, sizeof back));
	SAME(back[0], 0);
	OK(cuMemcpyHtoD_v2(a + 4096, host, sizeof host));
	OK(cuMemcpyDtoD_v2(b, a + 4096, sizeof host));
	OK(cuMemcpyDtoH_v2(back, b, sizeof back));
	SAME(memcmp(host, back, sizeof host), 0);
	OK(cuMemsetD32_v2(b, 9, 2));
	OK(cuMemcpyDtoH_v2(back, b, sizeof back));
	SAME(back[1], 9);
	SAME(back[2], 3);
	OK(cuMemAllocManaged(&m, 4096, CU_MEM_ATTACH_GLOBAL));
	((unsigned *)(uintptr_t)m)[1] = 77;
	OK(cuMemcpyDtoH_v2(back, m, sizeof back));
	SAME(back[1], 77);
	IS(cuMemcpyHtoD_v2(a + GI - 8, host, sizeof host), CUDA_ERROR_INVALID_VALUE);
}

/* The owner pays for memory that another process opens. */
static void memory_of_another_process_costs_its_owner_only(void)
{
	int pair[2], status;
	CUipcMemHandle handle;
	CUdeviceptr p;
	char c = 0;

	SAME(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	pid_t owner = fork();
	if (owner == 0) {
		OK(cuInit(0));
		OK(cuDevicePrimaryCtxRetain(&primary, 0));
		OK(cuCtxSetCurrent(primary));
		OK(cuMemAlloc_v2(&p, 64 * MI));
		OK(cuIpcGetMemHandle(&handle, p));
		IS(cuIpcOpenMemHandle_v2(&p, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
		SAME(write(pair[1], &handle, sizeof handle), sizeof handle);
		SAME(read(pair[1], &c, 1), 1);
		_exit(0);
	}
	SAME(read(pair[0], &handle, sizeof handle), sizeof handle);
	OK(cuIpcOpenMemHandle_v2(&p, handle, 1));
	SAME(used(), 64 * MI);
	IS(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	OK(cuIpcCloseMemHandle(p));
	SAME(used(), 64 * MI);
	SAME(write(pair[0], &c, 1), 1);
	waitpid(owner, &status, 0);
	SAME(status, 0);
	SAME(used(), 0);
}

static void *hammer(void *arg)
{
	CUdeviceptr held[8] = { 0 };
	unsigned seed = (unsigned)(uintptr_t)arg;

	OK(cuCtxSetCurrent(primary));
	for (int i = 0; i < 20000; i++) {
		const int at = rand_r(&seed) % 8;
		if (held[at]) {
			OK(cuMemFree_v2(held[at]));
			held[at] = 0;
		} else if (cuMemAlloc_v2(&held[at], (size_t)(1 + rand_r(&seed) % 512) * MI)) {
			held[at] = 0; /* full: also right */
		}
	}
	for (int i = 0; i < 8; i++)
		if (held[i])
			OK(cuMemFree_v2(held[i]));
	return NULL;
}

static void threads_share_a_context_without_losing_a_byte(void)
{
	pthread_t t[8];

	for (uintptr_t i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, hammer, (void *)(i + 1));
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	SAME(used(), 0);
}

static void questions_without_answers_are_errors_not_crashes(void)
{
	size_t f, t;
	CUdeviceptr p;

	OK(cuMemGetInfo_v2(NULL, &t));
	OK(cuMemGetInfo_v2(&f, NULL));
	IS(cuMemAlloc_v2(NULL, 1), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemAlloc_v2(&p, ~(size_t)0), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuMemFree_v2(12345), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemGetAddressRange_v2(&p, &t, 12345), CUDA_ERROR_NOT_FOUND);
	OK(cuCtxSetCurrent(NULL));
	IS(cuMemGetInfo_v2(&f, &t), CUDA_ERROR_INVALID_CONTEXT);
	IS(cuCtxSetCurrent((CUcontext)(uintptr_t)0x1234), CUDA_ERROR_INVALID_CONTEXT);
}

#define B(name) { #name, name }
static const struct { const char *name; void (*run)(void); } behaviours[] = {
	B(virtual_memory_lives_until_the_last_handle_and_mapping),
	B(host_locations_of_virtual_memory_cost_the_card_nothing),
	B(pools_keep_what_they_may_until_work_is_waited_for),
	B(end_of_a_context_frees_its_memory_and_no_other),
	B(sparse_arrays_have_no_memory_of_their_own),
	B(graph_memory_is_taken_at_launch_and_kept_until_trimmed),
	B(captured_allocation_becomes_graph_memory),
	B(contents_survive_copies),
	B(memory_of_another_process_costs_its_owner_only),
	B(threads_share_a_context_without_losing_a_byte),
	B(questions_without_answers_are_errors_not_crashes),
};

int main(int argc, char **argv)
{
	size_t f, t;

	for (unsigned i = 0; i < sizeof behaviours / sizeof behaviours[0]; i++) {
		if (argc < 2) {
			printf("%s\n", behaviours[i].name);
			continue;
		}
		if (strcmp(argv[1], behaviours[i].name))
			continue;
		IS(cuMemGetInfo_v2(&f, &t), CUDA_ERROR_NOT_INITIALIZED);
		OK(cuInit(0));
		IS(cuMemGetInfo_v2(&f, &t), CUDA_ERROR_INVALID_CONTEXT);
		OK(cuDevicePrimaryCtxRetain(&primary, 0));
		OK(cuCtxSetCurrent(primary));
		SAME(used(), 0);
		behaviours[i].run();
		return 0;
	}
	return argc < 2 ? 0 : 2;
}
