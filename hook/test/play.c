/*
 * A CUDA program that does what it is told, one command a line on stdin, and
 * answers each with one line. The tests' stories are written in its commands.
 *
 *     play [link|open NAME|deep NAME|space NAME|beside NAME|proc VERSION FLAGS]
 *
 * says how it comes to the driver's functions: linked, by dlopen and dlsym
 * (also with RTLD_DEEPBIND, and by dlmopen), or by cuGetProcAddress_v2. beside
 * loads another library after it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_abi.h"

#define FUNCTIONS(F)                                                                                          \
    F(cuInit, cuInit, (unsigned))                                                                             \
    F(cuDeviceTotalMem_v2, cuDeviceTotalMem, (size_t *, CUdevice))                                            \
    F(cuMemGetInfo_v2, cuMemGetInfo, (size_t *, size_t *))                                                    \
    F(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                            \
    F(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, (CUdevice))                                    \
    F(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, (CUdevice))                                        \
    F(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext))                                                          \
    F(cuCtxCreate_v2, cuCtxCreate, (CUcontext *, unsigned, CUdevice))                                         \
    F(cuCtxDestroy_v2, cuCtxDestroy, (CUcontext))                                                             \
    F(cuCtxSynchronize, cuCtxSynchronize, (void))                                                             \
    F(cuMemAlloc_v2, cuMemAlloc, (CUdeviceptr *, size_t))                                                     \
    F(cuMemAllocPitch_v2, cuMemAllocPitch, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))               \
    F(cuMemAllocManaged, cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))                                \
    F(cuMemFree_v2, cuMemFree, (CUdeviceptr))                                                                 \
    F(cuMemAllocAsync, cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                    \
    F(cuMemFreeAsync, cuMemFreeAsync, (CUdeviceptr, CUstream))                                                \
    F(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))      \
    F(cuMemPoolCreate, cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))                             \
    F(cuMemPoolDestroy, cuMemPoolDestroy, (CUmemoryPool))                                                     \
    F(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))                       \
    F(cuMemPoolTrimTo, cuMemPoolTrimTo, (CUmemoryPool, size_t))                                               \
    F(cuMemCreate, cuMemCreate,                                                                               \
      (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))              \
    F(cuMemRelease, cuMemRelease, (CUmemGenericAllocationHandle))                                             \
    F(cuMemAddressReserve, cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
    F(cuMemMap, cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))    \
    F(cuMemUnmap, cuMemUnmap, (CUdeviceptr, size_t))                                                          \
    F(cuMemExportToShareableHandle, cuMemExportToShareableHandle,                                             \
      (void *, CUmemGenericAllocationHandle, int, unsigned long long))                                        \
    F(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle,                                         \
      (CUmemGenericAllocationHandle *, void *, int))                                                          \
    F(cuCtxSetLimit, cuCtxSetLimit, (int, size_t))                                                            \
    F(cuArrayCreate_v2, cuArrayCreate, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *))                            \
    F(cuArray3DCreate_v2, cuArray3DCreate, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))                      \
    F(cuArrayDestroy, cuArrayDestroy, (CUarray))                                                              \
    F(cuMipmappedArrayCreate, cuMipmappedArrayCreate,                                                         \
      (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned))                                        \
    F(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, (CUmipmappedArray))                                   \
    F(cuGraphCreate, cuGraphCreate, (CUgraph *, unsigned))                                                    \
    F(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode,                                                         \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *))                    \
    F(cuGraphAddMemFreeNode, cuGraphAddMemFreeNode,                                                           \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))                                     \
    F(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
    F(cuGraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream))                                                  \
    F(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec))                                                  \
    F(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, (CUdevice))                                                 \
    F(cuStreamCreate, cuStreamCreate, (CUstream *, unsigned))                                                 \
    F(cuStreamBeginCapture_v2, cuStreamBeginCapture, (CUstream, int))                                         \
    F(cuStreamEndCapture, cuStreamEndCapture, (CUstream, CUgraph *))                                          \
    F(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *, void *))

#define F(name, asked, params) static CUresult(*p_##name) params;
FUNCTIONS(F)
#undef F

#ifdef LINKED
#define F(name, asked, params) extern CUresult name params;
FUNCTIONS(F)
#undef F
#endif

static int no_such_function(void)
{
    return 9999;
}

static void come_in(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "open", *name = argc > 2 ? argv[2] : "libcuda.so.1";
    CUresult (*get)(const char *, void **, int, uint64_t, int *) = 0;
    void *lib = 0;
#ifdef LINKED
    if (!strcmp(how, "link")) {
#define F(name, asked, params) p_##name = name;
        FUNCTIONS(F)
#undef F
        return;
    }
#endif
    if (!strcmp(how, "open"))
        lib = dlopen(name, RTLD_NOW);
    else if (!strcmp(how, "deep"))
        lib = dlopen(name, RTLD_NOW | RTLD_DEEPBIND);
    else if (!strcmp(how, "space"))
        lib = dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
    else if (!strcmp(how, "beside"))
        lib = dlopen("libcuda.so.1", RTLD_NOW), dlopen(name, RTLD_NOW);
    else if (!strcmp(how, "proc")) {
        lib = dlopen("libcuda.so.1", RTLD_NOW);
        if (lib)
            *(void **)&get = dlsym(lib, "cuGetProcAddress_v2");
    }
    if (!lib) {
        fprintf(stderr, "play: %s\n", dlerror());
        exit(2);
    }
    int status = -1;
#define F(name, asked, params)                                                       \
    if (get) {                                                                       \
        if (get(#asked, (void **)&p_##name, atoi(argv[2]), strtoul(argv[3], 0, 0), &status) || status) \
            p_##name = 0;                                                            \
    } else                                                                           \
        *(void **)&p_##name = dlsym(lib, #name);                                     \
    if (!p_##name)                                                                   \
        *(void **)&p_##name = (void *)no_such_function;
    FUNCTIONS(F)
#undef F
}

static struct thing {
    char family[16];
    CUdeviceptr ptr;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    CUarray array;
    CUgraphExec exec;
} things[200000];
static int n_things;
static CUcontext contexts[64];
static int n_contexts;
static int exported;
static CUmemoryPool pools[16];
static int n_pools;

static size_t size(const char *s)
{
    char *end;
    size_t n = strtoull(s, &end, 0);
    if (!strcmp(end, "Ki"))
        return n << 10;
    if (!strcmp(end, "Mi"))
        return n << 20;
    if (!strcmp(end, "Gi"))
        return n << 30;
    return n;
}

/* What pools, graphs and virtual memory are asked of, and where; see "at". */
static int kind = CU_MEM_ALLOCATION_TYPE_PINNED, location = CU_MEM_LOCATION_TYPE_DEVICE;

