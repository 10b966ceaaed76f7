/* libcuda: events. An event is a marker in the queue whose end is stamped with
 * the simulation's time. */
#include "cuda.h"

#include <stdlib.h>

static int take_cell(int card)
{
	uint64_t *map = fg_p->event_cells[card];

	for (int i = 0; i < FG_EVENTS / 64; i++)
		if (~map[i]) {
			int bit = __builtin_ctzll(~map[i]);
			map[i] |= 1ull << bit;
			return i * 64 + bit;
		}
	return -1;
}

static bool event_ok(CUevent e)
{
	return e && e->magic == M_EVENT;
}

CU_API CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!out || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUevent_st *e = calloc(1, sizeof *e);
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->magic = M_EVENT;
	e->ctx = c;
	e->flags = flags;
	e->cell = -1;
	if (!(flags & CU_EVENT_DISABLE_TIMING)) {
		cu_lock();
		e->cell = take_cell(c->card);
		cu_unlock();
		if (e->cell < 0) {
			free(e);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	*out = e;
	return CUDA_SUCCESS;
}

CU_API CUresult cuEventDestroy_v2(CUevent e)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!event_ok(e))
		return CUDA_ERROR_INVALID_HANDLE;
	/* Its cell must not be stamped for the next owner. */
	if (e->cell >= 0 && e->ctx->alive)
		fg_wait(&fg_p->fg, e->ctx->card, e->mark);
	cu_lock();
	if (e->cell >= 0)
		fg_p->event_cells[e->ctx->card][e->cell / 64] &= ~(1ull << (e->cell % 64));
	e->magic = M_DEAD;
	cu_unlock();
	free(e);
	return CUDA_SUCCESS;
}

CU_API CUresult cuEventDestroy(CUevent e)
{
	return cuEventDestroy_v2(e);
}

static CUresult record(CUevent e, CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (!event_ok(e) || e->ctx->card != c->card)
		return CUDA_ERROR_INVALID_HANDLE;
	if (real && real->capture) {
		e->captured = real->capture;
		return CUDA_SUCCESS;
	}
	e->captured = NULL;
	e->mark = fg_submit(&fg_p->fg, c->card, 0, (uint64_t)(e->cell + 1));
	cu_stream_submitted(c, real, e->mark);
	return CUDA_SUCCESS;
}

CU_API CUresult cuEventRecord(CUevent e, CUstream s)
{
	return record(e, s);
}

CU_API CUresult cuEventRecord_ptsz(CUevent e, CUstream s)
{
	return record(e, s ? s : CU_STREAM_PER_THREAD);
}

CU_API CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned int flags)
{
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(e, s);
}

CU_API CUresult cuEventRecordWithFlags_ptsz(CUevent e, CUstream s, unsigned int flags)
{
	return cuEventRecordWithFlags(e, s ? s : CU_STREAM_PER_THREAD, flags);
}

CU_API CUresult cuEventQuery(CUevent e)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!event_ok(e))
		return CUDA_ERROR_INVALID_HANDLE;
	if (e->captured)
		return CUDA_ERROR_CAPTURED_EVENT;
	if ((r = cu_unsafe()))
		return r;
	return fg_done(&fg_p->fg, e->ctx->card) >= e->mark ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CU_API CUresult cuEventSynchronize(CUevent e)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!event_ok(e))
		return CUDA_ERROR_INVALID_HANDLE;
	if (e->captured)
		return CUDA_ERROR_CAPTURED_EVENT;
	if ((r = cu_unsafe()))
		return r;
	fg_wait(&fg_p->fg, e->ctx->card, e->mark);
	cu_pools_synced(e->ctx->card);
	return cu_health(e->ctx->card);
}

CU_API CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!ms)
		return CUDA_ERROR_INVALID_VALUE;
	if (!event_ok(from) || !event_ok(to) || from->cell < 0 || to->cell < 0 || !from->mark || !to->mark ||
	    from->ctx->card != to->ctx->card)
		return CUDA_ERROR_INVALID_HANDLE;
	const int card = from->ctx->card;
	const uint64_t done = fg_done(&fg_p->fg, card);
	if (done < from->mark || done < to->mark)
		return CUDA_ERROR_NOT_READY;
	const struct fg_slotcard *mine = &fg_p->fg.st->card[card].s[fg_p->fg.slot];
	*ms = (float)((double)(int64_t)(mine->event[to->cell] - mine->event[from->cell]) / 1e6);
	return CUDA_SUCCESS;
}

CU_API CUresult cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to)
{
	return cuEventElapsedTime(ms, from, to);
}

/* All streams of a process share one queue, so what the event waits for is
 * ahead of what follows in s already. */
CU_API CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (!event_ok(e))
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (real && e->captured && !real->capture) {
		real->capture = e->captured; /* the fork of a capture */
		return CUDA_SUCCESS;
	}
	cu_stream_submitted(c, real, e->mark);
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned int flags)
{
	return cuStreamWaitEvent(s ? s : CU_STREAM_PER_THREAD, e, flags);
}
