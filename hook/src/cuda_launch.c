/* Launches of kernels, in all their forms. Those of graphs are in cuda_graph.c. */
#include <stdlib.h>

#include "launch.h"
#include "real.h"

#define GRID   unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define SLOW   __attribute__((noinline, cold))
#define APART  __attribute__((noinline))
#define LIKELY(x) __builtin_expect(x, 1)

static SLOW CUresult held_cuLaunchKernel(CUfunction f, GRID, CUstream stream, void **params, void **extra)
{
    struct launch l;
    CUresult r = launch_begin(&l, f, gx, gy, gz, launch_stream(stream, CU_STREAM_LEGACY));
    return r ? r : launch_end(&l, REAL(cuLaunchKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

static APART CUresult paced_cuLaunchKernel(CUfunction f, GRID, CUstream stream, void **params, void **extra)
{
    bool now = launch_free() || launch_pass(f, gx, gy, gz, launch_stream(stream, CU_STREAM_LEGACY));
    type_cuLaunchKernel go = now ? NOW(cuLaunchKernel) : held_cuLaunchKernel;
    return go(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

CUresult cuLaunchKernel(CUfunction f, GRID, CUstream stream, void **params, void **extra)
{
    type_cuLaunchKernel go = LIKELY(launch_quick()) ? NOW(cuLaunchKernel) : paced_cuLaunchKernel;
    return go(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

static SLOW CUresult held_cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params, void **extra)
{
    struct launch l;
    CUresult r = launch_begin(&l, f, gx, gy, gz, launch_stream(stream, CU_STREAM_PER_THREAD));
    return r ? r : launch_end(&l, REAL(cuLaunchKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

static APART CUresult paced_cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params, void **extra)
{
    bool now = launch_free() || launch_pass(f, gx, gy, gz, launch_stream(stream, CU_STREAM_PER_THREAD));
    type_cuLaunchKernel_ptsz go = now ? NOW(cuLaunchKernel_ptsz) : held_cuLaunchKernel_ptsz;
    return go(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params, void **extra)
{
    type_cuLaunchKernel_ptsz go = LIKELY(launch_quick()) ? NOW(cuLaunchKernel_ptsz) : paced_cuLaunchKernel_ptsz;
    return go(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

static SLOW CUresult held_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    struct launch l;
    if (!config)
        return REAL(cuLaunchKernelEx)(config, f, params, extra);
    CUresult r = launch_begin(&l, f, config->gridDimX, config->gridDimY, config->gridDimZ, launch_stream(config->hStream, CU_STREAM_LEGACY));
    return r ? r : launch_end(&l, REAL(cuLaunchKernelEx)(config, f, params, extra));
}

static APART CUresult paced_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    bool now = launch_free() || (config && launch_pass(f, config->gridDimX, config->gridDimY, config->gridDimZ,
                                                       launch_stream(config->hStream, CU_STREAM_LEGACY)));
    type_cuLaunchKernelEx go = now ? NOW(cuLaunchKernelEx) : held_cuLaunchKernelEx;
    return go(config, f, params, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    type_cuLaunchKernelEx go = LIKELY(launch_quick()) ? NOW(cuLaunchKernelEx) : paced_cuLaunchKernelEx;
    return go(config, f, params, extra);
}

static SLOW CUresult held_cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    struct launch l;
    if (!config)
        return REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra);
    CUresult r = launch_begin(&l, f, config->gridDimX, config->gridDimY, config->gridDimZ, launch_stream(config->hStream, CU_STREAM_PER_THREAD));
    return r ? r : launch_end(&l, REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra));
}

static APART CUresult paced_cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    bool now = launch_free() || (config && launch_pass(f, config->gridDimX, config->gridDimY, config->gridDimZ,
                                                       launch_stream(config->hStream, CU_STREAM_PER_THREAD)));
    type_cuLaunchKernelEx_ptsz go = now ? NOW(cuLaunchKernelEx_ptsz) : held_cuLaunchKernelEx_ptsz;
    return go(config, f, params, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    type_cuLaunchKernelEx_ptsz go = LIKELY(launch_quick()) ? NOW(cuLaunchKernelEx_ptsz) : paced_cuLaunchKernelEx_ptsz;
    return go(config, f, params, extra);
}

static SLOW CUresult held_cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void **params)
{
    struct launch l;
    CUresult r = launch_begin(&l, f, gx, gy, gz, launch_stream(stream, CU_STREAM_LEGACY));
    return r ? r : launch_end(&l, REAL(cuLaunchCooperativeKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params));
}

static APART CUresult paced_cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void **params)
{
    bool now = launch_free() || launch_pass(f, gx, gy, gz, launch_stream(stream, CU_STREAM_LEGACY));
    type_cuLaunchCooperativeKernel go = now ? NOW(cuLaunchCooperativeKernel) : held_cuLaunchCooperativeKernel;
    return go(f, gx, gy, gz, bx, by, bz, shared, stream, params);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void **params)
{
    type_cuLaunchCooperativeKernel go = LIKELY(launch_quick()) ? NOW(cuLaunchCooperativeKernel) : paced_cuLaunchCooperativeKernel;
    return go(f, gx, gy, gz, bx, by, bz, shared, stream, params);
}

static SLOW CUresult held_cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params)
{
    struct launch l;
    CUresult r = launch_begin(&l, f, gx, gy, gz, launch_stream(stream, CU_STREAM_PER_THREAD));
    return r ? r : launch_end(&l, REAL(cuLaunchCooperativeKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params));
}

static APART CUresult paced_cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params)
{
    bool now = launch_free() || launch_pass(f, gx, gy, gz, launch_stream(stream, CU_STREAM_PER_THREAD));
    type_cuLaunchCooperativeKernel_ptsz go = now ? NOW(cuLaunchCooperativeKernel_ptsz) : held_cuLaunchCooperativeKernel_ptsz;
    return go(f, gx, gy, gz, bx, by, bz, shared, stream, params);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params)
{
    type_cuLaunchCooperativeKernel_ptsz go = LIKELY(launch_quick()) ? NOW(cuLaunchCooperativeKernel_ptsz) : paced_cuLaunchCooperativeKernel_ptsz;
    return go(f, gx, gy, gz, bx, by, bz, shared, stream, params);
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
    CUresult r = launch_begin(&l, f, (unsigned)width, (unsigned)height, 1, launch_stream(stream, CU_STREAM_LEGACY));
    return r ? r : launch_end(&l, REAL(cuLaunchGridAsync)(f, width, height, stream));
}
