/* libcuda: the map from device addresses to allocations.
 *
 * Device addresses are numbers: nothing is mapped at them. Each power of two
 * has a zone of addresses of its own, so an address gives its record by
 * arithmetic and an alloc/free pair costs the same with one live allocation or
 * with a hundred thousand.
 *
 *   ZONES + k * ZONE_SIZE        allocations of up to 2^k bytes, 2^k apart
 *   LOW .. 4 GiB                 what the 32-bit calls of 2008 return
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIN_SHIFT 9
#define MAX_SHIFT 40
#define ZONES 0x100000000000ull
#define ZONE_SIZE ((uint64_t)1 << MAX_SHIFT)
#define CHUNK 1024

#define LOW 0x10000000ull
#define LOW_UNIT (16ull << 20)
#define LOW_UNITS 240

struct zone {
	struct alloc **chunk;
	uint64_t chunks, used;   /* chunks that exist; records handed out so far */
	struct alloc *free;
};

struct map {
	struct zone zone[MAX_SHIFT + 1];
	struct alloc *low[LOW_UNITS];
};

uint64_t cu_round(uint64_t bytes)
{
	return (bytes + 511) & ~511ull;
}

static int shift_of(uint64_t size)
{
	int s = MIN_SHIFT;

	while (((uint64_t)1 << s) < size)
		s++;
	return s;
}

static struct alloc *record(struct zone *z, int shift)
{
	struct alloc *a = z->free;

	if (a) {
		z->free = a->next;
		return a;
	}
	if (z->used >= ZONE_SIZE >> shift)
		return NULL;
	if (z->used == z->chunks * CHUNK) {
		struct alloc **more = realloc(z->chunk, (z->chunks + 1) * sizeof *more);
		if (!more)
			return NULL;
		z->chunk = more;
		more[z->chunks] = calloc(CHUNK, sizeof **more);
		if (!more[z->chunks])
			return NULL;
		z->chunks++;
	}
	a = &z->chunk[z->used / CHUNK][z->used % CHUNK];
	a->ptr = ZONES + (uint64_t)shift * ZONE_SIZE + (z->used << shift);
	z->used++;
	return a;
}

static struct map *the_map(void)
{
	if (!fg_p->map)
		fg_p->map = calloc(1, sizeof *fg_p->map);
	return fg_p->map;
}

static void link_to(struct alloc *a, CUcontext ctx)
{
	a->ctx = ctx;
	a->prev = a->next = NULL;
	if (!ctx)
		return;
	a->next = ctx->allocs;
	if (a->next)
		a->next->prev = a;
	ctx->allocs = a;
}

static struct alloc *fill(struct alloc *a, enum alloc_kind kind, int card, CUcontext ctx, uint64_t size, uint64_t taken)
{
	a->kind = kind;
	a->card = card;
	a->size = size;
	a->taken = taken;
	a->host = NULL;
	a->pool = NULL;
	a->exec = NULL;
	link_to(a, ctx);
	return a;
}

struct alloc *cu_map_add(enum alloc_kind kind, int card, CUcontext ctx, uint64_t size, uint64_t taken)
{
	const int shift = shift_of(size);
	struct map *m;
	struct alloc *a = NULL;

	if (shift > MAX_SHIFT)
		return NULL;
	cu_lock();
	m = the_map();
	if (m)
		a = record(&m->zone[shift], shift);
	if (a)
		fill(a, kind, card, ctx, size, taken);
	cu_unlock();
	return a;
}

struct alloc *cu_map_add_low(int card, CUcontext ctx, uint64_t size, uint64_t taken)
{
	const uint64_t need = (size + LOW_UNIT - 1) / LOW_UNIT;
	struct alloc *a = calloc(1, sizeof *a);
	struct map *m;

	if (!a)
		return NULL;
	cu_lock();
	m = the_map();
	for (uint64_t i = 0, run = 0; m && i < LOW_UNITS; i++) {
		run = m->low[i] ? 0 : run + 1;
		if (run < need)
			continue;
		a->ptr = LOW + (i + 1 - need) * LOW_UNIT;
		for (uint64_t j = i + 1 - need; j <= i; j++)
			m->low[j] = a;
		fill(a, A_LINEAR, card, ctx, size, taken);
		cu_unlock();
		return a;
	}
	cu_unlock();
	free(a);
	return NULL;
}

struct alloc *cu_map_find(CUdeviceptr ptr)
{
	struct map *m = fg_p->map;
	struct alloc *a;

	if (!m)
		return NULL;
	if (ptr >= LOW && ptr < LOW + LOW_UNITS * LOW_UNIT) {
		a = m->low[(ptr - LOW) / LOW_UNIT];
		return a && ptr < a->ptr + a->size ? a : NULL;
	}
	if (ptr < ZONES + MIN_SHIFT * ZONE_SIZE || ptr >= ZONES + (MAX_SHIFT + 1) * ZONE_SIZE)
		return NULL;
	const int shift = (int)((ptr - ZONES) / ZONE_SIZE);
	const uint64_t i = ((ptr - ZONES) % ZONE_SIZE) >> shift;
	if (i >= m->zone[shift].used)
		return NULL;
	a = &m->zone[shift].chunk[i / CHUNK][i % CHUNK];
	return a->kind != A_NONE && ptr < a->ptr + a->size ? a : NULL;
}

void cu_map_drop(struct alloc *a)
{
	struct map *m = fg_p->map;

	if (a->taken)
		fg_mem_give(&fg_p->fg, a->card, a->taken);
	if (a->host)
		munmap(a->host, a->size);
	if (a->prev)
		a->prev->next = a->next;
	else if (a->ctx)
		a->ctx->allocs = a->next;
	if (a->next)
		a->next->prev = a->prev;
	a->kind = A_NONE;
	if (a->ptr < ZONES) {
		for (int i = 0; i < LOW_UNITS; i++)
			if (m->low[i] == a)
				m->low[i] = NULL;
		free(a);
		return;
	}
	if (a->ptr < ZONES + (MAX_SHIFT + 1) * ZONE_SIZE) {
		struct zone *z = &m->zone[(a->ptr - ZONES) / ZONE_SIZE];
		a->next = z->free;
		a->prev = NULL;
		z->free = a;
	}
}

void cu_allocs_end(CUcontext ctx)
{
	while (ctx->allocs)
		cu_map_drop(ctx->allocs);
}
