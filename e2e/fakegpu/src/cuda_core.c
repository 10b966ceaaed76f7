/* libcuda: initialisation, devices, contexts. */
#include "cuda.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

struct process *fg_p;

/* A thread's stack of contexts. It names the attachment that it belongs to:
 * in a forked child it is void. */
static _Thread_local struct {
	word client;
	int depth;
	CUcontext ctx[16];
} tls;

void cu_lock(void)
{
	pthread_mutex_lock(&fg_p->mu);
}

void cu_unlock(void)
{
	pthread_mutex_unlock(&fg_p->mu);
}

CUresult cu_ready(void)
{
	return fg_p && fg_p->up ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* ---- visible devices ---- */

static int find_by_uuid(const struct fg *f, const int *cards, int n, const char *prefix, size_t len)
{
	int found = -1;

	for (int i = 0; i < n; i++)
		if (!strncasecmp(f->node.card[cards[i]].uuid, prefix, len)) {
			if (found >= 0)
				return -1; /* ambiguous */
			found = cards[i];
		}
	return found;
}

/* CUDA_VISIBLE_DEVICES: the list ends at its first entry that names no card;
 * a card named twice makes the whole list invalid. */
static int choose_devices(const struct fg *f, int *out)
{
	const char *env = getenv("CUDA_VISIBLE_DEVICES");
	int cards[FG_MAX_CARDS], n = 0, got = 0;

	for (int i = 0; i < f->node.cards; i++)
		if (fg_visible(f, i))
			cards[n++] = i;
	if (!env) {
		memcpy(out, cards, sizeof cards);
		return n;
	}
	while (*env) {
		while (isspace((unsigned char)*env))
			env++;
		size_t len = strcspn(env, ", \t");
		int card = -1;
		if (isdigit((unsigned char)*env)) {
			long index = strtol(env, NULL, 10);
			card = index < n ? cards[index] : -1;
		} else if (len > 4 && !strncasecmp(env, "GPU-", 4)) {
			card = find_by_uuid(f, cards, n, env, len);
		}
		if (card < 0)
			return got;
		for (int i = 0; i < got; i++)
			if (out[i] == card)
				return 0;
		out[got++] = card;
		env += len;
		env += strcspn(env, ",");
		if (*env)
			env++;
		if (got == FG_MAX_CARDS)
			break;
	}
	return got;
}

/* ---- initialisation ---- */

static struct process *page(void)
{
	struct process *p = __atomic_load_n(&fg_p, __ATOMIC_ACQUIRE), *none = NULL;

	if (p)
		return p;
	p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, sizeof *p, MADV_WIPEONFORK);
	if (!__atomic_compare_exchange_n(&fg_p, &none, p, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		munmap(p, sizeof *p);
		p = none;
	}
	return p;
}

static CUresult start(struct process *p)
{
	struct fg_faults faults;
	char why[512];

	if (!fg_open(&p->fg, why, sizeof why)) {
		if (getenv("FAKEGPU_DEBUG"))
			fprintf(stderr, "fakegpu: %s\n", why);
		return CUDA_ERROR_NO_DEVICE;
	}
	fg_faults_read(p->fg.dir, &faults);
	if (faults.unloaded)
		return CUDA_ERROR_NO_DEVICE;
	p->devices = choose_devices(&p->fg, p->card_of);
	if (!p->devices)
		return CUDA_ERROR_NO_DEVICE;
	for (int i = 0; i < p->devices; i++)
		if (faults.lost[p->card_of[i]])
			return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (!fg_attach(&p->fg, FG_COMPUTE))
		return CUDA_ERROR_OPERATING_SYSTEM;
	p->next_id = 1;
	__atomic_store_n(&p->up, true, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

CU_API CUresult cuInit(unsigned int flags)
{
	struct process *p = page();
	CUresult r = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cu_lock();
	if (!p->up)
		r = start(p);
	cu_unlock();
	return r;
}

/* Needs no cuInit: then the node file is asked. */
CUresult cu_driver_version(int *version)
{
	static int cached;
	const char *dir = getenv("FAKEGPU_DIR");
	char why[512], path[300];
	struct fg_node_desc n;

	if (!cached) {
		snprintf(path, sizeof path, "%s/node", dir && *dir ? dir : "/run/fakegpu");
		cached = fg_node_read(path, &n, why, sizeof why) ? n.cuda : FG_CUDA_VERSION;
	}
	*version = cached;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDriverGetVersion(int *version)
{
	return version ? cu_driver_version(version) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- devices ---- */

CUresult cu_device_card(CUdevice dev, int *card)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (dev < 0 || dev >= fg_p->devices)
		return CUDA_ERROR_INVALID_DEVICE;
	*card = fg_p->card_of[dev];
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetCount(int *count)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = fg_p->devices;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
	int card;
	CUresult r = cu_device_card(ordinal, &card);

	if (r)
		return r;
	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	*dev = ordinal;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)len, "%s", fg_p->fg.node.card[card].name);
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = fg_usable(&fg_p->fg.node.card[card]);
	return CUDA_SUCCESS;
}

/* The 32-bit form of 2008 says at most 4 GiB. */
CU_API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	size_t full;
	CUresult r = cuDeviceTotalMem_v2(&full, dev);

	if (r)
		return r;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = full > UINT32_MAX ? UINT32_MAX : (unsigned)full;
	return CUDA_SUCCESS;
}

static int hex(char c)
{
	return isdigit((unsigned char)c) ? c - '0' : (tolower((unsigned char)c) - 'a' + 10) & 15;
}

CU_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	int card, at = 0;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memset(uuid, 0, sizeof *uuid);
	for (const char *c = fg_p->fg.node.card[card].uuid + 4; *c && at < 32; c++)
		if (isxdigit((unsigned char)*c)) {
			uuid->bytes[at / 2] = (char)(uuid->bytes[at / 2] << 4 | hex(*c));
			at++;
		}
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	return cuDeviceGetUuid_v2(uuid, dev);
}

