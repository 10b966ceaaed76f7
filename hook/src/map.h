/*
 * From a handle of the driver (pointer, context, pool ...) to what we know of
 * it. Open addressing in stripes, each with a lock of its own, so that threads
 * that allocate and free at once seldom meet; the cost of a call does not
 * depend on how many handles are alive.
 *
 * All zero is an empty map: it can live in a page that a forked child finds
 * wiped. What the parent's tables hold on the heap is then forgotten, as are
 * the parent's handles, which mean nothing in the child.
 */
#ifndef SLUICE_MAP_H
#define SLUICE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"

/* Kept small: with many handles alive a call costs what its cache misses cost. */
struct entry {
    uint64_t key; /* never 0 */
    uint64_t tag; /* what owns it: a context, a pool; its meaning is the caller's */
    uint64_t units : 48; /* charged for it */
    uint64_t card : 8;
    uint64_t kind : 8;
};
_Static_assert(sizeof(struct entry) == 24, "entry");

struct stripe {
    _Alignas(64) struct lock lock;
    uint32_t bits; /* log2 of the table's size; 0: no table yet */
    uint32_t used;
    struct entry *table;
};

/* 2^MAP_BITS stripes. */
enum { MAP_BITS = 5, MAP_STRIPES = 1 << MAP_BITS };
struct map {
    struct stripe stripe[MAP_STRIPES];
};

/* Adds or replaces. False: no memory, nothing changed. */
bool map_put(struct map *m, const struct entry *e);

/* The same, and tells what was replaced; its key is 0 if nothing was. */
bool map_swap(struct map *m, const struct entry *e, struct entry *old);

/* Finds; takes out what it found. What was not found leaves *out as it was: a
 * free place of a table holds what was erased there. */
bool map_get(struct map *m, uint64_t key, struct entry *out);
bool map_take(struct map *m, uint64_t key, struct entry *out);

/* Shows every entry to visit, which may change it but for its key, and takes out
 * those for which it says true. visit calls nothing of this map. */
void map_sweep(struct map *m, bool (*visit)(struct entry *, void *), void *context);

#endif
