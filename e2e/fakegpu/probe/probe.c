/* cudaprobe: a CUDA program for tests and demonstrations.
 *
 *   cudaprobe [--via WAY] [--lib FILE] [--device N] [--version N] [--per-thread]
 *             [--clear-env] STEP...
 *
 * Runs the steps in order and prints one JSON object for each: the step, the
 * result's name, what it is about, and what the driver then says is free. A
 * step is NAME[:ARGUMENT][*COUNT][=RESULT]; with =RESULT (without the prefix
 * CUDA_ERROR_) another result makes the exit code 1. Sizes know Ki Mi Gi,
 * durations ns us ms s.
 *
 *   info                 device name, uuid, count, total memory, driver version
 *   meminfo              cuMemGetInfo
 *   alloc:SIZE           cuMemAlloc_v2      alloc32:SIZE    cuMemAlloc (32-bit)
 *   pitch:SIZE           cuMemAllocPitch    managed:SIZE    cuMemAllocManaged
 *   async:SIZE           cuMemAllocAsync    pool:SIZE       cuMemAllocFromPoolAsync
 *   vmm:SIZE             cuMemCreate + Reserve + Map        host:SIZE
 *   array:SIZE           cuArray3DCreate    mipmap:SIZE     cuMipmappedArrayCreate
 *   graphmem:SIZE        a graph with an allocation node, launched
 *   table:SIZE           through the driver's private table
 *   alloc-until-oom:SIZE allocates pieces until one is refused; says how many bytes
 *   free:all free:last   returns what the steps above took
 *   launch:TIME*N        N kernels of TIME; launchex, coop, graph likewise
 *   busy:TIME:FOR        kernels of TIME one after another for FOR
 *   event:TIME           one kernel between two events; says the time between
 *   churn:FOR            allocates, frees and launches at random for FOR
 *   proc:NAME:VERSION    what cuGetProcAddress gives: the exported symbol, the status
 *   capture:MODE         captures a launch (global, local, relaxed), tries an
 *                        allocation meanwhile, and ends the capture
 *   sync ctx release reset
 *   exec                 becomes a program that holds and uses no CUDA
 *   fork                 a child does cuInit and an allocation of 1 MiB
 *   sleep:TIME           hold-for:TIME      hold   until a signal
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "probe.h"

enum held_kind { H_LINEAR, H_ASYNC, H_VMM, H_ARRAY, H_MIPMAP, H_GRAPH };

struct held {
	enum held_kind kind;
	uint64_t what, handle, size;
};

static struct held *held;
static size_t held_n, held_max;
static CUdevice device;
static bool initialised, wrong;
static cuuint64_t proc_flags;
static CUfunction spin;

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

/* A function the driver lacks is a result of its own. */
#define TRY(name, ...) (cu.name ? cu.name(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND)

static const char *name_of(CUresult r)
{
	const char *n = NULL;

	if (!cu.cuGetErrorName || cu.cuGetErrorName(r, &n) || !n)
		n = r ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS";
	return n;
}

/* ---- arguments ---- */

static uint64_t number(const char *text, const char **rest)
{
	char *end;
	double v = strtod(text, &end);

	*rest = end;
	return (uint64_t)(v + 0.5);
}

static uint64_t size_arg(const char *text)
{
	const char *unit;
	const char *known[] = { "Ki", "Mi", "Gi", "Ti" };
	uint64_t v = number(text, &unit);

	for (int i = 0; i < 4; i++)
		if (!strncmp(unit, known[i], 2)) {
			char *end;
			return (uint64_t)(strtod(text, &end) * (double)(1ull << (10 * (i + 1))) + 0.5);
		}
	return v;
}

