/* libcuda: launches, in all their forms. */
#include "cuda_module.h"

#include <string.h>

/* The first parameter, from either way to pass parameters. */
static const void *first_param(void **params, void **extra)
{
	if (params)
		return params[0];
	for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2)
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			return extra[1];
	return NULL;
}

CUresult cu_kernel_ns(CUfunction f, unsigned gx, unsigned gy, unsigned gz, void **params, void **extra, uint64_t *ns)
{
	if (!cu_func_ok(f))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!gx || !gy || !gz)
		return CUDA_ERROR_INVALID_VALUE;
	const void *param = first_param(params, extra);
	*ns = f->ns;
	if (f->timing == T_BLOCKS)
		*ns = f->ns * gx * gy * gz;
	if (f->timing == T_PARAM) {
		if (!param)
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(ns, param, sizeof *ns);
	}
	return CUDA_SUCCESS;
}

static CUresult launch(CUfunction f, const unsigned grid[3], const unsigned block[3], CUstream s, void **params, void **extra)
{
	CUcontext c;
	CUstream real;
	uint64_t ns;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	r = cu_kernel_ns(f, grid[0], grid[1], grid[2], params, extra, &ns);
	if (r)
		return r;
	if (!block[0] || !block[1] || !block[2] || (uint64_t)block[0] * block[1] * block[2] > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	if (real && real->capture)
		return cu_capture_kernel(real, ns);
	cu_stream_submitted(c, real, fg_submit(&fg_p->fg, c->card, ns, 0));
	return CUDA_SUCCESS;
}

CU_API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
			       unsigned smem, CUstream s, void **params, void **extra)
{
	(void)smem;
	return launch(f, (unsigned[]){ gx, gy, gz }, (unsigned[]){ bx, by, bz }, s, params, extra);
}

CU_API CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
				    unsigned smem, CUstream s, void **params, void **extra)
{
	return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, smem, s ? s : CU_STREAM_PER_THREAD, params, extra);
}

CU_API CUresult cuLaunchKernelEx(const CUlaunchConfig *l, CUfunction f, void **params, void **extra)
{
	if (!l)
		return CUDA_ERROR_INVALID_VALUE;
	return launch(f, (unsigned[]){ l->gridDimX, l->gridDimY, l->gridDimZ },
		      (unsigned[]){ l->blockDimX, l->blockDimY, l->blockDimZ }, l->hStream, params, extra);
}

CU_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *l, CUfunction f, void **params, void **extra)
{
	if (!l)
		return CUDA_ERROR_INVALID_VALUE;
	CUlaunchConfig own = *l;
	if (!own.hStream)
		own.hStream = CU_STREAM_PER_THREAD;
	return cuLaunchKernelEx(&own, f, params, extra);
}

CU_API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
					  unsigned bz, unsigned smem, CUstream s, void **params)
{
	return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, smem, s, params, NULL);
}

CU_API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
					       unsigned bz, unsigned smem, CUstream s, void **params)
{
	return cuLaunchKernel_ptsz(f, gx, gy, gz, bx, by, bz, smem, s, params, NULL);
}

CU_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int n, unsigned int flags)
{
	CUresult r = list && n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	(void)flags;
	for (unsigned i = 0; !r && i < n; i++)
		r = cuLaunchKernel(list[i].function, list[i].gridDimX, list[i].gridDimY, list[i].gridDimZ, list[i].blockDimX,
				   list[i].blockDimY, list[i].blockDimZ, list[i].sharedMemBytes, list[i].hStream,
				   list[i].kernelParams, NULL);
	return r;
}

/* ---- launches of 2008: parameters are set beforehand ---- */

CU_API CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z)
{
	if (!cu_func_ok(f))
		return CUDA_ERROR_INVALID_HANDLE;
	if (x <= 0 || y <= 0 || z <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	f->block[0] = (unsigned)x;
	f->block[1] = (unsigned)y;
	f->block[2] = (unsigned)z;
	return CUDA_SUCCESS;
}

CU_API CUresult cuParamSetSize(CUfunction f, unsigned int bytes)
{
	return !cu_func_ok(f) ? CUDA_ERROR_INVALID_HANDLE : bytes > 4096 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CU_API CUresult cuParamSetv(CUfunction f, int offset, void *data, unsigned int bytes)
{
	if (!cu_func_ok(f))
		return CUDA_ERROR_INVALID_HANDLE;
	if (offset < 0 || !data || (size_t)offset + bytes > sizeof f->set_params)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy((char *)f->set_params + offset, data, bytes);
	return CUDA_SUCCESS;
}

CU_API CUresult cuParamSeti(CUfunction f, int offset, unsigned int value)
{
	return cuParamSetv(f, offset, &value, sizeof value);
}

CU_API CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream s)
{
	void *params[1];

	if (!cu_func_ok(f))
		return CUDA_ERROR_INVALID_HANDLE;
	if (width <= 0 || height <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	params[0] = f->set_params;
	return launch(f, (unsigned[]){ (unsigned)width, (unsigned)height, 1 }, f->block, s, params, NULL);
}

CU_API CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	return cuLaunchGridAsync(f, width, height, NULL);
}

CU_API CUresult cuLaunch(CUfunction f)
{
	return cuLaunchGridAsync(f, 1, 1, NULL);
}
