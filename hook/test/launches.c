/* Launches kernels from many threads at once, for a sanitizer to watch what the
 * gate has in common for them.
 *
 *   launches THREADS COUNT
 *
 * Every second thread works in a context of its own, which it ends while the
 * others go on; of the rest, every other one launches into the stream that all
 * have in common. Exits with 0 if nothing failed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"

static CUresult (*p_cuInit)(unsigned);
static CUresult (*p_cuCtxCreate_v2)(CUcontext *, unsigned, CUdevice);
static CUresult (*p_cuCtxDestroy_v2)(CUcontext);
static CUresult (*p_cuCtxSetCurrent)(CUcontext);
static CUresult (*p_cuCtxSynchronize)(void);
static CUresult (*p_cuStreamCreate)(CUstream *, unsigned);
static CUresult (*p_cuModuleLoadData)(void **, const void *);
static CUresult (*p_cuModuleGetFunction)(CUfunction *, void *, const char *);
static CUresult (*p_cuLaunchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                                    void **, void **);

static CUcontext common;
static unsigned long count;

static CUresult work(unsigned long number)
{
    CUcontext context = common;
    CUstream stream = 0;
    void *module;
    CUfunction spin;
    CUresult r = number % 2 ? p_cuCtxCreate_v2(&context, 0, 0) : p_cuCtxSetCurrent(common);
    if (!r && number % 4)
        r = p_cuStreamCreate(&stream, 1);
    if (!r)
        r = p_cuModuleLoadData(&module, "fakegpu module\nspin param\n");
    if (!r)
        r = p_cuModuleGetFunction(&spin, module, "spin");
    for (unsigned long i = 0; !r && i < count; i++) {
        uint64_t ns = 20000 << (i % 4);
        void *parameters[] = {&ns};
        r = p_cuLaunchKernel(spin, 1 + (unsigned)(i % 3), 1, 1, 32, 1, 1, 0, stream, parameters, 0);
    }
    if (!r)
        r = p_cuCtxSynchronize();
    if (!r && number % 2)
        r = p_cuCtxDestroy_v2(context);
    return r;
}

static void *thread(void *number)
{
    return (void *)(uintptr_t)work((unsigned long)(uintptr_t)number);
}

int main(int argc, char **argv)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (argc != 3 || !driver) {
        fprintf(stderr, "launches THREADS COUNT: %s\n", driver ? "wrong arguments" : dlerror());
        return 2;
    }
#define FIND(name) *(void **)&p_##name = dlsym(driver, #name)
    FIND(cuInit);
    FIND(cuCtxCreate_v2);
    FIND(cuCtxDestroy_v2);
    FIND(cuCtxSetCurrent);
    FIND(cuCtxSynchronize);
    FIND(cuStreamCreate);
    FIND(cuModuleLoadData);
    FIND(cuModuleGetFunction);
    FIND(cuLaunchKernel);
    unsigned long threads = strtoul(argv[1], 0, 10);
    count = strtoul(argv[2], 0, 10);
    CUresult r = p_cuInit(0);
    if (!r)
        r = p_cuCtxCreate_v2(&common, 0, 0);
    pthread_t *t = calloc(threads, sizeof *t);
    if (r || !t)
        return 1;
    for (unsigned long i = 0; i < threads; i++)
        if (pthread_create(&t[i], 0, thread, (void *)(uintptr_t)i))
            return 1;
    for (unsigned long i = 0; i < threads; i++) {
        void *result;
        pthread_join(t[i], &result);
        if (result) {
            fprintf(stderr, "thread %lu: %d\n", i, (int)(uintptr_t)result);
            r = (CUresult)(uintptr_t)result;
        }
    }
    free(t);
    return r != 0;
}
