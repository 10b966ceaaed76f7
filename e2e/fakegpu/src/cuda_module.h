/* Modules and their functions, inside the simulated libcuda. */
#ifndef FAKEGPU_CUDA_MODULE_H
#define FAKEGPU_CUDA_MODULE_H

#include "cuda.h"

enum timing { T_FIXED, T_PARAM, T_BLOCKS };

struct CUfunc_st {
	uint32_t magic;
	struct CUmod_st *module;
	char name[128];
	enum timing timing;
	uint64_t ns;
	uint64_t set_params[16];   /* by the calls of 2008 */
	unsigned block[3];
	struct CUfunc_st *next;
};

struct CUmod_st {
	uint32_t magic;
	CUcontext ctx;             /* NULL: a library */
	bool any_name;
	uint64_t taken;
	struct CUfunc_st *funcs;
	struct CUmod_st *next;     /* in its context */
};

bool cu_func_ok(CUfunction f);

#endif
