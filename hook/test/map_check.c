/*
 * The map against a plain array.
 *
 *     map_check random SEED     random changes by one thread, compared at each step
 *     map_check threads N       threads with keys of their own; nothing may be lost
 *     map_check cost LIVE       nanoseconds of a put and a take with LIVE others
 *
 * Prints what is wrong, or the figure.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../src/map.h"

enum { KEYS = 4096, OWN = 3000 };

static struct map map;

static uint64_t key_of(unsigned i)
{
    return 0x700000000000ull + (uint64_t)i * 512;
}

static bool odd_units(struct entry *e, void *count)
{
    if (e->units % 2 == 0)
        return false;
    ++*(unsigned *)count;
    return true;
}

static const struct entry nothing = {.key = 1, .tag = 2, .units = 3, .card = 4, .kind = 5};

/* Whether a look-up did what it must; what finds nothing leaves e alone. */
static bool right(bool found, const struct entry *e, unsigned i, uint64_t units)
{
    if (!found)
        return !units && e->key == nothing.key && e->tag == nothing.tag && e->units == nothing.units &&
               e->card == nothing.card && e->kind == nothing.kind;
    return units && e->key == key_of(i) && e->units == units;
}

static int check_random(unsigned dice)
{
    static uint64_t model[KEYS]; /* units; 0: absent */
    struct entry e;
    bool found;
    for (int step = 0; step < 400000; step++) {
        unsigned i = (unsigned)rand_r(&dice) % KEYS;
        switch (rand_r(&dice) % 8) {
        case 0:
        case 1:
        case 2:
            e = (struct entry){.key = key_of(i), .units = 1 + (uint64_t)rand_r(&dice) % 1000};
            if (!map_put(&map, &e))
                return printf("no memory\n");
            model[i] = e.units;
            break;
        case 3:
        case 4:
        case 5:
            e = nothing;
            found = map_take(&map, key_of(i), &e);
            if (!right(found, &e, i, model[i]))
                return printf("step %d: take %u\n", step, i);
            model[i] = 0;
            break;
        default:
            e = nothing;
            found = map_get(&map, key_of(i), &e);
            if (!right(found, &e, i, model[i]))
                return printf("step %d: get %u\n", step, i);
        }
        if (step % 20000 == 0) {
            unsigned swept = 0, wanted = 0;
            map_sweep(&map, odd_units, &swept);
            for (int k = 0; k < KEYS; k++)
                if (model[k] % 2) {
                    model[k] = 0;
                    wanted++;
                }
            if (swept != wanted)
                return printf("step %d: swept %u of %u\n", step, swept, wanted);
        }
    }
    return 0;
}

static unsigned long lost;

static void *own_keys(void *arg)
{
    unsigned first = (unsigned)(uintptr_t)arg * OWN;
    struct entry e;
    for (int round = 0; round < 5; round++) {
        for (unsigned i = first; i < first + OWN; i++) {
            e = (struct entry){.key = key_of(i), .units = i};
            if (!map_put(&map, &e))
                __atomic_fetch_add(&lost, 1, __ATOMIC_RELAXED);
        }
        for (unsigned i = first; i < first + OWN; i++)
            if (!map_take(&map, key_of(i), &e) || e.units != i)
                __atomic_fetch_add(&lost, 1, __ATOMIC_RELAXED);
    }
    return 0;
}

static int check_threads(int n)
{
    pthread_t t[32];
    for (int i = 0; i < n && i < 32; i++)
        pthread_create(&t[i], 0, own_keys, (void *)(uintptr_t)i);
    for (int i = 0; i < n && i < 32; i++)
        pthread_join(t[i], 0);
    return lost ? printf("%lu entries lost\n", lost) : 0;
}

static int cost(unsigned live)
{
    enum { ROUNDS = 200000 };
    struct timespec a, b;
    struct entry e = {.units = 1};
    double best = 1e9;
    for (unsigned i = 1; i <= live; i++) {
        e.key = key_of(i);
        map_put(&map, &e);
    }
    for (int turn = 0; turn < 5; turn++) {
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (unsigned i = 0; i < ROUNDS; i++) {
            e.key = key_of(live + 1 + i % 64);
            map_put(&map, &e);
            map_take(&map, e.key, &e);
        }
        clock_gettime(CLOCK_MONOTONIC, &b);
        double ns = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / ROUNDS;
        best = ns < best ? ns : best;
    }
    printf("%.1f\n", best);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    if (!strcmp(argv[1], "random"))
        return check_random((unsigned)atoi(argv[2])) != 0;
    if (!strcmp(argv[1], "threads"))
        return check_threads(atoi(argv[2])) != 0;
    return cost((unsigned)atoi(argv[2]));
}
