#define _GNU_SOURCE
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "files.h"

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

#define SEQ_MASK  ((1u << SLUICE_SEQ_BITS) - 1)
#define SLOT_MASK ((1u << SLUICE_SLOT_BITS) - 1)

static inline uint64_t word(uint64_t units, uint32_t slot, uint64_t n)
{
    return units << (SLUICE_SEQ_BITS + SLUICE_SLOT_BITS) | (uint64_t)slot << SLUICE_SEQ_BITS | (n & SEQ_MASK);
}

static inline uint64_t word_units(uint64_t w)
{
    return w >> (SLUICE_SEQ_BITS + SLUICE_SLOT_BITS);
}

/* A tenant can write any slot number into the word; it reaches no further than
 * its own account. */
static inline struct sluice_slot *word_slot(struct sluice_account *a, uint64_t w)
{
    return &a->slot[(w >> SLUICE_SEQ_BITS & SLOT_MASK) % SLUICE_SLOTS];
}

/* Step 3 for the change that w names, if its owner has not come to it. applied
 * is read before the total is seen to be still w: then it can only lag by this
 * very change, and the exchange below fails if anybody was faster. */
static inline void finish(struct sluice_account *a, uint64_t w)
{
    struct sluice_slot *s = word_slot(a, w);
    uint64_t applied = __atomic_load_n(&s->applied, __ATOMIC_ACQUIRE);
    if (__builtin_expect((applied & SEQ_MASK) != ((w - 1) & SEQ_MASK), 1))
        return;
    if (__atomic_load_n(&a->total, __ATOMIC_ACQUIRE) != w)
        return;
    __atomic_compare_exchange_n(&s->applied, &applied, applied + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void raise_peak(struct sluice_account *a, uint64_t units)
{
    uint64_t peak = __atomic_load_n(&a->peak_units, __ATOMIC_RELAXED);
    while (units > peak &&
           !__atomic_compare_exchange_n(&a->peak_units, &peak, units, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* One change of a slot by whoever owns it. A change upwards is refused if the
 * total would exceed limit. */
static bool change(struct sluice_account *a, uint32_t slot, int64_t delta, uint64_t limit)
{
    struct sluice_slot *s = &a->slot[slot];
    uint64_t applied = __atomic_load_n(&s->applied, __ATOMIC_RELAXED);
    uint64_t n = applied + 1;
    uint64_t held = __atomic_load_n(&s->record[applied & 1], __ATOMIC_RELAXED);

    __atomic_store_n(&s->record[n & 1], held + (uint64_t)delta, __ATOMIC_RELEASE);
    LEDGER_STEP(1);
    uint64_t w = __atomic_load_n(&a->total, __ATOMIC_ACQUIRE), units;
    do {
        units = word_units(w) + (uint64_t)delta;
        if (delta > 0) {
            if (units > limit)
                return false;
        } else if (units > SLUICE_MAX_UNITS) {
            units = 0; /* only a damaged account gets here */
        }
        finish(a, w);
        LEDGER_STEP(2);
    } while (!__atomic_compare_exchange_n(&a->total, &w, word(units, slot, n), 1, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    LEDGER_STEP(3);
    __atomic_compare_exchange_n(&s->applied, &applied, n, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    LEDGER_STEP(4);
    if (delta > 0)
        raise_peak(a, units);
    return true;
}

static uint64_t held_by(const struct sluice_slot *s)
{
    uint64_t applied = __atomic_load_n(&s->applied, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&s->record[applied & 1], __ATOMIC_RELAXED);
}

/* The caller holds the slot's lock and its last owner is dead. */
static bool empty(struct sluice_account *a, uint32_t slot)
{
    struct sluice_slot *s = &a->slot[slot];
    finish(a, __atomic_load_n(&a->total, __ATOMIC_ACQUIRE));
    uint64_t held = held_by(s);
    if (held > SLUICE_MAX_UNITS) /* damaged; what it held is not known */
        held = 0;
    if (held)
        change(a, slot, -(int64_t)held, 0);
    /* The record that is not valid: zero marks a slot with nothing to collect. */
    __atomic_store_n(&s->record[(s->applied + 1) & 1], 0, __ATOMIC_RELAXED);
    __atomic_store_n(&s->contexts, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&s->busy_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&s->context_units, 0, __ATOMIC_RELAXED);
    if (held)
        __atomic_fetch_add(&a->reaped, 1, __ATOMIC_RELAXED);
    return held != 0;
}

static bool lock_slot(int fd, uint32_t slot, short type)
{
    struct flock f = {.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &f) == 0;
}

static bool is_account(const struct sluice_account *a)
{
    return a->magic == SLUICE_ACCOUNT_MAGIC && a->version == SLUICE_VERSION && a->size == sizeof *a &&
           a->slots == SLUICE_SLOTS;
}

enum ledger_open_result ledger_open(struct ledger *l, const char *path)
{
    enum ledger_open_result result = LEDGER_CANNOT_MAP;
    struct sluice_account *a = MAP_FAILED;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return LEDGER_CANNOT_OPEN;
    if (regular_size(fd) != sizeof *a) {
        result = LEDGER_NOT_ACCOUNT;
        goto fail;
    }
    a = mmap(0, sizeof *a, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (a == MAP_FAILED || madvise(a, sizeof *a, MADV_DONTFORK) != 0)
        goto fail;
    if (!is_account(a)) {
        result = LEDGER_NOT_ACCOUNT;
        goto fail;
    }

    /* Start where the last one left off: with many processes nearly every try
     * succeeds at once. */
    uint32_t first = (uint32_t)(__atomic_fetch_add(&a->next_slot, 1, __ATOMIC_RELAXED) % SLUICE_SLOTS);
    for (uint32_t i = 0; i < SLUICE_SLOTS; i++) {
        uint32_t slot = (first + i) % SLUICE_SLOTS;
        if (!lock_slot(fd, slot, F_WRLCK))
            continue;
        empty(a, slot);
        __atomic_store_n(&a->slot[slot].pid, (uint32_t)getpid(), __ATOMIC_RELAXED);
        l->account = a;
        l->slot = slot;
        close(fd);
        return LEDGER_OPENED;
    }
    result = LEDGER_FULL;
fail:;
    int saved = errno;
    if (a != MAP_FAILED)
        munmap(a, sizeof *a);
    close(fd);
    errno = saved;
    return result;
}

bool ledger_charge(struct ledger *l, uint64_t units, uint64_t limit)
{
    if (units > SLUICE_MAX_UNITS || limit > SLUICE_MAX_UNITS)
        return false;
    lock_take(&l->lock);
    bool charged = units == 0 || change(l->account, l->slot, (int64_t)units, limit);
    lock_drop(&l->lock);
    return charged;
}

void ledger_force(struct ledger *l, uint64_t units)
{
    lock_take(&l->lock);
    uint64_t room = SLUICE_MAX_UNITS - ledger_total(l);
    if (units > room / 2)
        units = room / 2; /* the word cannot say more; no card comes near */
    if (units)
        change(l->account, l->slot, (int64_t)units, SLUICE_MAX_UNITS);
    lock_drop(&l->lock);
}

uint64_t ledger_return(struct ledger *l, uint64_t units)
{
    lock_take(&l->lock);
    uint64_t held = ledger_mine(l);
    if (units > held)
        units = held;
    if (units)
        change(l->account, l->slot, -(int64_t)units, 0);
    lock_drop(&l->lock);
    return units;
}

unsigned ledger_collect(struct ledger *l, const char *path)
{
    struct sluice_account *a = l->account;
    unsigned dead = 0;
    int fd = -1;
    for (uint32_t i = 0; i < SLUICE_SLOTS; i++) {
        struct sluice_slot *s = &a->slot[i];
        if (i == l->slot || (__atomic_load_n(&s->record[0], __ATOMIC_RELAXED) == 0 &&
                             __atomic_load_n(&s->record[1], __ATOMIC_RELAXED) == 0))
            continue;
        /* A description of its own: the locks of this process's slot are on one
         * that no descriptor reaches any more. */
        if (fd < 0 && (fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) < 0)
            return 0;
        if (!lock_slot(fd, i, F_WRLCK))
            continue;
        dead += empty(a, i);
        lock_slot(fd, i, F_UNLCK);
    }
    if (fd >= 0)
        close(fd);
    return dead;
}

uint64_t ledger_total(const struct ledger *l)
{
    return word_units(__atomic_load_n(&l->account->total, __ATOMIC_RELAXED));
}

uint64_t ledger_mine(const struct ledger *l)
{
    return held_by(&l->account->slot[l->slot]);
}