static uint64_t time_arg(const char *text)
{
	char *unit;
	double v = strtod(text, &unit);

	if (!strncmp(unit, "ns", 2))
		return (uint64_t)(v + 0.5);
	if (!strncmp(unit, "us", 2))
		return (uint64_t)(v * 1e3 + 0.5);
	if (!strncmp(unit, "ms", 2))
		return (uint64_t)(v * 1e6 + 0.5);
	return (uint64_t)(v * 1e9 + 0.5);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_ns(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* ---- steps ---- */

static CUresult start(void)
{
	CUcontext ctx;
	CUresult r = TRY(cuInit, 0);

	if (!r)
		r = TRY(cuDeviceGet, &device, device);
	if (!r)
		r = TRY(cuDevicePrimaryCtxRetain, &ctx, device);
	if (!r)
		r = TRY(cuCtxSetCurrent, ctx);
	initialised = !r;
	return r;
}

static CUresult info(void)
{
	char name[96] = "";
	CUuuid u = { { 0 } };
	size_t total = 0;
	int count = 0, version = 0;
	CUresult r = TRY(cuDeviceGetName, name, sizeof name, device);

	if (!r)
		r = TRY(cuDeviceGetUuid_v2, &u, device);
	if (!r)
		r = TRY(cuDeviceTotalMem_v2, &total, device);
	if (!r)
		r = TRY(cuDeviceGetCount, &count);
	if (!r)
		r = TRY(cuDriverGetVersion, &version);
	printf(",\"name\":\"%s\",\"uuid\":\"GPU-", name);
	for (int i = 0; i < 16; i++)
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)u.bytes[i]);
	printf("\",\"devices\":%d,\"deviceTotal\":%zu,\"cudaVersion\":%d", count, total, version);
	return r;
}

static CUresult pooled(CUdeviceptr *p, uint64_t size)
{
	static CUmemoryPool pool;
	const CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				       .location = { CU_MEM_LOCATION_TYPE_DEVICE, device } };
	CUresult r = pool ? CUDA_SUCCESS : TRY(cuMemPoolCreate, &pool, &props);

	return r ? r : TRY(cuMemAllocFromPoolAsync, p, size, pool, NULL);
}

static CUresult virtual(uint64_t size)
{
	const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location = { CU_MEM_LOCATION_TYPE_DEVICE, device } };
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
							.location = { CU_MEM_LOCATION_TYPE_DEVICE, device } },
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

static CUresult take(const char *name, uint64_t size)
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

static CUresult give_last(void)
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
		return r ? r : TRY(cuDeviceGraphMemTrim, device);
	default: return TRY(cuMemFree_v2, h.what);
	}
}

static CUresult until_oom(uint64_t piece)
{
	uint64_t sum = 0;
	CUresult r;

	while ((r = take("alloc", piece)) == CUDA_SUCCESS)
		sum += piece;
	printf(",\"bytes\":%llu", (unsigned long long)sum);
	return r;
}

static CUresult load_spin(void)
{
	static const char image[] = "fakegpu module\nspin param\n";
	CUmodule m;
	CUresult r = spin ? CUDA_SUCCESS : TRY(cuModuleLoadData, &m, image);

	if (!r && !spin)
		r = TRY(cuModuleGetFunction, &spin, m, "spin");
	return r;
}

static CUresult launch_one(const char *how, uint64_t ns, CUgraphExec graph)
{
	void *params[] = { &ns };

	if (!strcmp(how, "launchex")) {
		const CUlaunchConfig c = { 1, 1, 1, 32, 1, 1, 0, NULL, NULL, 0 };
		return TRY(cuLaunchKernelEx, &c, spin, params, NULL);
	}
	if (!strcmp(how, "coop"))
		return TRY(cuLaunchCooperativeKernel, spin, 1, 1, 1, 32, 1, 1, 0, NULL, params);
	if (graph)
		return TRY(cuGraphLaunch, graph, NULL);
	return TRY(cuLaunchKernel, spin, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL);
}

static CUresult graph_of(uint64_t ns, CUgraphExec *e)
{
	void *params[] = { &ns };
	CUDA_KERNEL_NODE_PARAMS_v2 k = { .func = spin, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32,
					 .blockDimY = 1, .blockDimZ = 1, .kernelParams = params };
	CUgraph g;
	CUgraphNode n;
	CUresult r = TRY(cuGraphCreate, &g, 0);

	if (!r)
		r = TRY(cuGraphAddKernelNode_v2, &n, g, NULL, 0, &k);
	if (!r)
		r = TRY(cuGraphInstantiateWithFlags, e, g, 0);
	return r;
}

