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
 *   work:HOW:TIME,...:FOR  kernels of the times in turn, launched HOW (launch,
 *                        launchex, coop, graph), for FOR; says how many, and
 *                        the longest that a launch took
 *   capturing:MODE*N     captures three launches in one stream while N kernels of
 *                        1 ms run in another; says how many nodes the graph has
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

CUdevice probe_device;
static bool initialised, wrong;
static cuuint64_t proc_flags;

const char *probe_name(CUresult r)
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

uint64_t probe_size(const char *text)
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

uint64_t probe_time(const char *text)
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

uint64_t probe_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void probe_sleep(uint64_t ns)
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
		r = TRY(cuDeviceGet, &probe_device, probe_device);
	if (!r)
		r = TRY(cuDevicePrimaryCtxRetain, &ctx, probe_device);
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
	CUresult r = TRY(cuDeviceGetName, name, sizeof name, probe_device);

	if (!r)
		r = TRY(cuDeviceGetUuid_v2, &u, probe_device);
	if (!r)
		r = TRY(cuDeviceTotalMem_v2, &total, probe_device);
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
		probe_forget();
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
			uint64_t size = probe_size(arg), sum = 0;
			for (unsigned long n = 0; n < count && !(r = probe_take(name, size)); n++)
				sum += size;
			printf(",\"bytes\":%llu", (unsigned long long)sum);
			return r;
		}
	for (size_t i = 0; i < sizeof launch_ways / sizeof launch_ways[0]; i++)
		if (!strcmp(name, launch_ways[i]))
			return probe_launches(name, probe_time(arg), count);
	if (!strcmp(name, "init"))
		return initialised ? CUDA_SUCCESS : start();
	if (!strcmp(name, "info"))
		return info();
	if (!strcmp(name, "meminfo"))
		return CUDA_SUCCESS;
	if (!strcmp(name, "alloc-until-oom"))
		return probe_until_oom(probe_size(arg));
	if (!strcmp(name, "free")) {
		for (bool all = !strcmp(arg, "all"); probe_held() && !r; ) {
			r = probe_give_last();
			if (!all)
				break;
		}
		return r ? r : TRY(cuCtxSynchronize);
	}
	if (!strcmp(name, "busy")) {
		const char *second = strchr(arg, ':');
		return probe_busy(probe_time(arg), second ? probe_time(second + 1) : 1000000000u);
	}
	if (!strcmp(name, "work"))
		return probe_work(arg);
	if (!strcmp(name, "capturing"))
		return probe_capturing(arg, count);
	if (!strcmp(name, "churn"))
		return probe_churn(probe_time(arg));
	if (!strcmp(name, "proc"))
		return proc(arg);
	if (!strcmp(name, "capture"))
		return probe_capture(arg);
	if (!strcmp(name, "event"))
		return probe_timed(probe_time(arg));
	if (!strcmp(name, "sync"))
		return TRY(cuCtxSynchronize);
	if (!strcmp(name, "ctx")) {
		for (unsigned long n = 0; n < count && !r; n++)
			r = TRY(cuCtxCreate_v2, &ctx, 0, probe_device);
		return r;
	}
	if (!strcmp(name, "release") || !strcmp(name, "reset")) {
		r = *(name + 2) == 'l' ? TRY(cuDevicePrimaryCtxRelease_v2, probe_device) : TRY(cuDevicePrimaryCtxReset_v2, probe_device);
		probe_forget();
		probe_unload();
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
		probe_sleep(probe_time(arg));
		return CUDA_SUCCESS;
	}
	fprintf(stderr, "cudaprobe: no step \"%s\"\n", name);
	exit(2);
}

static void leave(int signal_number)
{
	(void)signal_number;
	_exit(0);
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
		/* As process 1 of a container it would not end by itself. */
		signal(SIGTERM, leave);
		signal(SIGINT, leave);
		printf("}\n");
		fflush(stdout);
		for (;;)
			pause();
	}
	CUresult r = initialised || !strcmp(copy, "init") ? CUDA_SUCCESS : start();
	if (!r)
		r = run(copy, arg ? arg : "", times ? strtoul(times, NULL, 10) : 1);
	const char *name = probe_name(r);
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
			probe_device = atoi(argv[++i]);
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
