/*
 * A driver that does nothing, as fast as can be, so that what is measured is
 * the limiter. One card, whose UUID ends in 1.
 */
#include <stdint.h>
#include <string.h>

#include "cuda_abi.h"

static __thread CUcontext current;
static int active;
static uint64_t next_address = 0x700000000000ull;

#define ANSWER(name, params, ...)  \
    CUresult name params;          \
    CUresult name params           \
    {                              \
        __VA_ARGS__;               \
        return CUDA_SUCCESS;       \
    }

ANSWER(cuInit, (unsigned flags), (void)flags)
ANSWER(cuDeviceGetCount, (int *count), *count = 1)
ANSWER(cuDeviceGet, (CUdevice *dev, int ordinal), *dev = ordinal)
ANSWER(cuDeviceGetUuid, (CUuuid *uuid, CUdevice dev), memset(uuid, 0, sizeof *uuid), uuid->bytes[15] = 1, (void)dev)
ANSWER(cuDevicePrimaryCtxRetain, (CUcontext *ctx, CUdevice dev), *ctx = (CUcontext)(uintptr_t)4096, active = 1, (void)dev)
ANSWER(cuDevicePrimaryCtxGetState, (CUdevice dev, unsigned *flags, int *is), *flags = 0, *is = active, (void)dev)
ANSWER(cuCtxSetCurrent, (CUcontext ctx), current = ctx)
ANSWER(cuCtxGetCurrent, (CUcontext *ctx), *ctx = current)
ANSWER(cuCtxGetDevice, (CUdevice *dev), *dev = 0)
ANSWER(cuMemAlloc_v2, (CUdeviceptr *ptr, size_t bytes),
       *ptr = __atomic_fetch_add(&next_address, 512, __ATOMIC_RELAXED), (void)bytes)
ANSWER(cuMemFree_v2, (CUdeviceptr ptr), (void)ptr)
ANSWER(cuMemGetInfo_v2, (size_t *free, size_t *total), *free = *total = (size_t)80 << 30)
ANSWER(cuLaunchKernel,
       (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
        CUstream stream, void **params, void **extra),
       (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params,
       (void)extra)
ANSWER(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode), *mode = 0)
ANSWER(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), *status = 0, (void)stream)
/* Kernels take 2 us and are done at once. */
ANSWER(cuEventCreate, (CUevent *event, unsigned flags), *event = (CUevent)(uintptr_t)4096, (void)flags)
ANSWER(cuEventRecord, (CUevent event, CUstream stream), (void)event, (void)stream)
ANSWER(cuEventQuery, (CUevent event), (void)event)
ANSWER(cuEventElapsedTime, (float *ms, CUevent from, CUevent to), *ms = 0.002f, (void)from, (void)to)
