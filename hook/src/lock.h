/*
 * A mutex of one word for threads of one process. All zero is unlocked, so a
 * page that the kernel wipes in a forked child holds unlocked ones, whatever
 * the parent's threads were doing.
 */
#ifndef SLUICE_LOCK_H
#define SLUICE_LOCK_H

#include <stdint.h>

/* 0 free, 1 taken, 2 taken and somebody sleeps. */
struct lock {
    uint32_t word;
};

void lock_wait(struct lock *l);
void lock_wake(struct lock *l);

static inline void lock_take(struct lock *l)
{
    uint32_t unlocked = 0;
    if (!__atomic_compare_exchange_n(&l->word, &unlocked, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        lock_wait(l);
}

static inline void lock_drop(struct lock *l)
{
    if (__atomic_exchange_n(&l->word, 0, __ATOMIC_RELEASE) == 2)
        lock_wake(l);
}

#endif