static int word(const char *s, const char *const *words, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(s, words[i]))
            return i;
    return -1;
}

/* A graph that allocates and frees. */
static CUresult graph(struct thing *t, size_t bytes, int card)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = kind, .location = {location, card}},
        .bytesize = bytes,
    };
    CUgraph g;
    CUgraphNode take, give;
    CUresult r = p_cuGraphCreate(&g, 0);
    if (!r)
        r = p_cuGraphAddMemAllocNode(&take, g, 0, 0, &params);
    if (!r)
        r = p_cuGraphAddMemFreeNode(&give, g, &take, 1, params.dptr);
    return r ? r : p_cuGraphInstantiateWithFlags(&t->exec, g, 0);
}

/* The same, captured from a stream. */
static CUresult captured(struct thing *t, size_t bytes)
{
    CUstream s;
    CUgraph g;
    CUresult r = p_cuStreamCreate(&s, 1);
    if (!r)
        r = p_cuStreamBeginCapture_v2(s, 0);
    if (!r)
        r = p_cuMemAllocAsync(&t->ptr, bytes, s);
    if (!r)
        r = p_cuMemFreeAsync(t->ptr, s);
    if (!r)
        r = p_cuStreamEndCapture(s, &g);
    return r ? r : p_cuGraphInstantiateWithFlags(&t->exec, g, 0);
}

