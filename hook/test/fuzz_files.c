/*
 * Random bytes where the limiter reads what others wrote: the limit, the grant
 * and the account. Built with sanitizers; a finding ends the program.
 *
 *     fuzz_files DIR ROUNDS SEED
 *
 * DIR has the files of a share. Prints `accepted=N refused=N`.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/files.h"
#include "../src/ledger.h"

static char path[4096];

static const char *in(const char *dir, const char *name)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t n)
{
    int fd = open(name, O_WRONLY | O_TRUNC);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n)
        perror(name), exit(2);
    close(fd);
}

/* Changes a few bytes, most of them in the first 128 of n; where there is a
 * checksum it is often made right again, so that the rest is read too. */
static size_t spoil(unsigned char *bytes, size_t n, size_t checksum)
{
    for (int i = rand() % 8; i >= 0; i--)
        bytes[(rand() % 4 ? (size_t)rand() % 128 : (size_t)rand()) % n] = (unsigned char)(rand() % 3 ? rand() : -(rand() % 2));
    if (checksum && rand() % 4) {
        uint64_t sum = sluice_checksum(bytes, checksum);
        memcpy(bytes + checksum, &sum, sizeof sum);
    }
    return rand() % 16 ? n : (size_t)rand() % n;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const char *dir = argv[1];
    unsigned long accepted = 0, refused = 0;
    unsigned char limit[sizeof(struct sluice_limit)], grant[sizeof(struct sluice_grant)];
    static unsigned char account[sizeof(struct sluice_account)], bytes[sizeof(struct sluice_account)];
    struct { const char *name; unsigned char *to; size_t n; } whole[] = {
        {"limit", limit, sizeof limit}, {"grant", grant, sizeof grant}, {"account", account, sizeof account}};
    srand((unsigned)atoi(argv[3]));
    for (int i = 0; i < 3; i++) {
        int fd = open(in(dir, whole[i].name), O_RDONLY);
        if (fd < 0 || read(fd, whole[i].to, whole[i].n) != (ssize_t)whole[i].n)
            return perror(path), 2;
        close(fd);
    }
    for (long round = atol(argv[2]); round > 0; round--) {
        struct sluice_limit l;
        memcpy(bytes, limit, sizeof limit);
        size_t n = spoil(bytes, sizeof limit, offsetof(struct sluice_limit, checksum));
        if (limit_check(bytes, n, &l)) {
            refused++;
        } else {
            accepted++;
            if (l.core_percent > 100 || l.core_policy > SLUICE_CORES_HARD ||
                (!(l.flags & SLUICE_LIMIT_WHOLE) && (!l.memory_bytes || l.memory_bytes > SLUICE_MAX_BYTES)))
                return fprintf(stderr, "a limit out of range was accepted\n"), 1;
        }
        if (round % 50)
            continue;
        const struct sluice_grant *g;
        memcpy(bytes, grant, sizeof grant);
        n = spoil(bytes, sizeof grant, 0);
        put(in(dir, "grant"), bytes, n);
        if (!grant_map(path, &g)) {
            struct sluice_grant copy;
            grant_get(g, &copy);
        }
        put(in(dir, "grant"), grant, sizeof grant);
        /* An account full of lies: charges may be refused, nothing may break.
         * What is returned is never more than this process was charged. */
        struct ledger ledger = {0};
        memcpy(bytes, account, sizeof account);
        n = rand() % 2 ? spoil(bytes, sizeof account, 0) : sizeof account;
        for (size_t i = 24; i < sizeof account && rand() % 2; i += 1 + (size_t)rand() % 4096)
            bytes[i] = (unsigned char)rand();
        put(in(dir, "account"), bytes, n);
        if (ledger_open(&ledger, path) != LEDGER_OPENED)
            continue;
        for (int i = 0; i < 100; i++) {
            uint64_t units = (uint64_t)rand() % 100000;
            ledger_charge(&ledger, units, 1000000);
            if (ledger_return(&ledger, units) > units)
                return fprintf(stderr, "more came back than was asked for\n"), 1;
            if (i % 10 == 0)
                ledger_collect(&ledger, path);
            ledger_force(&ledger, (uint64_t)rand() % 100);
            ((unsigned char *)ledger.account)[24 + (size_t)rand() % (sizeof account - 24)] = (unsigned char)rand();
        }
    }
    printf("accepted=%lu refused=%lu\n", accepted, refused);
    return 0;
}
