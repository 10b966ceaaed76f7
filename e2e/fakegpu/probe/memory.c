/* cudaprobe: the families of memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

enum held_kind { H_LINEAR, H_ASYNC, H_VMM, H_ARRAY, H_MIPMAP, H_GRAPH };

struct held {
	enum held_kind kind;
	uint64_t what, handle, size;
};

static struct held *held;
static size_t held_n, held_max;

static void hold_on(enum held_kind kind, uint64_t what, uint64_t handle, uint64_t size)
{
	if (held_n == held_max) {
		held_max = held_max ? 2 * held_max : 64;
		held = realloc(held, held_max * sizeof *held);
		if (!held)
			exit(3);
	}
	held[held_n++] = (struct held){ kind, what, handle, size };
}

size_t probe_held(void)
{
	return held_n;
}

void probe_forget(void)
{
	held_n = 0;
}

static CUresult pooled(CUdeviceptr *p, uint64_t size)
{
	static CUmemoryPool pool;
	const CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				       .location = { CU_MEM_LOCATION_TYPE_DEVICE, probe_device } };
	CUresult r = pool ? CUDA_SUCCESS : TRY(cuMemPoolCreate, &pool, &props);

	return r ? r : TRY(cuMemAllocFromPoolAsync, p, size, pool, NULL);
}

static CUresult virtual(uint64_t size)
{
	const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location = { CU_MEM_LOCATION_TYPE_DEVICE, probe_device } };
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;
	CUresult r = TRY(cuMemCreate, &h, size, &prop, 0);

	if (r)
		return r;
	r = TRY(cuMemAddressReserve, &p, size, 0, 0, 0);
	if (!r)
		r = TRY(cuMemMap, p, size, 0, h, 0);
	if (r)
		cu.cuMemRelease(h);
	else
		hold_on(H_VMM, p, h, size);
	return r;
}

static CUresult opaque(uint64_t size, bool mipmap)
{
	const CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 16384, .Height = size / 65536 ? size / 65536 : 1,
					    .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1 };
	CUarray a;
	CUmipmappedArray m;
	CUresult r = mipmap ? TRY(cuMipmappedArrayCreate, &m, &d, 1) : TRY(cuArray3DCreate_v2, &a, &d);

	if (!r)
		hold_on(mipmap ? H_MIPMAP : H_ARRAY, mipmap ? (uintptr_t)m : (uintptr_t)a, 0, size);
	return r;
}

static CUresult graph_memory(uint64_t size)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = { .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
							.location = { CU_MEM_LOCATION_TYPE_DEVICE, probe_device } },
					 .bytesize = size };
	CUgraph g;
	CUgraphNode n;
	CUgraphExec e = NULL;
	CUresult r = TRY(cuGraphCreate, &g, 0);

	if (r)
		return r;
	r = TRY(cuGraphAddMemAllocNode, &n, g, NULL, 0, &p);
	if (!r)
		r = TRY(cuGraphInstantiateWithFlags, &e, g, 0);
	if (!r)
		r = TRY(cuGraphLaunch, e, NULL);
	cu.cuGraphDestroy(g);
	if (!r)
		hold_on(H_GRAPH, p.dptr, (uintptr_t)e, size);
	else if (e)
		cu.cuGraphExecDestroy(e);
	return r;
}

CUresult probe_take(const char *name, uint64_t size)
{
	CUdeviceptr p = 0;
	CUdeviceptr_v1 low = 0;
	void *host;
	size_t pitch;
	enum held_kind kind = H_LINEAR;
	CUresult r;

	if (!strcmp(name, "alloc")) {
		r = TRY(cuMemAlloc_v2, &p, size);
	} else if (!strcmp(name, "alloc32")) {
		r = TRY(cuMemAlloc, &low, (unsigned)size);
		p = low;
	} else if (!strcmp(name, "pitch")) {
		r = TRY(cuMemAllocPitch_v2, &p, &pitch, 65536, size / 65536 ? size / 65536 : 1, 4);
	} else if (!strcmp(name, "managed")) {
		r = TRY(cuMemAllocManaged, &p, size, CU_MEM_ATTACH_GLOBAL);
	} else if (!strcmp(name, "async")) {
		kind = H_ASYNC;
		r = TRY(cuMemAllocAsync, &p, size, NULL);
	} else if (!strcmp(name, "pool")) {
		kind = H_ASYNC;
		r = pooled(&p, size);
	} else if (!strcmp(name, "vmm")) {
		return virtual(size);
	} else if (!strcmp(name, "array") || !strcmp(name, "mipmap")) {
		return opaque(size, *name == 'm');
	} else if (!strcmp(name, "graphmem")) {
		return graph_memory(size);
	} else if (!strcmp(name, "host")) {
		return TRY(cuMemHostAlloc, &host, size, 0);
	} else {
		static const CUuuid id = { "fakegpu-direct!" };
		const struct { size_t size; CUresult (*alloc)(CUdeviceptr *, size_t); } *table;
		const void *at;
		r = TRY(cuGetExportTable, &at, &id);
		table = at;
		if (!r)
			r = table->alloc(&p, size);
	}
	if (!r)
		hold_on(kind, p, 0, size);
	return r;
}

CUresult probe_give_last(void)
{
	struct held h = held[--held_n];
	CUresult r;

	switch (h.kind) {
	case H_ASYNC: return TRY(cuMemFreeAsync, h.what, NULL);
	case H_ARRAY: return TRY(cuArrayDestroy, (CUarray)(uintptr_t)h.what);
	case H_MIPMAP: return TRY(cuMipmappedArrayDestroy, (CUmipmappedArray)(uintptr_t)h.what);
	case H_VMM:
		r = TRY(cuMemUnmap, h.what, h.size);
		return r ? r : TRY(cuMemRelease, h.handle);
	case H_GRAPH:
		r = TRY(cuMemFree_v2, h.what);
		if (!r)
			r = TRY(cuGraphExecDestroy, (CUgraphExec)(uintptr_t)h.handle);
		return r ? r : TRY(cuDeviceGraphMemTrim, probe_device);
	default: return TRY(cuMemFree_v2, h.what);
	}
}

CUresult probe_until_oom(uint64_t piece)
{
	uint64_t sum = 0;
	CUresult r;

	while ((r = probe_take("alloc", piece)) == CUDA_SUCCESS)
		sum += piece;
	printf(",\"bytes\":%llu", (unsigned long long)sum);
	return r;
}
