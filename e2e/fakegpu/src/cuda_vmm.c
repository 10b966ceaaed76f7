/* libcuda: virtual memory management.
 *
 * Physical memory (a handle) lives until its last reference and its last
 * mapping are gone. An exported handle is a memfd that carries a token; a
 * handle imported in the same process refers to the same memory, one imported
 * in another process costs that process nothing (the exporter pays, and when
 * it dies the memory is counted back although the importer may still map it:
 * that is how far the simulation goes).
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULE (2ull << 20)
#define RANGES 0x400000000000ull
#define RANGES_END 0x500000000000ull
#define BUCKETS 4096

struct phys {
	uint64_t handle;
	int card;              /* -1: host memory */
	uint64_t size, taken;
	int refs, mappings;
	uint64_t token;        /* not 0 once exported */
	CUmemAllocationProp prop;
	struct phys *next;
};

struct range {
	CUdeviceptr base;
	uint64_t size;
	struct range *next;
};

struct mapping {
	CUdeviceptr base;
	uint64_t size;
	struct phys *phys;
	struct mapping *next;
};

struct vmm {
	struct phys *phys[BUCKETS];      /* by handle */
	struct mapping *map[BUCKETS];    /* by first granule */
	struct range *ranges;
	CUdeviceptr next_range;
	uint64_t next_handle;
};

struct token {
	char kind[8];
	uint64_t client, handle, size;
	CUmemAllocationProp prop;
};

static struct vmm *vmm(void)
{
	if (!fg_p->vmm) {
		fg_p->vmm = calloc(1, sizeof *fg_p->vmm);
		if (fg_p->vmm) {
			fg_p->vmm->next_range = RANGES;
			fg_p->vmm->next_handle = 0x10000;
		}
	}
	return fg_p->vmm;
}

static unsigned bucket(uint64_t key)
{
	return (unsigned)(key * 0x9e3779b97f4a7c15ull >> 52);
}

static struct phys *find_phys(uint64_t handle)
{
	struct phys *p = fg_p->vmm ? fg_p->vmm->phys[bucket(handle)] : NULL;

	while (p && p->handle != handle)
		p = p->next;
	return p;
}

static struct mapping *find_mapping(CUdeviceptr base)
{
	struct mapping *m = fg_p->vmm ? fg_p->vmm->map[bucket(base)] : NULL;

	while (m && m->base != base)
		m = m->next;
	return m;
}

/* The mapping with the highest base that is not above ptr. */
static struct mapping *mapping_before(CUdeviceptr ptr)
{
	if (!fg_p->vmm || ptr >= fg_p->vmm->next_range)
		return NULL;
	for (CUdeviceptr at = ptr & ~(GRANULE - 1); at >= RANGES; at -= GRANULE) {
		struct mapping *m = find_mapping(at);
		if (m)
			return m;
	}
	return NULL;
}

static struct mapping *mapping_of(CUdeviceptr ptr)
{
	struct mapping *m = mapping_before(ptr);

	return m && ptr < m->base + m->size ? m : NULL;
}

static bool overlaps(CUdeviceptr ptr, uint64_t size)
{
	struct mapping *m = mapping_before(ptr + size - 1);

	return m && m->base + m->size > ptr;
}

bool cu_vmm_range(CUdeviceptr ptr, CUdeviceptr *base, size_t *size)
{
	struct mapping *m = mapping_of(ptr);

	if (!m)
		return false;
	if (base)
		*base = m->base;
	if (size)
		*size = m->size;
	return true;
}

int cu_vmm_card(CUdeviceptr ptr)
{
	struct mapping *m = mapping_of(ptr);

	return m ? m->phys->card : -1;
}

static CUresult check_prop(const CUmemAllocationProp *prop, int *card)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	*card = -1;
	switch (prop->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE: return cu_device_card(prop->location.id, card);
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
}

CU_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
	int card;
	CUresult r = cu_ready();

	(void)option;
	if (!r)
		r = check_prop(prop, &card);
	if (r)
		return r;
	if (!granularity)
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = GRANULE;
	return CUDA_SUCCESS;
}

static struct phys *add_phys(int card, uint64_t size, uint64_t taken, const CUmemAllocationProp *prop)
{
	struct vmm *v = vmm();
	struct phys *p = v ? calloc(1, sizeof *p) : NULL;

	if (!p)
		return NULL;
	p->handle = v->next_handle++;
	p->card = card;
	p->size = size;
	p->taken = taken;
	p->refs = 1;
	p->prop = *prop;
	p->next = v->phys[bucket(p->handle)];
	v->phys[bucket(p->handle)] = p;
	return p;
}

static void drop_if_unused(struct phys *p)
{
	struct phys **at = &fg_p->vmm->phys[bucket(p->handle)];

	if (p->refs || p->mappings)
		return;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (p->taken)
		fg_mem_give(&fg_p->fg, p->card, p->taken);
	free(p);
}

