/*
 * Uses CUDA and looks whether anything of the process has changed: umask,
 * signal handlers and mask, descriptors, what is on stdout, exit handlers.
 * Exits with the number of things that did.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_abi.h"

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

static void first(void)
{
    puts("first");
}

static void second(void)
{
    puts("second");
}

static void third(void)
{
    puts("third");
}

static void settings(struct sigaction *handlers, sigset_t *mask, mode_t *um)
{
    for (int i = 1; i < 65; i++) {
        memset(&handlers[i], 0, sizeof handlers[i]);
        sigaction(i, 0, &handlers[i]);
    }
    sigprocmask(SIG_SETMASK, 0, mask);
    *um = umask(0);
    umask(*um);
}

static int descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

int main(void)
{
    static struct sigaction before[65], after[65];
    sigset_t mask_before, mask_after;
    mode_t umask_before, umask_after;
    CUcontext ctx;
    CUdeviceptr p;
    size_t free, total;
    int wrong = 0;

    puts("begin");
    atexit(first);
    umask(027);
    signal(SIGUSR1, SIG_IGN);
    settings(before, &mask_before, &umask_before);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx))
        return 100;
    atexit(second);
    int open_before = descriptors(); /* the driver keeps some of its own */
    if (cuMemAlloc_v2(&p, 1 << 20) || cuMemAlloc_v2(&p, 1ull << 40) != CUDA_ERROR_OUT_OF_MEMORY ||
        cuMemGetInfo_v2(&free, &total) || cuMemFree_v2(p))
        return 101;
    atexit(third);
    settings(after, &mask_after, &umask_after);
    wrong += umask_before != umask_after;
    wrong += memcmp(&mask_before, &mask_after, sizeof mask_before) != 0;
    for (int i = 1; i < 65; i++)
        wrong += before[i].sa_handler != after[i].sa_handler;
    wrong += descriptors() != open_before;
    puts("end");
    return wrong;
}