static CUresult launches(const char *how, uint64_t ns, unsigned long count)
{
	CUgraphExec e = NULL;
	uint64_t began = now();
	CUresult r = load_spin();

	if (!r && !strcmp(how, "graph"))
		r = graph_of(ns, &e);
	for (unsigned long i = 0; !r && i < count; i++)
		r = launch_one(how, ns, e);
	const uint64_t queued = now() - began;
	if (!r)
		r = TRY(cuCtxSynchronize);
	printf(",\"kernels\":%lu,\"queuedMs\":%.3f,\"ms\":%.3f", count, (double)queued / 1e6, (double)(now() - began) / 1e6);
	return r;
}

static CUresult busy(uint64_t ns, uint64_t duration)
{
	const uint64_t began = now();
	unsigned long n = 0;
	CUresult r = load_spin();

	while (!r && now() - began < duration) {
		r = launch_one("launch", ns, NULL);
		n++;
	}
	if (!r)
		r = TRY(cuCtxSynchronize);
	const uint64_t took = now() - began;
	printf(",\"kernels\":%lu,\"ms\":%.3f,\"share\":%.4f", n, (double)took / 1e6, (double)n * (double)ns / (double)took);
	return r;
}

static CUresult timed(uint64_t ns)
{
	CUevent a, b;
	float ms = 0;
	CUresult r = load_spin();

	if (!r)
		r = TRY(cuEventCreate, &a, 0);
	if (!r)
		r = TRY(cuEventCreate, &b, 0);
	if (!r)
		r = TRY(cuEventRecord, a, NULL);
	if (!r)
		r = launch_one("launch", ns, NULL);
	if (!r)
		r = TRY(cuEventRecord, b, NULL);
	if (!r)
		r = TRY(cuEventSynchronize, b);
	if (!r)
		r = TRY(cuEventElapsedTime, &ms, a, b);
	printf(",\"eventMs\":%.3f", (double)ms);
	return r;
}

static CUresult churn(uint64_t duration)
{
	static const char *const kinds[] = { "alloc", "managed", "async", "vmm", "array" };
	const uint64_t began = now();
	unsigned seed = (unsigned)(began ^ (uint64_t)getpid());
	unsigned long n = 0;
	CUresult r = load_spin();

	for (; !r && now() - began < duration; n++) {
		const unsigned dice = (unsigned)rand_r(&seed);
		if (dice % 3 == 0)
			r = launch_one("launch", dice / 3 % 50000, NULL);
		else if (dice % 3 == 1 && held_n)
			r = give_last();
		else
			r = take(kinds[dice / 3 % 5], (1 + dice / 15 % 64) << 21);
		if (r == CUDA_ERROR_OUT_OF_MEMORY)
			r = held_n ? give_last() : CUDA_SUCCESS;
	}
	printf(",\"kernels\":%lu", n);
	return r;
}

static CUresult proc(const char *arg)
{
	char name[128];
	int version = 13000;
	void *at = NULL;
	Dl_info where = { 0 };
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;

	sscanf(arg, "%127[^:]:%d", name, &version);
	CUresult r = TRY(cuGetProcAddress_v2, name, &at, version, proc_flags, &status);
	if (at)
		dladdr(at, &where);
	printf(",\"symbol\":\"%s\",\"status\":%d", where.dli_sname ? where.dli_sname : "", (int)status);
	return r;
}