CU_API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	int card;
	struct phys *p;
	CUresult r = cu_ready();

	if (!r)
		r = check_prop(prop, &card);
	if (r)
		return r;
	if (!handle || flags || !size || size % GRANULE)
		return CUDA_ERROR_INVALID_VALUE;
	const uint64_t taken = card < 0 ? 0 : size;
	if (taken && !fg_mem_take(&fg_p->fg, card, taken))
		return CUDA_ERROR_OUT_OF_MEMORY;
	cu_lock();
	p = add_phys(card, size, taken, prop);
	cu_unlock();
	if (!p) {
		if (taken)
			fg_mem_give(&fg_p->fg, card, taken);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*handle = p->handle;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	struct phys *p = find_phys(handle);
	if (!p || !p->refs) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		p->refs--;
		drop_if_unused(p);
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	struct mapping *m = mapping_of((CUdeviceptr)(uintptr_t)addr);
	if (!m || !handle) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		m->phys->refs++;
		*handle = m->phys->handle;
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	struct phys *p = find_phys(handle);
	if (p && prop)
		*prop = p->prop;
	else
		r = CUDA_ERROR_INVALID_VALUE;
	cu_unlock();
	return r;
}

CU_API CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
	CUresult r = cu_ready();

	(void)addr; /* a wish only */
	if (r)
		return r;
	if (!ptr || !size || size % GRANULE || flags || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < GRANULE)
		alignment = GRANULE;
	cu_lock();
	struct vmm *v = vmm();
	struct range *g = v ? malloc(sizeof *g) : NULL;
	CUdeviceptr base = v ? (v->next_range + alignment - 1) & ~(CUdeviceptr)(alignment - 1) : 0;
	if (!g || base + size < base || base + size > RANGES_END) {
		free(g);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		g->base = base;
		g->size = size;
		g->next = v->ranges;
		v->ranges = g;
		v->next_range = base + size;
		*ptr = base;
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	r = CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	for (struct range **g = fg_p->vmm ? &fg_p->vmm->ranges : NULL; g && *g; g = &(*g)->next)
		if ((*g)->base == ptr && (*g)->size == size) {
			struct range *gone = *g;
			*g = gone->next;
			free(gone);
			r = CUDA_SUCCESS;
			break;
		}
	cu_unlock();
	return r;
}

static bool reserved(CUdeviceptr ptr, uint64_t size)
{
	for (struct range *g = fg_p->vmm ? fg_p->vmm->ranges : NULL; g; g = g->next)
		if (ptr >= g->base && ptr + size <= g->base + g->size)
			return true;
	return false;
}

CU_API CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!size || size % GRANULE || ptr % GRANULE || offset || flags)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	struct phys *p = find_phys(handle);
	struct mapping *m = NULL;
	if (!p || size > p->size || !reserved(ptr, size))
		r = CUDA_ERROR_INVALID_VALUE;
	else if (overlaps(ptr, size))
		r = CUDA_ERROR_ALREADY_MAPPED;
	else if (!(m = malloc(sizeof *m)))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (!r) {
		m->base = ptr;
		m->size = size;
		m->phys = p;
		m->next = fg_p->vmm->map[bucket(ptr)];
		fg_p->vmm->map[bucket(ptr)] = m;
		p->mappings++;
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult r = cu_ready();
	uint64_t covered = 0;

	if (r)
		return r;
	cu_lock();
	/* Only whole mappings, and all of the range. */
	for (struct mapping *m; covered < size && (m = find_mapping(ptr + covered)); )
		covered += m->size;
	if (covered != size || !size)
		r = CUDA_ERROR_INVALID_VALUE;
	for (uint64_t off = 0; !r && off < size; ) {
		struct mapping *m = find_mapping(ptr + off), **at = &fg_p->vmm->map[bucket(ptr + off)];
		while (*at != m)
			at = &(*at)->next;
		*at = m->next;
		off += m->size;
		m->phys->mappings--;
		drop_if_unused(m->phys);
		free(m);
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	if (!desc || !count || !size || !mapping_of(ptr) || !mapping_of(ptr + size - 1))
		r = CUDA_ERROR_INVALID_VALUE;
	cu_unlock();
	return r;
}

CU_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	*flags = mapping_of(ptr) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	cu_unlock();
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)
{
	struct token t = { .kind = "fgvmm" };
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	struct phys *p = find_phys(handle);
	if (!p || p->prop.requestedHandleTypes != type) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		t.client = fg_p->fg.client;
		t.handle = p->handle;
		t.size = p->size;
		t.prop = p->prop;
		int fd = memfd_create("fakegpu-mem", MFD_CLOEXEC);
		if (fd < 0 || write(fd, &t, sizeof t) != sizeof t)
			r = CUDA_ERROR_OPERATING_SYSTEM;
		else
			*(int *)out = fd;
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os, CUmemAllocationHandleType type)
{
	struct token t;
	struct phys *p;
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    pread((int)(intptr_t)os, &t, sizeof t, 0) != sizeof t || memcmp(t.kind, "fgvmm", 6))
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	if (t.client == fg_p->fg.client) {
		p = find_phys(t.handle);
		if (p)
			p->refs++;
	} else {
		int card = -1;
		p = check_prop(&t.prop, &card) ? NULL : add_phys(card, t.size, 0, &t.prop);
	}
	if (p)
		*handle = p->handle;
	else
		r = CUDA_ERROR_INVALID_VALUE;
	cu_unlock();
	return r;
}
