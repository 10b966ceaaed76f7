/*
 * Makes and reads the files of a share without a node:
 *
 *     share make DIR UUID MEMORY CORES none|burst|hard OVERHEAD   all sizes in bytes; MEMORY 0: whole card
 *     share grant DIR OVERHEAD RATE_PPM FACTOR_PPM                rewrites the grant as the node does
 *     share read DIR                                              prints `name value` lines
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sluice_layout.h"

static char path[4096];

static const char *in(const char *dir, const char *name)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void *file(const char *dir, const char *name, size_t size, int create)
{
    int fd = open(in(dir, name), O_RDWR | (create ? O_CREAT | O_EXCL : 0), 0666);
    void *p = MAP_FAILED;
    if (fd >= 0 && (!create || !ftruncate(fd, (off_t)size)))
        p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    close(fd);
    return p;
}

static int hex(const char *text, uint8_t *out)
{
    unsigned n = 0;
    if (!strncmp(text, "GPU-", 4) || !strncmp(text, "MIG-", 4))
        text += 4;
    for (; *text; text++) {
        unsigned v;
        if (*text == '-')
            continue;
        if (n == 32 || sscanf((char[]){*text, 0}, "%1x", &v) != 1)
            return 0;
        out[n / 2] = (uint8_t)(out[n / 2] << 4 | v);
        n++;
    }
    return n == 32;
}

static void grant(const char *dir, int create, uint64_t overhead, uint32_t rate, uint32_t factor, uint32_t gated)
{
    struct sluice_grant *g = file(dir, "grant", sizeof *g, create), next = {0};
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    next.magic = SLUICE_GRANT_MAGIC;
    next.version = SLUICE_VERSION;
    next.size = sizeof next;
    next.heartbeat_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    next.context_overhead_bytes = overhead;
    next.core_rate_ppm = rate;
    next.busy_factor_ppm = factor;
    /* A share without a guarantee is held to nothing here: it is alone. */
    next.core_gated = create ? gated : g->core_gated;
    next.core_fallback_ppm = create ? rate : g->core_fallback_ppm;
    next.checksum = sluice_checksum(&next, offsetof(struct sluice_grant, checksum));
    uint32_t sequence = g->sequence;
    __atomic_store_n(&g->sequence, sequence + 1, __ATOMIC_SEQ_CST);
    next.sequence = sequence + 1;
    memcpy(g, &next, sizeof next);
    __atomic_store_n(&g->sequence, sequence + 2, __ATOMIC_SEQ_CST);
}

static void make(char **a)
{
    struct sluice_limit l = {.magic = SLUICE_LIMIT_MAGIC, .version = SLUICE_VERSION, .size = sizeof l};
    static const char *const policies[] = {"none", "burst", "hard"};
    if (!hex(a[1], l.card)) {
        fprintf(stderr, "share: %s is no UUID\n", a[1]);
        exit(2);
    }
    l.memory_bytes = strtoull(a[2], 0, 0) & ~(SLUICE_UNIT - 1);
    l.flags = l.memory_bytes ? 0 : SLUICE_LIMIT_WHOLE;
    l.core_percent = (uint32_t)atoi(a[3]);
    while (l.core_policy < SLUICE_CORES_HARD && strcmp(policies[l.core_policy], a[4]))
        l.core_policy++;
    l.checksum = sluice_checksum(&l, offsetof(struct sluice_limit, checksum));
    mkdir(a[0], 0755);
    memcpy(file(a[0], "limit", sizeof l, 1), &l, sizeof l);
    grant(a[0], 1, strtoull(a[5], 0, 0), l.core_percent ? l.core_percent * 10000 : 1000000, 1000000,
          l.core_percent != 0);
    struct sluice_account *account = file(a[0], "account", sizeof *account, 1);
    account->magic = SLUICE_ACCOUNT_MAGIC;
    account->version = SLUICE_VERSION;
    account->size = sizeof *account;
    account->slots = SLUICE_SLOTS;
}

static void show(const char *dir)
{
    struct sluice_account *a = file(dir, "account", sizeof *a, 0);
    uint64_t busy = 0;
    for (unsigned i = 0; i < SLUICE_SLOTS; i++)
        busy += a->slot[i].busy_ns;
    printf("total %llu\n", (unsigned long long)(a->total >> (SLUICE_SEQ_BITS + SLUICE_SLOT_BITS) << SLUICE_UNIT_SHIFT));
    printf("peak %llu\n", (unsigned long long)(a->peak_units << SLUICE_UNIT_SHIFT));
    printf("refused %llu\n", (unsigned long long)a->refused);
    printf("reaped %llu\n", (unsigned long long)a->reaped);
    printf("busy_ns %llu\n", (unsigned long long)busy);
}

int main(int n, char **a)
{
    if (n == 8 && !strcmp(a[1], "make"))
        make(a + 2);
    else if (n == 6 && !strcmp(a[1], "grant"))
        grant(a[2], 0, strtoull(a[3], 0, 0), (uint32_t)atoi(a[4]), (uint32_t)atoi(a[5]), 0);
    else if (n == 3 && !strcmp(a[1], "read"))
        show(a[2]);
    else
        return fprintf(stderr, "usage: see share.c\n"), 2;
    return 0;
}