CU_API CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!id || len < 13)
		return CUDA_ERROR_INVALID_VALUE;
	/* CUDA spells the domain with four digits, NVML with eight. */
	snprintf(id, (size_t)len, "%s", fg_p->fg.node.card[card].pci + 4);
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!dev || !id)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < fg_p->devices; i++) {
		const char *pci = fg_p->fg.node.card[fg_p->card_of[i]].pci;
		if (!strcasecmp(pci, id) || !strcasecmp(pci + 4, id)) {
			*dev = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CU_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = fg_p->fg.node.card[card].cc_major;
	*minor = fg_p->fg.node.card[card].cc_minor;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
	int card;
	unsigned domain = 0, bus = 0, device = 0;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	const struct fg_card_desc *d = &fg_p->fg.node.card[card];
	sscanf(d->pci, "%x:%x:%x", &domain, &bus, &device);
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: *value = 1024; break;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 2147483647; break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: *value = 65535; break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 49152; break;
	case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: *value = 65536; break;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
	case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = d->sm_clock * 1000; break;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = d->sms; break;
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = (int)bus; break;
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: *value = (int)device; break;
	case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = (int)domain; break;
	case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = d->mem_clock * 1000; break;
	case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = d->bus_width; break;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 40 << 20; break;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = d->cc_major == 7 ? 1024 : d->cc_major == 8 && d->cc_minor ? 1536 : 2048; break;
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 3; break;
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = d->cc_major; break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = d->cc_minor; break;
	case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 167936; break;
	case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
	default:
		if ((int)attribute < 1 || (int)attribute > 150)
			return CUDA_ERROR_INVALID_VALUE;
		*value = 0; /* a feature that the card does not have */
	}
	return CUDA_SUCCESS;
}

/* ---- contexts ---- */

bool cu_ctx_valid(CUcontext ctx)
{
	for (struct CUctx_st *c = fg_p->ctxs; c; c = c->next)
		if (c == ctx)
			return c->alive;
	return false;
}

static int depth(void)
{
	if (tls.client != fg_p->fg.client) {
		tls.client = fg_p->fg.client;
		tls.depth = 0;
	}
	return tls.depth;
}

CUresult cu_current(CUcontext *ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!depth() || !tls.ctx[tls.depth - 1])
		return CUDA_ERROR_INVALID_CONTEXT;
	*ctx = tls.ctx[tls.depth - 1];
	return (*ctx)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult push(CUcontext ctx)
{
	if (depth() == (int)(sizeof tls.ctx / sizeof tls.ctx[0]))
		return CUDA_ERROR_INVALID_CONTEXT;
	tls.ctx[tls.depth++] = ctx;
	return CUDA_SUCCESS;
}

