/*
 * Processes that charge and return at random and are killed at random, most of
 * them at the worst places: between the steps of a change.
 *
 *     ledger_stress FILE PROCESSES THREADS DEATHS
 *
 * FILE is an empty account. Prints one line of name=value pairs when that many
 * processes have been killed and the rest has been stopped.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static __thread unsigned dice;
static int mortal;

#define LEDGER_STEP(n)                                        \
    do {                                                      \
        if (mortal && rand_r(&dice) % 4000 == (n))            \
            kill(getpid(), SIGKILL);                          \
    } while (0)
#include "../src/ledger.c"

enum { CAP = 100000, PIECES = 64 };

static struct ledger ledger;
static const char *file;
static struct {
    unsigned long charged, refused, above;
} *seen; /* shared by all */

static void *work(void *arg)
{
    uint64_t piece[PIECES] = {0};
    dice = (unsigned)getpid() * 7919u + (unsigned)(uintptr_t)arg;
    for (;;) {
        int i = rand_r(&dice) % PIECES;
        if (piece[i]) {
            ledger_return(&ledger, piece[i]);
            piece[i] = 0;
        } else {
            uint64_t n = 1 + (uint64_t)rand_r(&dice) % 3000;
            if (ledger_charge(&ledger, n, CAP)) {
                piece[i] = n;
                __atomic_fetch_add(&seen->charged, 1, __ATOMIC_RELAXED);
            } else {
                __atomic_fetch_add(&seen->refused, 1, __ATOMIC_RELAXED);
                if (rand_r(&dice) % 32 == 0)
                    ledger_collect(&ledger, file);
            }
        }
        if (ledger_total(&ledger) > CAP)
            __atomic_fetch_add(&seen->above, 1, __ATOMIC_RELAXED);
    }
    return arg;
}

static pid_t spawn(int threads)
{
    pid_t p = fork();
    if (p)
        return p;
    if (ledger_open(&ledger, file) != LEDGER_OPENED)
        _exit(3);
    mortal = 1;
    pthread_t t;
    for (int i = 1; i < threads; i++)
        pthread_create(&t, 0, work, (void *)(uintptr_t)i);
    work(0);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    file = argv[1];
    int processes = atoi(argv[2]), threads = atoi(argv[3]), deaths = 0, odd = 0, wanted = atoi(argv[4]);
    seen = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t *pids = calloc((size_t)processes, sizeof *pids);
    for (int i = 0; i < processes; i++)
        pids[i] = spawn(threads);
    while (deaths < wanted) {
        int status;
        pid_t dead = wait(&status);
        if (dead < 0)
            return 4;
        deaths++;
        odd += !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
        for (int i = 0; i < processes; i++)
            if (pids[i] == dead)
                pids[i] = spawn(threads);
    }
    for (int i = 0; i < processes; i++)
        kill(pids[i], SIGKILL);
    while (wait(0) > 0)
        ;
    free(pids);

    /* Everybody is dead: finish the change that the word names, and add up. */
    int fd = open(file, O_RDWR);
    struct sluice_account *a = mmap(0, sizeof *a, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    finish(a, a->total);
    uint64_t total = word_units(a->total), sum = 0;
    int stuck = 0;
    for (uint32_t i = 0; i < SLUICE_SLOTS; i++)
        sum += held_by(&a->slot[i]);
    for (uint32_t i = 0; i < SLUICE_SLOTS; i++) {
        if (lock_slot(fd, i, F_WRLCK))
            empty(a, i);
        else
            stuck++;
    }
    printf("deaths=%d odd=%d charged=%lu refused=%lu above=%lu cap=%d peak=%lu total=%lu sum=%lu after=%lu stuck=%d\n",
           deaths, odd, seen->charged, seen->refused, seen->above, CAP, (unsigned long)a->peak_units,
           (unsigned long)total, (unsigned long)sum, (unsigned long)word_units(a->total), stuck);
    return 0;
}
