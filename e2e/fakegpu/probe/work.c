/* cudaprobe: programs that keep a card busy for a while. */
#include <stdio.h>
#include <string.h>

#include "probe.h"

enum { TIMES = 16 };

CUresult probe_work(const char *arg)
{
	char how[16] = "", list[128] = "", *next = list;
	const char *last = strrchr(arg, ':');
	uint64_t times[TIMES], stall = 0;
	CUgraphExec graphs[TIMES] = { NULL };
	unsigned n = 0;
	unsigned long launches = 0;
	CUresult r = probe_load_spin();

	if (sscanf(arg, "%15[^:]:%127[^:]:", how, list) != 2 || !last)
		return CUDA_ERROR_INVALID_VALUE;
	for (char *one; (one = strsep(&next, ",")) && n < TIMES; n++) {
		times[n] = probe_time(one);
		if (!r && !strcmp(how, "graph"))
			r = probe_graph_of(times[n], &graphs[n]);
	}
	const uint64_t began = probe_now(), until = began + probe_time(last + 1);
	for (uint64_t now = began; !r && now < until; launches++) {
		r = probe_launch_one(how, times[launches % n], graphs[launches % n], NULL);
		const uint64_t then = probe_now();
		if (then - now > stall)
			stall = then - now;
		now = then;
	}
	if (!r)
		r = TRY(cuCtxSynchronize);
	printf(",\"kernels\":%lu,\"ms\":%.3f,\"stallMs\":%.3f", launches, (double)(probe_now() - began) / 1e6, (double)stall / 1e6);
	return r;
}

CUresult probe_capturing(const char *mode, unsigned long count)
{
	const CUstreamCaptureMode m = !strcmp(mode, "global") ? CU_STREAM_CAPTURE_MODE_GLOBAL :
				      !strcmp(mode, "local") ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_RELAXED;
	CUstream captured, beside;
	CUgraph g = NULL;
	CUgraphExec e;
	size_t nodes = 0;
	CUresult r = probe_load_spin();

	if (!r)
		r = TRY(cuStreamCreate, &captured, 1);
	if (!r)
		r = TRY(cuStreamCreate, &beside, 1);
	/* Known before, so that launches of it need not be looked at. */
	for (int i = 0; !r && i < 20; i++)
		r = probe_launch_one("launch", 1000000, NULL, captured);
	if (!r)
		r = TRY(cuStreamBeginCapture_v2, captured, m);
	for (unsigned long i = 0; !r && i < count; i++) {
		if (i % (count / 3 + 1) == 0)
			r = probe_launch_one("launch", 1000000, NULL, captured);
		if (!r)
			r = probe_launch_one("launch", 1000000, NULL, beside);
	}
	if (!r)
		r = TRY(cuStreamEndCapture, captured, &g);
	if (!r && g)
		r = TRY(cuGraphGetNodes, g, NULL, &nodes);
	if (!r)
		r = TRY(cuGraphInstantiateWithFlags, &e, g, 0);
	if (!r)
		r = TRY(cuGraphLaunch, e, captured);
	if (!r)
		r = TRY(cuCtxSynchronize);
	printf(",\"kernels\":%zu", nodes);
	return r;
}
