/* One card: its shares together. */
#define _GNU_SOURCE
#include <time.h>

#include "files.h"
#include "process.h"

enum { COLLECT_EVERY_MS = 100 };

static inline struct share *share_of(const struct card *c, unsigned i)
{
    return &process->share[c->share[i]];
}

static inline uint64_t room(const struct share *s)
{
    uint64_t total = ledger_total(&s->ledger);
    return total < s->limit ? s->limit - total : 0;
}

/* Takes parts where there is room, the emptiest share first. What was taken is
 * given back if it does not suffice: somebody else may then have been refused
 * what would have fitted for a moment, but nobody gets too much. */
static bool charge_spread(struct card *c, uint64_t units)
{
    uint64_t taken[CARD_SHARES] = {0}, left = units;
    for (unsigned round = 0; left && round < c->shares; round++) {
        unsigned best = 0;
        uint64_t most = 0;
        for (unsigned i = 0; i < c->shares; i++) {
            uint64_t r = taken[i] ? 0 : room(share_of(c, i));
            if (r > most) {
                most = r;
                best = i;
            }
        }
        uint64_t part = left < most ? left : most;
        if (!part)
            break;
        if (ledger_charge(&share_of(c, best)->ledger, part, share_of(c, best)->limit)) {
            taken[best] = part;
            left -= part;
        }
    }
    for (unsigned i = 0; left && i < c->shares; i++)
        if (taken[i])
            ledger_return(&share_of(c, i)->ledger, taken[i]);
    return left == 0;
}

static inline bool charge(struct card *c, uint64_t units)
{
    if (c->shares == 1)
        return ledger_charge(&share_of(c, 0)->ledger, units, c->limit);
    return charge_spread(c, units);
}

static unsigned collect(struct card *c)
{
    unsigned dead = 0;
    lock_take(&process->attaching); /* no fork while a slot of the dead is held */
    for (unsigned i = 0; i < c->shares; i++)
        dead += ledger_collect(&share_of(c, i)->ledger, share_of(c, i)->account);
    lock_drop(&process->attaching);
    return dead;
}

static __attribute__((noinline)) bool charge_after_collection(struct card *c, uint64_t units)
{
    if (units > c->limit)
        return false;
    collect(c);
    return charge(c, units);
}

bool card_charge(struct card *c, uint64_t units)
{
    return charge(c, units) || charge_after_collection(c, units);
}

CUresult card_refuse(struct card *c)
{
    __atomic_fetch_add(&share_of(c, 0)->ledger.account->refused, 1, __ATOMIC_RELAXED);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void card_force(struct card *c, uint64_t units)
{
    if (charge(c, units))
        return;
    for (unsigned i = 0; i < c->shares; i++) {
        uint64_t part = room(share_of(c, i));
        if (part > units)
            part = units;
        if (part && ledger_charge(&share_of(c, i)->ledger, part, share_of(c, i)->limit))
            units -= part;
    }
    ledger_force(&share_of(c, 0)->ledger, units);
}

/* This process holds in all shares together what its live allocations were
 * charged, so it does not matter from which share a unit comes back. */
void card_return(struct card *c, uint64_t units)
{
    for (unsigned i = c->shares; units && i-- > 0;)
        units -= ledger_return(&share_of(c, i)->ledger, units);
}

uint64_t card_room(struct card *c)
{
    struct timespec t;
    card_follow_grant(c);
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    uint64_t due = __atomic_load_n(&c->next_collection, __ATOMIC_RELAXED);
    if (now >= due && __atomic_compare_exchange_n(&c->next_collection, &due, now + COLLECT_EVERY_MS * 1000000ull, 0,
                                                  __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        collect(c);
    uint64_t units = 0;
    for (unsigned i = 0; i < c->shares; i++)
        units += room(share_of(c, i));
    return units;
}

uint64_t card_context_overhead(struct card *c)
{
    struct sluice_grant g;
    uint64_t most = 0;
    for (unsigned i = 0; i < c->shares; i++) {
        struct share *s = share_of(c, i);
        /* A grant that cannot be had now: the last one holds. */
        uint32_t sequence = __atomic_load_n(&s->grant->sequence, __ATOMIC_ACQUIRE);
        if (grant_get(s->grant, &g))
            __atomic_store_n(&s->overhead, to_units(g.context_overhead_bytes), __ATOMIC_RELAXED);
        /* Also where there was none to be had: not to be waited for again
         * before somebody has written. */
        __atomic_store_n(&s->sequence, sequence, __ATOMIC_RELAXED);
        uint64_t overhead = __atomic_load_n(&s->overhead, __ATOMIC_RELAXED);
        if (overhead > most)
            most = overhead;
    }
    return most;
}

struct raise {
    uint32_t card;
    uint64_t overhead, sum;
};

static bool raise_context(struct entry *e, void *arg)
{
    struct raise *r = arg;
    if (e->card == r->card && e->kind == CONTEXT_MADE && e->units < r->overhead) {
        r->sum += r->overhead - e->units;
        e->units = r->overhead;
    }
    return false;
}

static void show_followed(struct card *c, uint64_t units)
{
    struct ledger *l = &share_of(c, 0)->ledger;
    __atomic_store_n(&l->account->slot[l->slot].context_units, units, __ATOMIC_RELEASE);
}

void card_raise_overhead(struct card *c)
{
    struct raise r = {.card = (uint32_t)(c - process->card), .overhead = card_context_overhead(c)};
    lock_take(&c->contexts);
    if (c->primary && c->primary_units < r.overhead) {
        r.sum = r.overhead - c->primary_units;
        c->primary_units = r.overhead;
    }
    map_sweep(&process->contexts, raise_context, &r);
    if (r.sum)
        card_force(c, r.sum);
    /* After the charge: who reads the new figure finds it in the total. */
    show_followed(c, r.overhead);
    lock_drop(&c->contexts);
}

void card_count_context(struct card *c, int change)
{
    struct ledger *l = &share_of(c, 0)->ledger;
    uint32_t before = __atomic_fetch_add(&l->account->slot[l->slot].contexts, (uint32_t)change, __ATOMIC_RELAXED);
    if (change > 0 && !before) { /* those that follow are charged no less */
        uint64_t most = 0;
        for (unsigned i = 0; i < c->shares; i++) {
            uint64_t overhead = __atomic_load_n(&share_of(c, i)->overhead, __ATOMIC_RELAXED);
            if (overhead > most)
                most = overhead;
        }
        show_followed(c, most);
    }
}