static CUresult capture(const char *mode)
{
	const CUstreamCaptureMode m = !strcmp(mode, "global") ? CU_STREAM_CAPTURE_MODE_GLOBAL :
				      !strcmp(mode, "local") ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_RELAXED;
	uint64_t ns = 1000;
	void *params[] = { &ns };
	CUstream s;
	CUgraph g = NULL;
	CUdeviceptr p;
	CUresult r = load_spin();

	if (!r)
		r = TRY(cuStreamCreate, &s, 1);
	if (!r)
		r = TRY(cuStreamBeginCapture_v2, s, m);
	if (!r)
		r = TRY(cuLaunchKernel, spin, 1, 1, 1, 32, 1, 1, 0, s, params, NULL);
	if (r)
		return r;
	printf(",\"during\":\"%s\"", name_of(TRY(cuMemAlloc_v2, &p, 1 << 20)));
	r = TRY(cuStreamEndCapture, s, &g);
	printf(",\"graph\":%s", g ? "true" : "false");
	return r;
}

/* What a forked child gets, before cuInit and after. */
static CUresult forked(void)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		CUdeviceptr p;
		if (TRY(cuMemAlloc_v2, &p, 1 << 20) != CUDA_ERROR_NOT_INITIALIZED)
			_exit(1);
		held_n = 0;
		CUresult r = start();
		if (!r)
			r = TRY(cuMemAlloc_v2, &p, 1 << 20);
		_exit(r > 255 ? 255 : (int)r);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return CUDA_ERROR_UNKNOWN;
	return (CUresult)WEXITSTATUS(status);
}

static CUresult run(const char *name, const char *arg, unsigned long count)
{
	static const char *const takes[] = { "alloc", "alloc32", "pitch", "managed", "async", "pool", "vmm", "array",
					     "mipmap", "graphmem", "table", "host" };
	static const char *const launch_ways[] = { "launch", "launchex", "coop", "graph" };
	CUcontext ctx;
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; i < sizeof takes / sizeof takes[0]; i++)
		if (!strcmp(name, takes[i])) {
			uint64_t size = size_arg(arg), sum = 0;
			for (unsigned long n = 0; n < count && !(r = take(name, size)); n++)
				sum += size;
			printf(",\"bytes\":%llu", (unsigned long long)sum);
			return r;
		}
	for (size_t i = 0; i < sizeof launch_ways / sizeof launch_ways[0]; i++)
		if (!strcmp(name, launch_ways[i]))
			return launches(name, time_arg(arg), count);
	if (!strcmp(name, "init"))
		return initialised ? CUDA_SUCCESS : start();
	if (!strcmp(name, "info"))
		return info();
	if (!strcmp(name, "meminfo"))
		return CUDA_SUCCESS;
	if (!strcmp(name, "alloc-until-oom"))
		return until_oom(size_arg(arg));
	if (!strcmp(name, "free")) {
		for (bool all = !strcmp(arg, "all"); held_n && !r; ) {
			r = give_last();
			if (!all)
				break;
		}
		return r ? r : TRY(cuCtxSynchronize);
	}
	if (!strcmp(name, "busy")) {
		const char *second = strchr(arg, ':');
		return busy(time_arg(arg), second ? time_arg(second + 1) : 1000000000u);
	}
	if (!strcmp(name, "churn"))
		return churn(time_arg(arg));
	if (!strcmp(name, "proc"))
		return proc(arg);
	if (!strcmp(name, "capture"))
		return capture(arg);
	if (!strcmp(name, "event"))
		return timed(time_arg(arg));
	if (!strcmp(name, "sync"))
		return TRY(cuCtxSynchronize);
	if (!strcmp(name, "ctx")) {
		for (unsigned long n = 0; n < count && !r; n++)
			r = TRY(cuCtxCreate_v2, &ctx, 0, device);
		return r;
	}
	if (!strcmp(name, "release") || !strcmp(name, "reset")) {
		r = *(name + 2) == 'l' ? TRY(cuDevicePrimaryCtxRelease_v2, device) : TRY(cuDevicePrimaryCtxReset_v2, device);
		held_n = 0;
		spin = NULL;
		return r;
	}
	if (!strcmp(name, "fork"))
		return forked();
	if (!strcmp(name, "exec")) {
		printf(",\"result\":\"\"}\n{\"step\":\"hold\"}\n");
		fflush(stdout);
		execl("/bin/sleep", "sleep", "1000000", (char *)NULL);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (!strcmp(name, "sleep") || !strcmp(name, "hold-for")) {
		fflush(stdout);
		sleep_ns(time_arg(arg));
		return CUDA_SUCCESS;
	}
	fprintf(stderr, "cudaprobe: no step \"%s\"\n", name);
	exit(2);
}

