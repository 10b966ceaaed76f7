#define _GNU_SOURCE
#include "process.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "files.h"
#include "real.h"
#include "say.h"

#ifndef SLUICE_SHARES
#define SLUICE_SHARES "/run/sluice/shares"
#endif

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#if defined(__x86_64__)
enum { PAGE = 4096 };
#else
enum { PAGE = 65536 }; /* the largest in use */
#endif

/* Whole pages: nothing else must be wiped with it. */
static _Alignas(PAGE) union {
    struct process process;
    char pages[(sizeof(struct process) + PAGE - 1) / PAGE * PAGE];
} state;

struct process *const process = &state.process;

static void before_fork(void)
{
    lock_take(&process->attaching);
}

static void after_fork_in_parent(void)
{
    lock_drop(&process->attaching);
}

/* The kernel has wiped the pages already, unless it is older than 4.14. */
static void after_fork_in_child(void)
{
    memset(&state, 0, sizeof state);
}

static void be_born(void)
{
    static int born;
    if (__atomic_exchange_n(&born, 1, __ATOMIC_ACQ_REL))
        return;
    madvise(&state, sizeof state, MADV_WIPEONFORK);
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* Reads one share's folder. Returns 0, or the reason of the refusal. */
static const char *load_share(const char *name, struct share *s, char *path, size_t size)
{
    struct sluice_limit limit;
    struct sluice_grant grant;
    const char *wrong;
    snprintf(path, size, SLUICE_SHARES "/%s/limit", name);
    if ((wrong = limit_read(path, &limit)))
        return wrong;
    memcpy(s->card, limit.card, sizeof s->card);
    s->whole = limit.flags & SLUICE_LIMIT_WHOLE;
    s->limit = limit.memory_bytes >> SLUICE_UNIT_SHIFT;
    snprintf(path, size, SLUICE_SHARES "/%s/grant", name);
    if ((wrong = grant_map(path, &s->grant)))
        return wrong;
    s->sequence = s->grant->sequence;
    if (grant_get(s->grant, &grant))
        s->overhead = to_units(grant.context_overhead_bytes);
    snprintf(path, size, SLUICE_SHARES "/%s/account", name);
    if (!(s->account = strdup(path)))
        return strerror(ENOMEM);
    return 0;
}

static void unload_shares(void)
{
    for (uint32_t i = 0; i < process->shares; i++) {
        struct share *s = &process->share[i];
        if (s->grant)
            munmap((void *)s->grant, sizeof *s->grant);
        if (s->ledger.account) /* its lock, and with it the slot, goes with the mapping */
            munmap(s->ledger.account, sizeof *s->ledger.account);
        free(s->account);
        memset(s, 0, sizeof *s);
    }
    process->shares = 0;
    process->cards = 0;
}

static bool load_shares(void)
{
    char path[PATH_MAX] = SLUICE_SHARES;
    const char *wrong = 0;
    struct dirent *e;
    DIR *d = opendir(SLUICE_SHARES);
    if (!d) {
        say("%s: %s: this container has no share of a card; ask for one in a ResourceClaim", path, strerror(errno));
        return false;
    }
    while (!wrong && (errno = 0, e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        if (process->shares == MAX_SHARES)
            wrong = "too many shares in one container";
        else
            wrong = load_share(e->d_name, &process->share[process->shares++], path, sizeof path);
    }
    closedir(d);
    if (!wrong && !process->shares)
        wrong = "this container has no share of a card; ask for one in a ResourceClaim";
    if (wrong)
        say("%s: %s", path, wrong);
    return !wrong;
}

bool process_load(void)
{
    be_born();
    lock_take(&process->attaching);
    bool ok = process->shares || load_shares();
    if (!ok)
        unload_shares();
    lock_drop(&process->attaching);
    return ok;
}

/* Attaches to the account of a share and puts it to the card's. */
static bool take_share(struct card *c, uint32_t i)
{
    struct share *s = &process->share[i];
    if (c->shares == CARD_SHARES) {
        say("more than %d shares of one card in one container", CARD_SHARES);
        return false;
    }
    if (s->whole) {
        c->whole = true;
        return true;
    }
    switch (ledger_open(&s->ledger, s->account)) {
    case LEDGER_OPENED:
        c->share[c->shares++] = (uint8_t)i;
        c->limit += s->limit;
        return true;
    case LEDGER_FULL:
        say("%s: %u processes of this share run already, there is no place for another", s->account, SLUICE_SLOTS);
        return false;
    case LEDGER_NOT_ACCOUNT:
        say("%s: it is damaged or of another version than this limiter; delete the pod to get a new one", s->account);
        return false;
    default:
        say("%s: %s; the file must be writable for the container's user", s->account, strerror(errno));
        return false;
    }
}

static CUresult attach_device(CUdevice device, int ordinal)
{
    struct card *c = &process->card[process->cards];
    CUuuid uuid;
    CUresult r = HAS(cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(&uuid, device) : REAL(cuDeviceGetUuid)(&uuid, device);
    if (r)
        return r;
    memset(c, 0, sizeof *c);
    c->device = device;
    memcpy(c->uuid, uuid.bytes, sizeof c->uuid);
    for (uint32_t i = 0; i < process->shares; i++)
        if (!memcmp(process->share[i].card, c->uuid, sizeof c->uuid) && !take_share(c, i))
            return CUDA_ERROR_NOT_PERMITTED;
    if (!c->whole && !c->shares) {
        say("CUDA device %d is visible, but no share in " SLUICE_SHARES " is for it", ordinal);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    process->cards++;
    return CUDA_SUCCESS;
}

static CUresult attach_devices(void)
{
    int count = 0;
    CUresult r = REAL(cuDeviceGetCount)(&count);
    for (int i = 0; !r && i < count; i++) {
        CUdevice device;
        if (process->cards == MAX_CARDS) {
            say("more than %d CUDA devices in one container", MAX_CARDS);
            return CUDA_ERROR_NOT_PERMITTED;
        }
        if (!(r = REAL(cuDeviceGet)(&device, i)))
            r = attach_device(device, i);
    }
    return r;
}

/* Where a launch looks first. */
static void find_gates(void)
{
    static const uint32_t never;
    uint32_t n = 0;
    for (uint32_t i = 0; i < process->cards; i++) {
        const struct card *c = &process->card[i];
        if (!c->whole)
            process->gated[n++] = &process->share[c->share[0]].grant->core_gated;
    }
    if (!n)
        process->gated[n++] = &never;
    process->gates = n;
}

CUresult process_attach(void)
{
    CUresult r = CUDA_SUCCESS;
    be_born();
    lock_take(&process->attaching);
    if (!process->ready) {
        if (!process->shares && !load_shares())
            r = CUDA_ERROR_NOT_PERMITTED;
        if (!r)
            r = attach_devices();
        if (r)
            unload_shares();
        else
            find_gates();
        __atomic_store_n(&process->ready, !r, __ATOMIC_RELEASE);
    }
    lock_drop(&process->attaching);
    return r;
}

CUresult process_enter_slowly(void)
{
    int count;
    CUresult r = REAL(cuDeviceGetCount)(&count);
    if (r) /* not initialised, or no device: nothing can be allocated */
        return CUDA_ERROR_NOT_INITIALIZED;
    r = process_attach();
    return r ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

struct card *process_card(CUdevice device)
{
    /* The driver's handles are its ordinals, but nobody promised. */
    if (device >= 0 && (uint32_t)device < process->cards && process->card[device].device == device)
        return &process->card[device];
    for (uint32_t i = 0; i < process->cards; i++)
        if (process->card[i].device == device)
            return &process->card[i];
    return 0;
}
