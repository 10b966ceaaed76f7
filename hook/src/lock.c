#define _GNU_SOURCE
#include "lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What is guarded takes some tens of nanoseconds: spin that long, then sleep,
 * for the owner may have lost its CPU. */
enum { SPINS = 64 };

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void lock_wait(struct lock *l)
{
    int saved = errno;
    for (int i = 0; i < SPINS; i++) {
        uint32_t unlocked = 0;
        if (__atomic_compare_exchange_n(&l->word, &unlocked, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return;
        pause_cpu();
    }
    while (__atomic_exchange_n(&l->word, 2, __ATOMIC_ACQUIRE) != 0)
        syscall(SYS_futex, &l->word, FUTEX_WAIT_PRIVATE, 2, 0, 0, 0);
    errno = saved;
}

void lock_wake(struct lock *l)
{
    int saved = errno;
    syscall(SYS_futex, &l->word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
    errno = saved;
}
