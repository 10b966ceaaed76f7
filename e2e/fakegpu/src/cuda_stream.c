/* libcuda: streams.
 *
 * A stream remembers the mark of its last work; it is idle once the queue is
 * done up to there. 
 */
#include "cuda.h"

#include <stdlib.h>

static bool builtin(CUstream s)
{
	return !s || s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD;
}

CUresult cu_stream(CUstream s, CUcontext *ctx, CUstream *real)
{
	*real = NULL;
	if (builtin(s))
		return cu_current(ctx);
	CUresult r = cu_ready();
	if (r)
		return r;
	if (s->magic != M_STREAM)
		return CUDA_ERROR_INVALID_HANDLE;
	*real = s;
	*ctx = s->ctx;
	return CUDA_SUCCESS;
}

static void raise_to(uint64_t *mark, uint64_t value)
{
	uint64_t old = __atomic_load_n(mark, __ATOMIC_RELAXED);

	while (old < value && !__atomic_compare_exchange_n(mark, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

void cu_stream_submitted(CUcontext ctx, CUstream real, uint64_t mark)
{
	raise_to(&ctx->mark, mark);
	if (real)
		raise_to(&real->mark, mark);
}

static CUresult create(CUstream *out, unsigned flags, int priority)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!out || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUstream_st *s = calloc(1, sizeof *s);
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->magic = M_STREAM;
	s->ctx = c;
	s->flags = flags;
	s->priority = priority;
	cu_lock();
	s->next = fg_p->streams;
	fg_p->streams = s;
	cu_unlock();
	*out = s;
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamCreate(CUstream *s, unsigned int flags)
{
	return create(s, flags, 0);
}

CU_API CUresult cuStreamCreateWithPriority(CUstream *s, unsigned int flags, int priority)
{
	return create(s, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
}

static void unlink_stream(CUstream s)
{
	for (struct CUstream_st **at = &fg_p->streams; *at; at = &(*at)->next)
		if (*at == s) {
			*at = s->next;
			return;
		}
}

CU_API CUresult cuStreamDestroy_v2(CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (!real)
		return CUDA_ERROR_INVALID_HANDLE;
	cu_lock();
	unlink_stream(s);
	s->magic = M_DEAD;
	cu_unlock();
	free(s);
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamDestroy(CUstream s)
{
	return cuStreamDestroy_v2(s);
}

void cu_streams_end(CUcontext ctx)
{
	/* The handles stay readable: a program may still (wrongly) name them. */
	for (struct CUstream_st **at = &fg_p->streams; *at; ) {
		struct CUstream_st *s = *at;
		if (s->ctx == ctx) {
			*at = s->next;
			s->magic = M_DEAD;
		} else {
			at = &s->next;
		}
	}
}

static CUresult synchronise(CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (real && real->capture)
		return cu_capture_spoil(real);
	if ((r = cu_unsafe()))
		return r;
	if (real) {
		fg_wait(&fg_p->fg, c->card, real->mark);
		cu_pools_synced(c->card);
	} else {
		cu_drain(c->card);
	}
	return cu_health(c->card);
}

static CUresult query(CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (real && real->capture)
		return cu_capture_spoil(real);
	if ((r = cu_unsafe()))
		return r;
	return fg_done(&fg_p->fg, c->card) >= (real ? real->mark : c->mark) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CU_API CUresult cuStreamSynchronize(CUstream s)
{
	return synchronise(s);
}

CU_API CUresult cuStreamSynchronize_ptsz(CUstream s)
{
	return synchronise(s ? s : CU_STREAM_PER_THREAD);
}

CU_API CUresult cuStreamQuery(CUstream s)
{
	return query(s);
}

CU_API CUresult cuStreamQuery_ptsz(CUstream s)
{
	return query(s ? s : CU_STREAM_PER_THREAD);
}

CU_API CUresult cuStreamGetFlags(CUstream s, unsigned int *flags)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = real ? real->flags : 0;
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamGetFlags_ptsz(CUstream s, unsigned int *flags)
{
	return cuStreamGetFlags(s, flags);
}

CU_API CUresult cuStreamGetPriority(CUstream s, int *priority)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = real ? real->priority : 0;
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamGetPriority_ptsz(CUstream s, int *priority)
{
	return cuStreamGetPriority(s, priority);
}

CU_API CUresult cuStreamGetCtx(CUstream s, CUcontext *ctx)
{
	CUstream real;

	return ctx ? cu_stream(s, ctx, &real) : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuStreamGetCtx_ptsz(CUstream s, CUcontext *ctx)
{
	return cuStreamGetCtx(s, ctx);
}

CU_API CUresult cuStreamGetId(CUstream s, unsigned long long *id)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = (unsigned long long)(uintptr_t)s;
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamGetId_ptsz(CUstream s, unsigned long long *id)
{
	return cuStreamGetId(s, id);
}

/* The function runs in the caller, once the stream's earlier work is done. */
CU_API CUresult cuLaunchHostFunc(CUstream s, CUhostFn fn, void *data)
{
	CUresult r = fn ? synchronise(s) : CUDA_ERROR_INVALID_VALUE;

	if (!r)
		fn(data);
	return r;
}

CU_API CUresult cuLaunchHostFunc_ptsz(CUstream s, CUhostFn fn, void *data)
{
	return cuLaunchHostFunc(s ? s : CU_STREAM_PER_THREAD, fn, data);
}