static CUresult allocate(struct thing *t, const char *family, size_t bytes, int arg)
{
    CUmemAllocationProp prop = {.type = kind, .requestedHandleTypes = 1, .location = {location, arg}};
    size_t pitch;
    memset(t, 0, sizeof *t);
    snprintf(t->family, sizeof t->family, "%s", family);
    t->bytes = bytes;
    if (!strcmp(family, "linear"))
        return p_cuMemAlloc_v2(&t->ptr, bytes);
    if (!strcmp(family, "pitch")) /* rows of 1000 bytes */
        return p_cuMemAllocPitch_v2(&t->ptr, &pitch, 1000, bytes / 1000, 4);
    if (!strcmp(family, "managed"))
        return p_cuMemAllocManaged(&t->ptr, bytes, 1);
    if (!strcmp(family, "async"))
        return p_cuMemAllocAsync(&t->ptr, bytes, 0);
    if (!strcmp(family, "pool"))
        return p_cuMemAllocFromPoolAsync(&t->ptr, bytes, pools[arg], 0);
    if (!strcmp(family, "vmm"))
        return p_cuMemCreate(&t->handle, bytes, &prop, 0);
    if (!strcmp(family, "array")) /* rows of 16 KiB */
        return p_cuArrayCreate_v2(&t->array, &(CUDA_ARRAY_DESCRIPTOR){4096, bytes >> 14, 0x20, 1});
    if (!strcmp(family, "array3d"))
        return p_cuArray3DCreate_v2(&t->array, &(CUDA_ARRAY3D_DESCRIPTOR){1024, 256, bytes >> 20, 0x20, 1, 0});
    if (!strcmp(family, "sparse"))
        return p_cuArray3DCreate_v2(&t->array,
                                    &(CUDA_ARRAY3D_DESCRIPTOR){1024, 256, bytes >> 20, 0x20, 1, CUDA_ARRAY3D_SPARSE});
    if (!strcmp(family, "mipmap"))
        return p_cuMipmappedArrayCreate((CUmipmappedArray *)&t->array,
                                        &(CUDA_ARRAY3D_DESCRIPTOR){4096, bytes >> 14, 0, 0x20, 1, 0}, 1);
    if (!strcmp(family, "graph"))
        return graph(t, bytes, arg);
    if (!strcmp(family, "captured"))
        return captured(t, bytes);
    return -1;
}

static CUresult release(struct thing *t, int async)
{
    if (!strcmp(t->family, "vmm"))
        return p_cuMemRelease(t->handle);
    if (!strcmp(t->family, "mipmap"))
        return p_cuMipmappedArrayDestroy((CUmipmappedArray)t->array);
    if (t->array)
        return p_cuArrayDestroy(t->array);
    if (t->exec)
        return p_cuGraphExecDestroy(t->exec);
    return async ? p_cuMemFreeAsync(t->ptr, 0) : p_cuMemFree_v2(t->ptr);
}

/* Threads that allocate and free by all families as fast as they can. */
struct hammer {
    CUcontext context;
    unsigned dice;
    int rounds, kinds, served, refused;
    CUresult wrong;
};

static void *hammer(void *arg)
{
    static const char *const families[] = {"linear", "vmm", "array", "async", "managed"};
    struct thing held[8];
    struct hammer *h = arg;
    memset(held, 0, sizeof held);
    p_cuCtxSetCurrent(h->context);
    for (int i = 0; i < h->rounds; i++) {
        struct thing *t = &held[rand_r(&h->dice) % 8];
        if (t->bytes) {
            if (release(t, 0))
                h->wrong = -2;
            t->bytes = 0;
            continue;
        }
        CUresult r = allocate(t, families[rand_r(&h->dice) % (unsigned)h->kinds], (size_t)(1 + rand_r(&h->dice) % 16) << 21, 0);
        h->served += !r;
        h->refused += r == CUDA_ERROR_OUT_OF_MEMORY;
        if (r)
            t->bytes = 0;
        if (r && r != CUDA_ERROR_OUT_OF_MEMORY)
            h->wrong = r;
    }
    for (int i = 0; i < 8; i++)
        if (held[i].bytes && release(&held[i], 0))
            h->wrong = -2;
    return 0;
}

static void hammer_all(int threads, int rounds, int kinds)
{
    struct hammer h[64];
    pthread_t t[64];
    int served = 0, refused = 0;
    CUresult wrong = 0;
    for (int i = 0; i < threads && i < 64; i++) {
        h[i] = (struct hammer){contexts[0], (unsigned)(getpid() * 64 + i), rounds, kinds, 0, 0, 0};
        pthread_create(&t[i], 0, hammer, &h[i]);
    }
    for (int i = 0; i < threads && i < 64; i++) {
        pthread_join(t[i], 0);
        served += h[i].served;
        refused += h[i].refused;
        if (h[i].wrong)
            wrong = h[i].wrong;
    }
    p_cuCtxSynchronize();
    printf("%d served %s refused %s\n", wrong, served ? "some" : "none", refused ? "some" : "none");
}