static void step(const char *text)
{
	char copy[256];
	size_t free_bytes = 0, total = 0;

	snprintf(copy, sizeof copy, "%s", text);
	char *expect = strchr(copy, '=');
	if (expect)
		*expect++ = '\0';
	char *times = strchr(copy, '*');
	if (times)
		*times++ = '\0';
	char *arg = strchr(copy, ':');
	if (arg)
		*arg++ = '\0';

	printf("{\"step\":\"%s\"", text);
	if (!strcmp(copy, "hold")) {
		printf("}\n");
		fflush(stdout);
		for (;;)
			pause();
	}
	CUresult r = initialised || !strcmp(copy, "init") ? CUDA_SUCCESS : start();
	if (!r)
		r = run(copy, arg ? arg : "", times ? strtoul(times, NULL, 10) : 1);
	const char *name = name_of(r);
	const char *bare = !strncmp(name, "CUDA_ERROR_", 11) ? name + 11 : !strncmp(name, "CUDA_", 5) ? name + 5 : name;
	printf(",\"result\":\"%s\"", name);
	if (initialised && TRY(cuMemGetInfo_v2, &free_bytes, &total) == CUDA_SUCCESS)
		printf(",\"free\":%zu,\"total\":%zu", free_bytes, total);
	if (expect && strcmp(expect, bare) && strcmp(expect, name)) {
		printf(",\"expected\":\"%s\"", expect);
		wrong = true;
	}
	printf("}\n");
	fflush(stdout);
}

/* Forgets the environment, except where a test's node is. */
static void clear_environment(void)
{
	const char *names[] = { "FAKEGPU_DIR", "FAKEGPU_DEV" };
	char *kept[2];

	for (int i = 0; i < 2; i++) {
		kept[i] = getenv(names[i]);
		kept[i] = kept[i] ? strdup(kept[i]) : NULL;
	}
	clearenv();
	for (int i = 0; i < 2; i++)
		if (kept[i])
			setenv(names[i], kept[i], 1);
}

int main(int argc, char **argv)
{
#ifdef PROBE_LINK
	const char *via = "link";
#else
	const char *via = "dlopen";
#endif
	const char *lib = NULL;
	int version = 13000, i;
	bool per_thread = false;

	/* Before the environment may be cleared: the loader needs it. */
	for (i = 1; i + 1 < argc; i++)
		if (!strcmp(argv[i], "--via") && !strcmp(argv[i + 1], "link"))
			probe_relink(argv);
	for (i = 1; i < argc && !strncmp(argv[i], "--", 2); i++) {
		if (!strcmp(argv[i], "--clear-env"))
			clear_environment();
		else if (!strcmp(argv[i], "--per-thread"))
			per_thread = true;
		else if (i + 1 < argc && !strcmp(argv[i], "--via"))
			via = argv[++i];
		else if (i + 1 < argc && !strcmp(argv[i], "--lib"))
			lib = argv[++i];
		else if (i + 1 < argc && !strcmp(argv[i], "--version"))
			version = atoi(argv[++i]);
		else if (i + 1 < argc && !strcmp(argv[i], "--device"))
			device = atoi(argv[++i]);
		else
			break;
	}
	if (i >= argc || !strncmp(argv[i], "--", 2)) {
		fprintf(stderr, "usage: cudaprobe [--via WAY] [--lib FILE] [--device N] [--version N] [--per-thread] [--clear-env] STEP...\n");
		return 2;
	}
	proc_flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_DEFAULT;
	if (!probe_resolve(via, lib, version, per_thread))
		return 3;
	for (; i < argc; i++)
		step(argv[i]);
	return wrong;
}
