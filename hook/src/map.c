#include "map.h"

#include <stdlib.h>

enum { FIRST_BITS = 3 };

/* Fibonacci hashing: the high bits are good. The top MAP_BITS choose the
 * stripe, the next ones the place in its table. */
static inline uint64_t hash(uint64_t key)
{
    return key * 0x9e3779b97f4a7c15ull;
}

static inline struct stripe *stripe_of(struct map *m, uint64_t h)
{
    return &m->stripe[h >> (64 - MAP_BITS)];
}

static inline uint32_t place(const struct stripe *s, uint64_t h)
{
    return (uint32_t)(h << MAP_BITS >> (64 - s->bits));
}

static inline uint32_t mask(const struct stripe *s)
{
    return (1u << s->bits) - 1;
}

/* Where the key is, or the free place where it belongs. Needs a table. */
static uint32_t find(const struct stripe *s, uint64_t key)
{
    uint32_t i = place(s, hash(key));
    while (s->table[i].key && s->table[i].key != key)
        i = (i + 1) & mask(s);
    return i;
}

/* Keeps at least a quarter of the table free. */
static bool make_room(struct stripe *s)
{
    if (s->bits && (s->used + 1) * 4 <= (mask(s) + 1) * 3)
        return true;
    struct stripe bigger = {.bits = s->bits ? s->bits + 1 : FIRST_BITS};
    bigger.table = calloc((size_t)1 << bigger.bits, sizeof *bigger.table);
    if (!bigger.table)
        return false;
    if (s->bits)
        for (uint32_t i = 0; i <= mask(s); i++)
            if (s->table[i].key)
                bigger.table[find(&bigger, s->table[i].key)] = s->table[i];
    free(s->table);
    s->table = bigger.table;
    s->bits = bigger.bits;
    return true;
}

bool map_swap(struct map *m, const struct entry *e, struct entry *old)
{
    struct stripe *s = stripe_of(m, hash(e->key));
    lock_take(&s->lock);
    bool ok = make_room(s);
    if (ok) {
        uint32_t i = find(s, e->key);
        *old = s->table[i];
        s->used += old->key == 0;
        s->table[i] = *e;
    }
    lock_drop(&s->lock);
    return ok;
}

bool map_put(struct map *m, const struct entry *e)
{
    struct entry old;
    return map_swap(m, e, &old);
}

bool map_get(struct map *m, uint64_t key, struct entry *out)
{
    struct stripe *s = stripe_of(m, hash(key));
    bool found = false;
    if (!key)
        return false;
    lock_take(&s->lock);
    if (s->bits) {
        const struct entry *e = &s->table[find(s, key)];
        found = e->key != 0;
        if (found)
            *out = *e;
    }
    lock_drop(&s->lock);
    return found;
}

/* Frees place i and moves back what the gap would hide. */
static void erase(struct stripe *s, uint32_t i)
{
    for (uint32_t j = i;;) {
        j = (j + 1) & mask(s);
        if (!s->table[j].key)
            break;
        uint32_t home = place(s, hash(s->table[j].key));
        if (((j - home) & mask(s)) >= ((j - i) & mask(s))) {
            s->table[i] = s->table[j];
            i = j;
        }
    }
    s->table[i].key = 0;
    s->used--;
}

bool map_take(struct map *m, uint64_t key, struct entry *out)
{
    struct stripe *s = stripe_of(m, hash(key));
    bool found = false;
    if (!key)
        return false;
    lock_take(&s->lock);
    if (s->bits) {
        uint32_t i = find(s, key);
        found = s->table[i].key != 0;
        if (found) {
            *out = s->table[i];
            erase(s, i);
        }
    }
    lock_drop(&s->lock);
    return found;
}

void map_sweep(struct map *m, bool (*visit)(struct entry *, void *), void *context)
{
    for (int k = 0; k < MAP_STRIPES; k++) {
        struct stripe *s = &m->stripe[k];
        lock_take(&s->lock);
        /* An erasure may move another entry into place i, so look there again.
         * What wraps around the end of the table can be seen twice, but not
         * what is taken out. */
        for (uint32_t i = 0; s->bits && i <= mask(s);)
            if (s->table[i].key && visit(&s->table[i], context))
                erase(s, i);
            else
                i++;
        lock_drop(&s->lock);
    }
}