/* One command; prints its answer. */
static void obey(char *line)
{
    char *a[6] = {0};
    int n = 0;
    for (char *w = strtok(line, " \n"); w && n < 6; w = strtok(0, " \n"))
        a[n++] = w;
    if (!n)
        return;
#define IS(name) (!strcmp(a[0], name))
#define NUMBER(i) (a[i] ? atoi(a[i]) : 0)
    CUresult r = -1;
    if (IS("init"))
        r = p_cuInit(0);
    else if (IS("retain")) {
        r = p_cuDevicePrimaryCtxRetain(&contexts[n_contexts], NUMBER(1));
        if (!r)
            p_cuCtxSetCurrent(contexts[n_contexts++]);
    } else if (IS("retain-behind")) { /* retain-behind DRIVER DEVICE: where no wrapper sees it */
        CUresult (*retain)(CUcontext *, CUdevice) = 0;
        void *driver = dlopen(a[1], RTLD_NOW | RTLD_NOLOAD);
        if (driver)
            *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
        r = retain ? retain(&contexts[n_contexts], NUMBER(2)) : -1;
        if (!r)
            p_cuCtxSetCurrent(contexts[n_contexts++]);
    } else if (IS("release"))
        r = p_cuDevicePrimaryCtxRelease_v2(NUMBER(1));
    else if (IS("reset"))
        r = p_cuDevicePrimaryCtxReset_v2(NUMBER(1));
    else if (IS("context")) {
        r = p_cuCtxCreate_v2(&contexts[n_contexts], 0, NUMBER(1));
        n_contexts += !r;
    } else if (IS("destroy"))
        r = p_cuCtxDestroy_v2(contexts[NUMBER(1)]);
    else if (IS("use"))
        r = p_cuCtxSetCurrent(contexts[NUMBER(1)]);
    else if (IS("use-none"))
        r = p_cuCtxSetCurrent(0);
    else if (IS("sync"))
        r = p_cuCtxSynchronize();
    else if (IS("alloc")) { /* alloc FAMILY BYTES [ARG] */
        r = allocate(&things[n_things], a[1], size(a[2]), NUMBER(3));
        if (!r) {
            printf("%d #%d\n", r, n_things++);
            return;
        }
    } else if (IS("fill")) { /* fill FAMILY BYTES [ARG]: as often as it goes */
        int first = n_things;
        while (!(r = allocate(&things[n_things], a[1], size(a[2]), NUMBER(3))))
            n_things++;
        printf("%d after %d\n", r, n_things - first);
        return;
    } else if (IS("free") || IS("free-async"))
        r = release(&things[NUMBER(1)], IS("free-async"));
    else if (IS("map")) { /* map THING: at an address of its own */
        struct thing *t = &things[NUMBER(1)];
        r = p_cuMemAddressReserve(&t->ptr, t->bytes, 0, 0, 0);
        if (!r)
            r = p_cuMemMap(t->ptr, t->bytes, 0, t->handle, 0);
    } else if (IS("hammer")) { /* hammer THREADS ROUNDS [FAMILIES] */
        hammer_all(NUMBER(1), NUMBER(2), a[3] ? NUMBER(3) : 5);
        return;
    } else if (IS("export")) { /* export THING: the next import takes it */
        r = p_cuMemExportToShareableHandle(&exported, things[NUMBER(1)].handle, 1, 0);
    } else if (IS("import")) {
        struct thing *t = &things[n_things];
        *t = (struct thing){.family = "vmm", .bytes = things[NUMBER(1)].bytes};
        r = p_cuMemImportFromShareableHandle(&t->handle, (void *)(intptr_t)exported, 1);
        if (!r) {
            printf("%d #%d\n", r, n_things++);
            return;
        }
    } else if (IS("heap"))
        r = p_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, size(a[1]));
    else if (IS("launch"))
        r = p_cuGraphLaunch(things[NUMBER(1)].exec, 0);
    else if (IS("graph-trim"))
        r = p_cuDeviceGraphMemTrim(NUMBER(1));
    else if (IS("unmap"))
        r = p_cuMemUnmap(things[NUMBER(1)].ptr, things[NUMBER(1)].bytes);
    else if (IS("keep")) /* keep THING: a further handle by its address */
        r = p_cuMemRetainAllocationHandle(&things[NUMBER(1)].handle, (void *)(uintptr_t)(things[NUMBER(1)].ptr + 4096));
    else if (IS("at")) { /* at KIND LOCATION: of pools, graphs and vmm from now on */
        static const char *const kinds[] = {"none", "pinned", "managed"};
        static const char *const locations[] = {"none", "device", "host", "numa", "numa-current", "invisible", "later"};
        kind = word(a[1], kinds, 3);
        location = word(a[2], locations, 7);
        r = 0;
    } else if (IS("pool")) {
        CUmemPoolProps props = {.allocType = kind, .location = {location, NUMBER(1)}};
        r = p_cuMemPoolCreate(&pools[n_pools], &props);
        n_pools += !r;
    } else if (IS("pool-default")) { /* pool-default DEVICE: the one that the driver made */
        r = p_cuDeviceGetDefaultMemPool(&pools[n_pools], NUMBER(1));
        n_pools += !r;
    } else if (IS("pool-default-trim")) {
        CUmemoryPool pool;
        r = p_cuDeviceGetDefaultMemPool(&pool, 0);
        if (!r)
            r = p_cuMemPoolTrimTo(pool, 0);
    } else if (IS("pool-destroy"))
        r = p_cuMemPoolDestroy(pools[NUMBER(1)]);
    else if (IS("pool-trim"))
        r = p_cuMemPoolTrimTo(pools[NUMBER(1)], 0);
    else if (IS("info")) {
        size_t free = 0, total = 0;
        r = p_cuMemGetInfo_v2(&free, &total);
        printf("%d free %zuMi+%zu total %zuMi\n", r, free >> 20, free & 0xfffff, total >> 20);
        return;
    } else if (IS("info-null")) {
        size_t free = 0, total = 0;
        int r1 = p_cuMemGetInfo_v2(0, &total), r2 = p_cuMemGetInfo_v2(&free, 0), r3 = p_cuMemGetInfo_v2(0, 0);
        printf("%d %d %d free %zuMi total %zuMi\n", r1, r2, r3, free >> 20, total >> 20);
        return;
    } else if (IS("total")) {
        size_t total = 0;
        r = p_cuDeviceTotalMem_v2(&total, NUMBER(1));
        printf("%d total %zuMi\n", r, total >> 20);
        return;
    } else if (IS("fork") || IS("clone")) { /* the child obeys the rest; clone: no handlers run */
        fflush(stdout);
        pid_t child = IS("fork") ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child) {
            int status;
            waitpid(child, &status, 0);
            _exit(0);
        }
        n_things = n_contexts = n_pools = 0;
        r = 0;
    } else if (IS("fork-idle") || IS("clone-idle")) { /* a child that does nothing and outlives us */
        fflush(stdout);
        pid_t child = IS("fork-idle") ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (!child) {
            close(0);
            close(1);
            close(2);
            sleep(100);
            _exit(0);
        }
        printf("%d\n", (int)child);
        return;
    } else if (IS("spawn-idle")) { /* the same by spawn and exec */
        static char *const sleep_args[] = {(char *)"sleep", (char *)"100", 0};
        posix_spawn_file_actions_t quiet;
        pid_t child = -1;
        posix_spawn_file_actions_init(&quiet);
        for (int fd = 0; fd < 3; fd++)
            posix_spawn_file_actions_addclose(&quiet, fd);
        posix_spawn(&child, "/bin/sleep", &quiet, 0, sleep_args, 0);
        printf("%d\n", (int)child);
        return;
    } else if (IS("close-all")) { /* as daemons do */
        for (int fd = 3; fd < 256; fd++)
            close(fd);
        r = 0;
    } else if (IS("kill"))
        kill(getpid(), SIGKILL);
    printf("%d\n", r);
}

int main(int argc, char **argv)
{
    static char line[512];
    setvbuf(stdin, 0, _IONBF, 0); /* a forked child must not find our lines */
    setvbuf(stdout, 0, _IOLBF, 0);
    come_in(argc, argv);
    while (fgets(line, sizeof line, stdin))
        obey(line);
    return 0;
}
