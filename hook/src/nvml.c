/*
 * What NVML says about a card's memory and processes, for a container that has
 * a slice of it: the slice's size, what is used of it, and the processes that
 * share it. Stands where the driver's mount puts libnvidia-ml; every other
 * function is the real library's.
 *
 * It only reads. It holds no slot in an account and charges nothing, so
 * nvidia-smi works also where a share's places are all taken. A card of which
 * the container has no slice is reported as the real library reports it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "elf_object.h"
#include "files.h"

#ifndef SLUICE_SHARES
#define SLUICE_SHARES "/run/sluice/shares"
#endif

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#endif

#define EXPORT __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};
typedef struct nvmlDevice_st *nvmlDevice_t;

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_v1 {
    unsigned pid;
    unsigned long long used;
};
struct process_v2 {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance; /* none: all ones */
};

#define LIST(F)                                                       \
    F(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, struct memory *))       \
    F(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, struct memory_v2 *)) \
    F(nvmlDeviceGetComputeRunningProcesses, (nvmlDevice_t, unsigned *, struct process_v1 *))    \
    F(nvmlDeviceGetComputeRunningProcesses_v2, (nvmlDevice_t, unsigned *, struct process_v2 *)) \
    F(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, struct process_v2 *)) \
    F(nvmlDeviceGetGraphicsRunningProcesses, (nvmlDevice_t, unsigned *, void *))                \
    F(nvmlDeviceGetGraphicsRunningProcesses_v2, (nvmlDevice_t, unsigned *, void *))             \
    F(nvmlDeviceGetGraphicsRunningProcesses_v3, (nvmlDevice_t, unsigned *, void *))             \
    F(nvmlDeviceGetMPSComputeRunningProcesses, (nvmlDevice_t, unsigned *, void *))              \
    F(nvmlDeviceGetMPSComputeRunningProcesses_v2, (nvmlDevice_t, unsigned *, void *))           \
    F(nvmlDeviceGetMPSComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, void *))

#define F(name, params) EXPORT nvmlReturn_t name params;
LIST(F)
#undef F

/* ---- the real library ---- */

static int visit(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct object o;
    (void)size;
    if (!object_open(&o, info) || strcmp(o.soname, "libnvidia-ml.so.1") ||
        object_function(&o, "nvmlDeviceGetMemoryInfo") == (void *)nvmlDeviceGetMemoryInfo)
        return 0;
    *(struct object *)arg = o;
    return 1;
}

/* Seldom called and cheap beside what NVML does, so nothing is kept. */
static void *real(const char *name)
{
    struct object o;
    return dl_iterate_phdr(visit, &o) ? object_function(&o, name) : 0;
}

/* ---- the slice ---- */

struct slice {
    uint64_t total, used; /* bytes */
    unsigned processes;
    struct process_v2 process[SLUICE_SLOTS];
};

static bool alive(int fd, uint32_t slot)
{
    struct flock f = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &f) == 0 && f.l_type != F_UNLCK;
}

static void add_slot(struct slice *s, int fd, uint32_t i, const struct sluice_slot *slot)
{
    uint64_t units = slot->record[slot->applied & 1];
    if (units > SLUICE_MAX_UNITS)
        units = SLUICE_MAX_UNITS;
    if ((!units && !slot->contexts) || !alive(fd, i))
        return;
    s->used += units << SLUICE_UNIT_SHIFT;
    if (slot->contexts && s->processes < SLUICE_SLOTS)
        s->process[s->processes++] = (struct process_v2){slot->pid, units << SLUICE_UNIT_SHIFT, ~0u, ~0u};
}

static void add_share(struct slice *s, const char *share, const uint8_t *card)
{
    char path[PATH_MAX];
    struct sluice_limit limit;
    struct sluice_account *a;
    snprintf(path, sizeof path, SLUICE_SHARES "/%s/limit", share);
    if (limit_read(path, &limit) || memcmp(limit.card, card, sizeof limit.card) || limit.flags & SLUICE_LIMIT_WHOLE)
        return;
    s->total += limit.memory_bytes;
    snprintf(path, sizeof path, SLUICE_SHARES "/%s/account", share);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    if ((a = malloc(sizeof *a)) && pread(fd, a, sizeof *a, 0) == sizeof *a)
        for (uint32_t i = 0; i < SLUICE_SLOTS; i++)
            add_slot(s, fd, i, &a->slot[i]);
    free(a);
    close(fd);
}

