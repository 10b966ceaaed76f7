/* Launches of kernels, in all their forms. Those of graphs are in cuda_graph.c. */
#include <stdlib.h>

#include "launch.h"
#include "real.h"

#define GRID   unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define SLOW   __attribute__((noinline, cold))
#define APART  __attribute__((noinline))
#define LIKELY(x) __builtin_expect(x, 1)

/*
 * One exported launch, in three steps that get rarer and dearer: at once where
 * nothing on this machine is held; at once where the gate lets it pass; held, and
 * timed. params and args are the function's parameters, with their types and
 * without; grid and queued say what the gate asks about; named is false for a
 * launch that names nothing, which is for the driver to refuse.
 */
#define LAUNCH(name, params, args, named, f, gx, gy, gz, queued)                             \
    static SLOW CUresult held_##name params                                                  \
    {                                                                                        \
        struct launch l;                                                                     \
        if (!(named))                                                                        \
            return REAL(name) args;                                                          \
        CUresult r = launch_begin(&l, f, gx, gy, gz, queued);                                \
        return r ? r : launch_end(&l, REAL(name) args);                                      \
    }                                                                                        \
    static APART CUresult paced_##name params                                                \
    {                                                                                        \
        bool now = launch_free() || ((named) && launch_pass(f, gx, gy, gz, queued));         \
        type_##name go = now ? NOW(name) : held_##name;                                      \
        return go args;                                                                      \
    }                                                                                        \
    CUresult name params                                                                     \
    {                                                                                        \
        type_##name go = LIKELY(launch_quick()) ? NOW(name) : paced_##name;                  \
        return go args;                                                                      \
    }

#define KERNEL(name, standard)                                                               \
    LAUNCH(name, (CUfunction f, GRID, CUstream stream, void **params, void **extra),         \
           (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra), true,                 \
           f, gx, gy, gz, launch_stream(stream, standard))
KERNEL(cuLaunchKernel, CU_STREAM_LEGACY)
KERNEL(cuLaunchKernel_ptsz, CU_STREAM_PER_THREAD)

#define KERNEL_EX(name, standard)                                                            \
    LAUNCH(name, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra),  \
           (config, f, params, extra), config,                                               \
           f, config->gridDimX, config->gridDimY, config->gridDimZ, launch_stream(config->hStream, standard))
KERNEL_EX(cuLaunchKernelEx, CU_STREAM_LEGACY)
KERNEL_EX(cuLaunchKernelEx_ptsz, CU_STREAM_PER_THREAD)

#define COOPERATIVE(name, standard)                                                          \
    LAUNCH(name, (CUfunction f, GRID, CUstream stream, void **params),                       \
           (f, gx, gy, gz, bx, by, bz, shared, stream, params), true,                        \
           f, gx, gy, gz, launch_stream(stream, standard))
COOPERATIVE(cuLaunchCooperativeKernel, CU_STREAM_LEGACY)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, CU_STREAM_PER_THREAD)

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