/* Gives life to c: the card pays for it. Under the process lock. */
static CUresult bring_up(struct CUctx_st *c)
{
	struct fg_faults faults;

	fg_faults_read(fg_p->fg.dir, &faults);
	if (faults.unloaded || faults.lost[c->card])
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (!fg_mem_take(&fg_p->fg, c->card, fg_p->fg.node.context_bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	fg_contexts_add(&fg_p->fg, c->card, 1);
	c->overhead = fg_p->fg.node.context_bytes;
	c->id = fg_p->next_id++;
	c->alive = true;
	return CUDA_SUCCESS;
}

/* Ends c and all that is its own. Under the process lock. */
static void take_down(struct CUctx_st *c)
{
	cu_streams_end(c);
	cu_allocs_end(c);
	cu_arrays_end(c);
	cu_modules_end(c);
	fg_mem_give(&fg_p->fg, c->card, c->overhead);
	fg_contexts_add(&fg_p->fg, c->card, -1);
	c->overhead = 0;
	c->alive = false;
	c->refs = 0;
}

static struct CUctx_st *new_ctx(CUdevice dev, int card, unsigned flags)
{
	struct CUctx_st *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	c->magic = M_CTX;
	c->device = dev;
	c->card = card;
	c->flags = flags;
	c->next = fg_p->ctxs;
	fg_p->ctxs = c;
	return c;
}

CU_API CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	struct CUctx_st *c = new_ctx(dev, card, flags);
	r = c ? bring_up(c) : CUDA_ERROR_OUT_OF_MEMORY;
	cu_unlock();
	if (r)
		return r;
	*ctx = c;
	return push(c);
}

CU_API CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	return cuCtxCreate_v2(ctx, flags, dev);
}

CU_API CUresult cuCtxCreate_v3(CUcontext *ctx, void *affinity, int n, unsigned int flags, CUdevice dev)
{
	(void)affinity;
	return n < 0 ? CUDA_ERROR_INVALID_VALUE : cuCtxCreate_v2(ctx, flags, dev);
}

CU_API CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
	(void)params;
	return cuCtxCreate_v2(ctx, flags, dev);
}

CU_API CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	if (!ctx || !cu_ctx_valid(ctx) || ctx->primary) {
		cu_unlock();
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	cu_unlock();
	cu_drain(ctx->card);
	cu_lock();
	if (ctx->alive)
		take_down(ctx);
	cu_unlock();
	if (depth() && tls.ctx[tls.depth - 1] == ctx)
		tls.depth--;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxDestroy(CUcontext ctx)
{
	return cuCtxDestroy_v2(ctx);
}

CU_API CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	cu_lock();
	bool ok = ctx && cu_ctx_valid(ctx);
	cu_unlock();
	return ok ? push(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

CU_API CUresult cuCtxPushCurrent(CUcontext ctx)
{
	return cuCtxPushCurrent_v2(ctx);
}

CU_API CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!depth())
		return CUDA_ERROR_INVALID_CONTEXT;
	tls.depth--;
	if (ctx)
		*ctx = tls.ctx[tls.depth];
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxPopCurrent(CUcontext *ctx)
{
	return cuCtxPopCurrent_v2(ctx);
}

CU_API CUresult cuCtxSetCurrent(CUcontext ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!ctx) {
		if (depth())
			tls.depth--;
		return CUDA_SUCCESS;
	}
	cu_lock();
	bool ok = cu_ctx_valid(ctx);
	cu_unlock();
	if (!ok)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!depth())
		return push(ctx);
	tls.ctx[tls.depth - 1] = ctx;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	*ctx = depth() ? tls.ctx[tls.depth - 1] : NULL;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetDevice(CUdevice *dev)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	*dev = c->device;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetFlags(unsigned int *flags)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = c->flags;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
	CUresult r = ctx ? cu_ready() : cu_current(&ctx);

	if (r)
		return r;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = ctx->id;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
	CUresult r = ctx ? cu_ready() : cu_current(&ctx);

	if (r)
		return r;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 3020;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	CUcontext c;

	(void)limit;
	(void)value;
	return cu_current(&c);
}

CU_API CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	*value = limit == CU_LIMIT_STACK_SIZE ? 1024 : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? 1 << 20 : 8 << 20;
	return CUDA_SUCCESS;
}

void cu_drain(int card)
{
	struct fg *f = &fg_p->fg;

	/* Marks only grow, so a marker queued now is behind all earlier work. */
	fg_wait(f, card, fg_submit(f, card, 0, 0));
	cu_pools_synced(card);
}

CU_API CUresult cuCtxSynchronize(void)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (!r)
		r = cu_unsafe();
	if (r)
		return r;
	cu_drain(c->card);
	return CUDA_SUCCESS;
}

/* ---- primary contexts ---- */

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
		c = fg_p->primary[dev] = new_ctx(dev, card, 0);
		if (c)
			c->primary = true;
	}
	if (!c)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	else if (!c->alive)
		r = bring_up(c);
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
		take_down(c);
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
		fg_p->primary[dev] = new_ctx(dev, card, flags);
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
