/*
 * A driver of long ago: linear memory and primary contexts, no pools, no
 * virtual memory, and the first form of cuGetProcAddress_v2 that a program can
 * ask. One card, whose UUID is that of the tests' first one.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_abi.h"

static int initialised, references;
static CUcontext current;

CUresult cuInit(unsigned flags);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *dev, int ordinal);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev);
CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuCtxGetCurrent(CUcontext *ctx);
CUresult cuCtxGetDevice(CUdevice *dev);
CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr ptr);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);

CUresult cuInit(unsigned flags)
{
    initialised = 1;
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = 1;
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
    *dev = ordinal;
    return ordinal ? 101 : CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[15] = 1;
    return dev ? 101 : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    references++;
    *ctx = (CUcontext)(uintptr_t)0x1000;
    return dev ? 101 : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active)
{
    *flags = 0;
    *active = references > 0;
    return dev ? 101 : CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    current = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
    *ctx = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *dev)
{
    *dev = 0;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
    *ptr = (CUdeviceptr)(uintptr_t)malloc(16);
    return bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* As a driver may: what it hands out is not what it exports. */
static CUresult inner_alloc(CUdeviceptr *ptr, size_t bytes)
{
    return cuMemAlloc_v2(ptr, bytes);
}

/* A later variant, with other arguments than any limiter knows. */
static CUresult later_alloc(CUdeviceptr *ptr, size_t bytes, void *more)
{
    return more ? CUDA_ERROR_INVALID_VALUE : cuMemAlloc_v2(ptr, bytes);
}

CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    free((void *)(uintptr_t)ptr);
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    *free_bytes = *total = (size_t)80 << 30;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
    static const struct {
        const char *name;
        void *function;
    } have[] = {
        {"cuInit", (void *)cuInit},
        {"cuDevicePrimaryCtxRetain", (void *)cuDevicePrimaryCtxRetain},
        {"cuCtxSetCurrent", (void *)cuCtxSetCurrent},
        {"cuMemAlloc", (void *)inner_alloc},
        {"cuMemFree", (void *)cuMemFree_v2},
        {"cuMemGetInfo", (void *)cuMemGetInfo_v2},
    };
    (void)flags;
    *pfn = 0;
    *status = 1;
    for (unsigned i = 0; i < sizeof have / sizeof have[0]; i++)
        if (!strcmp(have[i].name, symbol)) {
            *pfn = have[i].function;
            *status = 0;
        }
    if (version >= 20000 && !strcmp(symbol, "cuMemAlloc"))
        *pfn = (void *)later_alloc;
    return CUDA_SUCCESS;
}
