/* libcuda: stream capture.
 *
 * Capture follows the driver's rules for unsafe calls: while a capture of mode
 * GLOBAL is under way anywhere, or one of mode THREAD_LOCAL in this thread, a
 * call that could wait or allocate is refused and spoils the capture, unless
 * the thread has made itself RELAXED.
 */
#include "cuda_graph.h"

#include <stdlib.h>

static _Thread_local CUstreamCaptureMode thread_mode;
static _Thread_local char thread_id;

CUresult cu_capture_kernel(CUstream s, uint64_t ns)
{
	return cu_graph_add(s->capture, CU_GRAPH_NODE_TYPE_KERNEL, ns, NULL, NULL);
}

CUresult cu_capture_alloc(CUstream s, CUdeviceptr *ptr, size_t size)
{
	struct alloc *a;
	CUresult r = cu_graph_address(s->ctx->card, size, &a);

	if (!r)
		r = cu_graph_add(s->capture, CU_GRAPH_NODE_TYPE_MEM_ALLOC, 0, a, NULL);
	if (!r)
		*ptr = a->ptr;
	return r;
}

CUresult cu_capture_free(CUstream s, CUdeviceptr ptr)
{
	cu_lock();
	struct alloc *a = cu_map_find(ptr);
	cu_unlock();
	if (!a || a->kind != A_GRAPH || a->ptr != ptr)
		return CUDA_ERROR_INVALID_VALUE;
	return cu_graph_add(s->capture, CU_GRAPH_NODE_TYPE_MEM_FREE, 0, a, NULL);
}

CUresult cu_unsafe(void)
{
	bool refuse = false;

	if (!__atomic_load_n(&fg_p->captures, __ATOMIC_RELAXED) || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	cu_lock();
	for (struct CUstream_st *s = fg_p->streams; s; s = s->next) {
		struct CUgraph_st *g = s->capture;
		if (!g || g->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
			continue;
		if (g->thread == &thread_id ||
		    (g->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL)) {
			g->spoilt = true;
			refuse = true;
		}
	}
	cu_unlock();
	return refuse ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult cu_capture_spoil(CUstream s)
{
	s->capture->spoilt = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CU_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode old = thread_mode;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (!real)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* default streams cannot be captured */
	if (real->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	struct CUgraph_st *g = cu_graph_new();
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	g->mode = mode;
	g->thread = &thread_id;
	cu_lock();
	real->capture = g;
	real->capture_origin = true;
	__atomic_add_fetch(&fg_p->captures, 1, __ATOMIC_RELAXED);
	cu_unlock();
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamBeginCapture(CUstream s)
{
	return cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CU_API CUresult cuStreamEndCapture(CUstream s, CUgraph *out)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (!out || !real || !real->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	struct CUgraph_st *g = real->capture;
	if (!real->capture_origin)
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	if (g->mode != CU_STREAM_CAPTURE_MODE_RELAXED && g->thread != &thread_id)
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	cu_lock();
	for (struct CUstream_st *i = fg_p->streams; i; i = i->next)
		if (i->capture == g) {
			i->capture = NULL;
			i->capture_origin = false;
		}
	__atomic_sub_fetch(&fg_p->captures, 1, __ATOMIC_RELAXED);
	cu_unlock();
	*out = g;
	if (g->spoilt) {
		*out = NULL;
		cuGraphDestroy(g);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, CUstreamCaptureMode mode)
{
	return cuStreamBeginCapture_v2(s ? s : CU_STREAM_PER_THREAD, mode);
}

CU_API CUresult cuStreamBeginCapture_ptsz(CUstream s)
{
	return cuStreamBeginCapture(s ? s : CU_STREAM_PER_THREAD);
}

CU_API CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *out)
{
	return cuStreamEndCapture(s ? s : CU_STREAM_PER_THREAD, out);
}

static CUresult capture_state(CUstream s, CUstreamCaptureStatus *status, CUgraph *graph)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	CUgraph g = real ? real->capture : NULL;
	*status = !g ? CU_STREAM_CAPTURE_STATUS_NONE : g->spoilt ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	if (graph)
		*graph = g;
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status)
{
	return capture_state(s, status, NULL);
}

CU_API CUresult cuStreamIsCapturing_ptsz(CUstream s, CUstreamCaptureStatus *status)
{
	return capture_state(s ? s : CU_STREAM_PER_THREAD, status, NULL);
}

CU_API CUresult cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
					  const CUgraphNode **deps, size_t *n)
{
	CUgraph g = NULL;
	CUresult r = capture_state(s, status, &g);

	if (r)
		return r;
	if (id)
		*id = (cuuint64_t)(uintptr_t)g;
	if (graph)
		*graph = g;
	if (deps)
		*deps = NULL;
	if (n)
		*n = 0;
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
					       const CUgraphNode **deps, size_t *n)
{
	return cuStreamGetCaptureInfo_v2(s ? s : CU_STREAM_PER_THREAD, status, id, graph, deps, n);
}

CU_API CUresult cuStreamGetCaptureInfo_v3(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
					  const CUgraphNode **deps, const void **edges, size_t *n)
{
	if (edges)
		*edges = NULL;
	return cuStreamGetCaptureInfo_v2(s, status, id, graph, deps, n);
}

CU_API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
					       const CUgraphNode **deps, const void **edges, size_t *n)
{
	return cuStreamGetCaptureInfo_v3(s ? s : CU_STREAM_PER_THREAD, status, id, graph, deps, edges, n);
}

CU_API CUresult cuStreamGetCaptureInfo(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return cuStreamGetCaptureInfo_v2(s, status, id, NULL, NULL, NULL);
}
