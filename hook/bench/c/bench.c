/*
 * Measures calls of the driver that the loader finds; run once with the null
 * driver alone and once with the limiter before it.
 *
 *     bench pair LIVE N       allocation and free, LIVE others alive
 *     bench info N            cuMemGetInfo
 *     bench launch N          cuLaunchKernel
 *     bench threads COUNT N   pairs by COUNT threads
 *     bench init              the first cuInit
 *     bench memory            private memory of the process after some work
 *
 * Prints nanoseconds a call (pair, init), or kilobytes.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_abi.h"

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **);

static CUcontext context;
static long n;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void must(CUresult r)
{
    if (r) {
        fprintf(stderr, "bench: the driver answers %d\n", r);
        exit(1);
    }
}

static void pairs(long count)
{
    CUdeviceptr p;
    for (long i = 0; i < count; i++) {
        must(cuMemAlloc_v2(&p, 4096));
        must(cuMemFree_v2(p));
    }
}

static void *worker(void *arg)
{
    must(cuCtxSetCurrent(context));
    pairs(n);
    return arg;
}

/* Without the account's pages, which all processes of the share have together. */
static long private_kb(void)
{
    char line[4096];
    long kb = 0, v;
    unsigned long from, to;
    int shared = 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            shared = strstr(line, "/account") != 0;
        else if (!shared && (sscanf(line, "Private_Clean: %ld", &v) == 1 || sscanf(line, "Private_Dirty: %ld", &v) == 1))
            kb += v;
    }
    return kb;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    double begun = now();
    must(cuInit(0));
    double inited = now();
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    if (!strcmp(what, "init")) {
        printf("%.0f\n", inited - begun);
        return 0;
    }
    if (!strcmp(what, "memory")) {
        pairs(100);
        printf("%ld\n", private_kb());
        return 0;
    }
    if (!strcmp(what, "pair")) {
        CUdeviceptr p;
        for (long i = atol(argv[2]); i > 0; i--)
            must(cuMemAlloc_v2(&p, 4096));
        n = atol(argv[3]);
        pairs(1000);
        begun = now();
        pairs(n);
    } else if (!strcmp(what, "threads")) {
        int count = atoi(argv[2]);
        pthread_t t[64];
        n = atol(argv[3]) / count;
        begun = now();
        for (int i = 0; i < count; i++)
            pthread_create(&t[i], 0, worker, 0);
        for (int i = 0; i < count; i++)
            pthread_join(t[i], 0);
        n *= count;
    } else {
        size_t free, total;
        n = atol(argv[2]);
        int info = !strcmp(what, "info");
        begun = now();
        for (long i = 0; i < n; i++)
            must(info ? cuMemGetInfo_v2(&free, &total) : cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
    }
    printf("%.2f\n", (now() - begun) / (double)n);
    return 0;
}
