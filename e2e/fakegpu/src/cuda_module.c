/* libcuda: modules, libraries and functions.
 *
 * A simulated module is a text that begins with the line "fakegpu module" and
 * lists its kernels, one a line, with how long each occupies the card:
 *
 *   spin param        as many nanoseconds as its first parameter, a uint64, says
 *   tile blocks 1000  1000 ns for each block of the grid, over all of the card
 *   step 20000        always 20000 ns
 *
 * Real images (ELF, fat binaries, PTX) load as well; every name is found in
 * them and takes no time.
 */
#include "cuda_module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char header[] = "fakegpu module\n";

static struct CUfunc_st *add_func(struct CUmod_st *m, const char *name)
{
	struct CUfunc_st *f = calloc(1, sizeof *f);

	if (!f)
		return NULL;
	f->magic = M_FUNC;
	f->module = m;
	snprintf(f->name, sizeof f->name, "%s", name);
	f->block[0] = f->block[1] = f->block[2] = 1;
	f->next = m->funcs;
	m->funcs = f;
	return f;
}

static bool parse(struct CUmod_st *m, const char *text)
{
	char line[256], name[128], what[32];

	while (*text) {
		size_t len = strcspn(text, "\n");
		snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line - 1), text);
		text += len + (text[len] == '\n');
		unsigned long long ns = 0;
		int got = sscanf(line, "%127s %31s %llu", name, what, &ns);
		if (got < 1)
			continue;
		struct CUfunc_st *f = got >= 2 ? add_func(m, name) : NULL;
		if (!f)
			return false;
		if (!strcmp(what, "param")) {
			f->timing = T_PARAM;
		} else if (!strcmp(what, "blocks") && got == 3) {
			f->timing = T_BLOCKS;
			f->ns = ns;
		} else {
			char *end;
			f->ns = strtoull(what, &end, 10);
			if (*end)
				return false;
		}
	}
	return true;
}

static void free_module(struct CUmod_st *m)
{
	while (m->funcs) {
		struct CUfunc_st *f = m->funcs;
		m->funcs = f->next;
		f->magic = M_DEAD;
		free(f);
	}
	m->magic = M_DEAD;
	free(m);
}

static CUresult load(struct CUmod_st **out, const void *image, CUcontext ctx)
{
	static const unsigned char fatbin[4] = { 0x50, 0xed, 0x55, 0xba }, wrapper[4] = { 0xb1, 0x43, 0x62, 0x46 };
	struct CUmod_st *m = calloc(1, sizeof *m);
	CUresult r = CUDA_SUCCESS;

	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->magic = M_MODULE;
	m->ctx = ctx;
	if (!strncmp(image, header, sizeof header - 1)) {
		if (!parse(m, (const char *)image + sizeof header - 1))
			r = CUDA_ERROR_INVALID_IMAGE;
	} else if (!memcmp(image, "\177ELF", 4) || !memcmp(image, fatbin, 4) || !memcmp(image, wrapper, 4) ||
		   !strncmp(image, "//", 2) || !strncmp(image, ".version", 8) || !strncmp(image, "\n", 1)) {
		m->any_name = true;
	} else {
		r = CUDA_ERROR_INVALID_IMAGE;
	}
	if (!r && ctx && fg_p->fg.node.module_bytes) {
		m->taken = fg_p->fg.node.module_bytes;
		if (!fg_mem_take(&fg_p->fg, ctx->card, m->taken)) {
			m->taken = 0;
			r = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	if (r) {
		free_module(m);
		return r;
	}
	*out = m;
	return CUDA_SUCCESS;
}

static struct CUfunc_st *find_func(struct CUmod_st *m, const char *name)
{
	struct CUfunc_st *f;

	cu_lock();
	for (f = m->funcs; f && strcmp(f->name, name); f = f->next)
		;
	if (!f && m->any_name)
		f = add_func(m, name);
	cu_unlock();
	return f;
}

/* ---- modules ---- */

CU_API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	r = load(module, image, c);
	if (r)
		return r;
	cu_lock();
	(*module)->next = c->modules;
	c->modules = *module;
	cu_unlock();
	return CUDA_SUCCESS;
}

CU_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n, void *options, void **values)
{
	(void)n;
	(void)options;
	(void)values;
	return cuModuleLoadData(module, image);
}

CU_API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	return cuModuleLoadData(module, image);
}

static char *slurp(const char *path)
{
	FILE *f = fopen(path, "re");
	char *text = NULL;

	if (!f)
		return NULL;
	if (!fseek(f, 0, SEEK_END)) {
		long len = ftell(f);
		rewind(f);
		text = len >= 0 ? calloc(1, (size_t)len + 16) : NULL;
		if (text && fread(text, 1, (size_t)len, f) != (size_t)len) {
			free(text);
			text = NULL;
		}
	}
	fclose(f);
	return text;
}

