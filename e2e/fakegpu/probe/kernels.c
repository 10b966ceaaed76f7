/* cudaprobe: kernels, events, captures. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "probe.h"

static CUfunction spin;

void probe_unload(void)
{
	spin = NULL;
}

CUresult probe_load_spin(void)
{
	static const char image[] = "fakegpu module\nspin param\n";
	CUmodule m;
	CUresult r = spin ? CUDA_SUCCESS : TRY(cuModuleLoadData, &m, image);

	if (!r && !spin)
		r = TRY(cuModuleGetFunction, &spin, m, "spin");
	return r;
}

CUresult probe_launch_one(const char *how, uint64_t ns, CUgraphExec graph, CUstream stream)
{
	void *params[] = { &ns };

	if (!strcmp(how, "launchex")) {
		const CUlaunchConfig c = { 1, 1, 1, 32, 1, 1, 0, stream, NULL, 0 };
		return TRY(cuLaunchKernelEx, &c, spin, params, NULL);
	}
	if (!strcmp(how, "coop"))
		return TRY(cuLaunchCooperativeKernel, spin, 1, 1, 1, 32, 1, 1, 0, stream, params);
	if (graph)
		return TRY(cuGraphLaunch, graph, stream);
	return TRY(cuLaunchKernel, spin, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

CUresult probe_graph_of(uint64_t ns, CUgraphExec *e)
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

CUresult probe_launches(const char *how, uint64_t ns, unsigned long count)
{
	CUgraphExec e = NULL;
	uint64_t began = probe_now();
	CUresult r = probe_load_spin();

	if (!r && !strcmp(how, "graph"))
		r = probe_graph_of(ns, &e);
	for (unsigned long i = 0; !r && i < count; i++)
		r = probe_launch_one(how, ns, e, NULL);
	const uint64_t queued = probe_now() - began;
	if (!r)
		r = TRY(cuCtxSynchronize);
	printf(",\"kernels\":%lu,\"queuedMs\":%.3f,\"ms\":%.3f", count, (double)queued / 1e6, (double)(probe_now() - began) / 1e6);
	return r;
}

CUresult probe_busy(uint64_t ns, uint64_t duration)
{
	const uint64_t began = probe_now();
	unsigned long n = 0;
	CUresult r = probe_load_spin();

	while (!r && probe_now() - began < duration) {
		r = probe_launch_one("launch", ns, NULL, NULL);
		n++;
	}
	if (!r)
		r = TRY(cuCtxSynchronize);
	const uint64_t took = probe_now() - began;
	printf(",\"kernels\":%lu,\"ms\":%.3f,\"share\":%.4f", n, (double)took / 1e6, (double)n * (double)ns / (double)took);
	return r;
}

CUresult probe_timed(uint64_t ns)
{
	CUevent a, b;
	float ms = 0;
	CUresult r = probe_load_spin();

	if (!r)
		r = TRY(cuEventCreate, &a, 0);
	if (!r)
		r = TRY(cuEventCreate, &b, 0);
	if (!r)
		r = TRY(cuEventRecord, a, NULL);
	if (!r)
		r = probe_launch_one("launch", ns, NULL, NULL);
	if (!r)
		r = TRY(cuEventRecord, b, NULL);
	if (!r)
		r = TRY(cuEventSynchronize, b);
	if (!r)
		r = TRY(cuEventElapsedTime, &ms, a, b);
	printf(",\"eventMs\":%.3f", (double)ms);
	return r;
}

CUresult probe_churn(uint64_t duration)
{
	static const char *const kinds[] = { "alloc", "managed", "async", "vmm", "array" };
	const uint64_t began = probe_now();
	unsigned seed = (unsigned)(began ^ (uint64_t)getpid());
	unsigned long n = 0;
	CUresult r = probe_load_spin();

	for (; !r && probe_now() - began < duration; n++) {
		const unsigned dice = (unsigned)rand_r(&seed);
		if (dice % 3 == 0)
			r = probe_launch_one("launch", dice / 3 % 50000, NULL, NULL);
		else if (dice % 3 == 1 && probe_held())
			r = probe_give_last();
		else
			r = probe_take(kinds[dice / 3 % 5], (1 + dice / 15 % 64) << 21);
		if (r == CUDA_ERROR_OUT_OF_MEMORY)
			r = probe_held() ? probe_give_last() : CUDA_SUCCESS;
	}
	printf(",\"kernels\":%lu", n);
	return r;
}

CUresult probe_capture(const char *mode)
{
	const CUstreamCaptureMode m = !strcmp(mode, "global") ? CU_STREAM_CAPTURE_MODE_GLOBAL :
				      !strcmp(mode, "local") ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_RELAXED;
	uint64_t ns = 1000;
	void *params[] = { &ns };
	CUstream s;
	CUgraph g = NULL;
	CUdeviceptr p;
	CUresult r = probe_load_spin();

	if (!r)
		r = TRY(cuStreamCreate, &s, 1);
	if (!r)
		r = TRY(cuStreamBeginCapture_v2, s, m);
	if (!r)
		r = TRY(cuLaunchKernel, spin, 1, 1, 1, 32, 1, 1, 0, s, params, NULL);
	if (r)
		return r;
	printf(",\"during\":\"%s\"", probe_name(TRY(cuMemAlloc_v2, &p, 1 << 20)));
	r = TRY(cuStreamEndCapture, s, &g);
	printf(",\"graph\":%s", g ? "true" : "false");
	return r;
}
