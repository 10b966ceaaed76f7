/* Launches of kernels, in all their forms. Those of graphs are in cuda_graph.c. */
#include <stdlib.h>

#include "launch.h"
#include "pool.h"
#include "real.h"

#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared

CUresult cuLaunchKernel(CUfunction f, GRID, CUstream stream, void **params, void **extra)
{
    struct launch l;
    if (launch_free())
        return REAL(cuLaunchKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
    CUresult r = launch_begin(&l, f, gx, gy, gz, stream_named(stream, false));
    return r ? r : launch_end(&l, REAL(cuLaunchKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

CUresult cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params, void **extra)
{
    struct launch l;
    if (launch_free())
        return REAL(cuLaunchKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
    CUresult r = launch_begin(&l, f, gx, gy, gz, stream_named(stream, true));
    return r ? r : launch_end(&l, REAL(cuLaunchKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    struct launch l;
    if (launch_free() || !config)
        return REAL(cuLaunchKernelEx)(config, f, params, extra);
    CUresult r = launch_begin(&l, f, config->gridDimX, config->gridDimY, config->gridDimZ, stream_named(config->hStream, false));
    return r ? r : launch_end(&l, REAL(cuLaunchKernelEx)(config, f, params, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    struct launch l;
    if (launch_free() || !config)
        return REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra);
    CUresult r = launch_begin(&l, f, config->gridDimX, config->gridDimY, config->gridDimZ, stream_named(config->hStream, true));
    return r ? r : launch_end(&l, REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra));
}

CUresult cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void **params)
{
    struct launch l;
    if (launch_free())
        return REAL(cuLaunchCooperativeKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params);
    CUresult r = launch_begin(&l, f, gx, gy, gz, stream_named(stream, false));
    return r ? r : launch_end(&l, REAL(cuLaunchCooperativeKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params));
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params)
{
    struct launch l;
    if (launch_free())
        return REAL(cuLaunchCooperativeKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params);
    CUresult r = launch_begin(&l, f, gx, gy, gz, stream_named(stream, true));
    return r ? r : launch_end(&l, REAL(cuLaunchCooperativeKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params));
}

/* The context that a part of a launch on several cards runs in becomes the
 * current one, so that its events are made there. */
static CUresult part_begin(struct launch *l, const CUDA_LAUNCH_PARAMS *p)
{
    CUcontext context = 0;
    CUdevice device;
    l->gate = 0;
    if (REAL(cuStreamGetCtx)(p->hStream, &context) || REAL(cuCtxPushCurrent_v2)(context))
        return CUDA_SUCCESS; /* the driver will say so */
    struct card *c = REAL(cuCtxGetDevice)(&device) ? 0 : process_card(device);
    CUresult r = launch_begin_on(l, c, p->function, p->gridDimX, p->gridDimY, p->gridDimZ, p->hStream);
    REAL(cuCtxPopCurrent_v2)(&context);
    return r;
}

static void part_end(struct launch *l, const CUDA_LAUNCH_PARAMS *p, CUresult r)
{
    CUcontext context = 0;
    if (!l->gate)
        return;
    bool pushed = !REAL(cuStreamGetCtx)(p->hStream, &context) && !REAL(cuCtxPushCurrent_v2)(context);
    launch_end(l, r);
    if (pushed)
        REAL(cuCtxPopCurrent_v2)(&context);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned n, unsigned flags)
{
    CUresult r = CUDA_SUCCESS;
    if (launch_free() || !list || !n || n > MAX_CARDS)
        return REAL(cuLaunchCooperativeKernelMultiDevice)(list, n, flags);
    if ((r = process_enter()))
        return r == CUDA_ERROR_NOT_INITIALIZED ? REAL(cuLaunchCooperativeKernelMultiDevice)(list, n, flags) : r;
    struct launch *parts = calloc(n, sizeof *parts);
    if (!parts)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; !r && i < n; i++)
        r = part_begin(&parts[i], &list[i]);
    if (!r)
        r = REAL(cuLaunchCooperativeKernelMultiDevice)(list, n, flags);
    for (unsigned i = 0; i < n; i++)
        part_end(&parts[i], &list[i], r);
    free(parts);
    return r;
}

CUresult cuLaunch(CUfunction f)
{
    struct launch l;
    if (launch_free())
        return REAL(cuLaunch)(f);
    CUresult r = launch_begin(&l, f, 1, 1, 1, CU_STREAM_LEGACY);
    return r ? r : launch_end(&l, REAL(cuLaunch)(f));
}

CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
    struct launch l;
    if (launch_free())
        return REAL(cuLaunchGrid)(f, width, height);
    CUresult r = launch_begin(&l, f, (unsigned)width, (unsigned)height, 1, CU_STREAM_LEGACY);
    return r ? r : launch_end(&l, REAL(cuLaunchGrid)(f, width, height));
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
    struct launch l;
    if (launch_free())
        return REAL(cuLaunchGridAsync)(f, width, height, stream);
    CUresult r = launch_begin(&l, f, (unsigned)width, (unsigned)height, 1, stream_named(stream, false));
    return r ? r : launch_end(&l, REAL(cuLaunchGridAsync)(f, width, height, stream));
}