CU_API CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	char *text = path ? slurp(path) : NULL;
	CUresult r = text ? cuModuleLoadData(module, text) : CUDA_ERROR_FILE_NOT_FOUND;

	free(text);
	return r;
}

static void end_module(struct CUmod_st *m)
{
	if (m->taken)
		fg_mem_give(&fg_p->fg, m->ctx->card, m->taken);
	free_module(m);
}

CU_API CUresult cuModuleUnload(CUmodule module)
{
	CUcontext c;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!module || module->magic != M_MODULE || !module->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	cu_lock();
	for (struct CUmod_st **at = &module->ctx->modules; *at; at = &(*at)->next)
		if (*at == module) {
			*at = module->next;
			break;
		}
	end_module(module);
	cu_unlock();
	return CUDA_SUCCESS;
}

void cu_modules_end(CUcontext ctx)
{
	while (ctx->modules) {
		struct CUmod_st *m = ctx->modules;
		ctx->modules = m->next;
		end_module(m);
	}
}

CU_API CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!f || !name || !*name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!module || module->magic != M_MODULE)
		return CUDA_ERROR_INVALID_HANDLE;
	*f = find_func(module, name);
	return *f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CU_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *size, CUmodule module, const char *name)
{
	CUresult r = cu_ready();

	(void)ptr;
	(void)size;
	if (r)
		return r;
	return module && name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuModuleGetLoadingMode(int *mode)
{
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = 2; /* lazy */
	return CUDA_SUCCESS;
}

/* ---- libraries: modules of no context ---- */

CU_API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, void *jit, void **jit_values, unsigned int jit_n,
				  void *options, void **values, unsigned int n)
{
	struct CUmod_st *m;
	CUresult r = cu_ready();

	(void)jit;
	(void)jit_values;
	(void)jit_n;
	(void)options;
	(void)values;
	(void)n;
	if (r)
		return r;
	if (!library || !code)
		return CUDA_ERROR_INVALID_VALUE;
	r = load(&m, code, NULL);
	if (!r)
		*library = (CUlibrary)m;
	return r;
}

CU_API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, void *jit, void **jit_values, unsigned int jit_n,
				      void *options, void **values, unsigned int n)
{
	char *text = path ? slurp(path) : NULL;
	CUresult r = text ? cuLibraryLoadData(library, text, jit, jit_values, jit_n, options, values, n) : CUDA_ERROR_FILE_NOT_FOUND;

	free(text);
	return r;
}

static struct CUmod_st *library_of(CUlibrary library)
{
	struct CUmod_st *m = (struct CUmod_st *)library;

	return m && m->magic == M_MODULE && !m->ctx ? m : NULL;
}

CU_API CUresult cuLibraryUnload(CUlibrary library)
{
	struct CUmod_st *m = library_of(library);
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	cu_lock();
	free_module(m);
	cu_unlock();
	return CUDA_SUCCESS;
}

CU_API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	struct CUmod_st *m = library_of(library);
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!kernel || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	*kernel = (CUkernel)find_func(m, name);
	return *kernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CU_API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	*module = library_of(library);
	return *module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CU_API CUresult cuKernelGetFunction(CUfunction *f, CUkernel kernel)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!f || !kernel)
		return CUDA_ERROR_INVALID_VALUE;
	*f = (CUfunction)kernel;
	return CUDA_SUCCESS;
}

/* ---- functions ---- */

bool cu_func_ok(CUfunction f)
{
	return f && f->magic == M_FUNC;
}

CU_API CUresult cuFuncGetName(const char **name, CUfunction f)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cu_func_ok(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*name = f->name;
	return CUDA_SUCCESS;
}

CU_API CUresult cuFuncGetModule(CUmodule *module, CUfunction f)
{
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cu_func_ok(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*module = f->module;
	return CUDA_SUCCESS;
}

CU_API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f)
{
	if (!value || attribute < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cu_func_ok(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*value = attribute == 0 ? 1024 : attribute == 4 ? 32 : attribute == 5 || attribute == 6 ? 80 : 0;
	return CUDA_SUCCESS;
}

CU_API CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value)
{
	(void)attribute;
	(void)value;
	return cu_func_ok(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CU_API CUresult cuFuncSetCacheConfig(CUfunction f, int config)
{
	(void)config;
	return cu_func_ok(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CU_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int block_size, size_t smem)
{
	(void)smem;
	if (!blocks || block_size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cu_func_ok(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*blocks = 2048 / block_size ? 2048 / block_size : 1;
	return CUDA_SUCCESS;
}