/* "GPU-" and 32 hexadecimal digits with dashes among them. */
static bool parse_uuid(const char *text, uint8_t *card)
{
    unsigned digits = 0;
    memset(card, 0, 16);
    if (!strncmp(text, "GPU-", 4) || !strncmp(text, "MIG-", 4))
        text += 4;
    for (; *text; text++) {
        unsigned char c = (unsigned char)(*text | 0x20);
        if (*text == '-')
            continue;
        if (digits == 32 || !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        card[digits / 2] = (uint8_t)(card[digits / 2] << 4 | (c <= '9' ? c - '0' : c - 'a' + 10));
        digits++;
    }
    return digits == 32;
}

/* What the container has of the device; 0: nothing, or the device is none. */
static struct slice *slice_of(nvmlDevice_t device)
{
    nvmlReturn_t (*get_uuid)(nvmlDevice_t, char *, unsigned) =
        (nvmlReturn_t(*)(nvmlDevice_t, char *, unsigned))real("nvmlDeviceGetUUID");
    char text[96];
    uint8_t card[16];
    struct dirent *e;
    if (!get_uuid || get_uuid(device, text, sizeof text) || !parse_uuid(text, card))
        return 0;
    struct slice *s = calloc(1, sizeof *s);
    DIR *d = s ? opendir(SLUICE_SHARES) : 0;
    while (d && (e = readdir(d)))
        if (e->d_name[0] != '.')
            add_share(s, e->d_name, card);
    if (d)
        closedir(d);
    if (s && s->total)
        return s;
    free(s);
    return 0;
}

/* ---- memory ---- */

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *m)
{
    nvmlReturn_t (*f)(nvmlDevice_t, struct memory *) =
        (nvmlReturn_t(*)(nvmlDevice_t, struct memory *))real("nvmlDeviceGetMemoryInfo");
    nvmlReturn_t r = f ? f(device, m) : NVML_ERROR_FUNCTION_NOT_FOUND;
    struct slice *s = r ? 0 : slice_of(device);
    if (s) {
        m->total = s->total;
        m->used = s->used;
        m->free = s->used < s->total ? s->total - s->used : 0;
    }
    free(s);
    return r;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *m)
{
    nvmlReturn_t (*f)(nvmlDevice_t, struct memory_v2 *) =
        (nvmlReturn_t(*)(nvmlDevice_t, struct memory_v2 *))real("nvmlDeviceGetMemoryInfo_v2");
    nvmlReturn_t r = f ? f(device, m) : NVML_ERROR_FUNCTION_NOT_FOUND;
    struct slice *s = r ? 0 : slice_of(device);
    if (s) {
        m->total = s->total;
        m->reserved = 0; /* the slice is of what can be handed out */
        m->used = s->used;
        m->free = s->used < s->total ? s->total - s->used : 0;
    }
    free(s);
    return r;
}

/* ---- processes ---- */

/* NVML's way with lists: count says how much room there is and then how many
 * there are; too little room is an error that tells the number. */
static nvmlReturn_t answer(const struct slice *s, unsigned *count, void *infos, bool old)
{
    unsigned room = *count;
    *count = s->processes;
    if (room < s->processes)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (s->processes && !infos)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < s->processes; i++) {
        if (old)
            ((struct process_v1 *)infos)[i] = (struct process_v1){s->process[i].pid, s->process[i].used};
        else
            ((struct process_v2 *)infos)[i] = s->process[i];
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t processes(const char *name, nvmlDevice_t device, unsigned *count, void *infos, bool compute, bool old)
{
    nvmlReturn_t (*f)(nvmlDevice_t, unsigned *, void *) =
        (nvmlReturn_t(*)(nvmlDevice_t, unsigned *, void *))real(name);
    if (!f)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    struct slice *s = count ? slice_of(device) : 0;
    if (!s)
        return f(device, count, infos);
    if (!compute)
        s->processes = 0; /* the slice's processes compute; others' are not shown */
    nvmlReturn_t r = answer(s, count, infos, old);
    free(s);
    return r;
}

#define PROCESSES(name, type, compute, old)                                      \
    nvmlReturn_t name(nvmlDevice_t device, unsigned *count, type *infos)         \
    {                                                                            \
        return processes(#name, device, count, infos, compute, old);             \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, struct process_v1, true, true)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, struct process_v2, true, false)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, struct process_v2, true, false)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, void, false, true)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, void, false, false)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, void, false, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, void, false, true)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, void, false, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, void, false, false)
