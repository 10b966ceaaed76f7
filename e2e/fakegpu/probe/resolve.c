/* The ways by which CUDA programs come to the driver's functions.
 *
 *   link         the program is linked with libcuda.so.1 (cudaprobe-link, beside this)
 *   dlopen       dlopen by SONAME, dlsym
 *   noload       the same, but asks for the library as already loaded
 *   abspath      dlopen by absolute path
 *   procaddress  dlsym of cuGetProcAddress_v2 only, all others through it
 *   dlvsym       dlopen, then the C library's own dlsym, found by dlvsym past any
 *                other of that name
 *   deepbind     a plugin linked with libcuda.so.1, opened with RTLD_DEEPBIND
 *   dlmopen      a namespace of its own
 *   elfwalk      the library's own symbol table, read by hand
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "probe.h"

struct calls cu;

typedef void *lookup(void *ctx, const char *name, const char *base);

static void fill(lookup *find, void *ctx)
{
	void *at;

#define CALL(name, base, params) \
	at = find(ctx, #name, #base); \
	memcpy(&cu.name, &at, sizeof at);
#include "calls.h"
#undef CALL
}

static void *by_dlsym(void *lib, const char *name, const char *base)
{
	(void)base;
	return dlsym(lib, name);
}

/* As programs compiled for per-thread default streams name them. */
static void *by_dlsym_per_thread(void *lib, const char *name, const char *base)
{
	char form[160];
	const char *suffixes[] = { "_ptsz", "_ptds", "" };
	void *at = NULL;

	(void)base;
	for (int i = 0; i < 3 && !at; i++) {
		snprintf(form, sizeof form, "%s%s", name, suffixes[i]);
		at = dlsym(lib, form);
	}
	return at;
}

typedef void *dlsym_fn(void *, const char *);

static dlsym_fn *original_dlsym(void)
{
	const char *versions[] = { "GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5" };
	dlsym_fn *found = NULL;

	for (int i = 0; i < 3 && !found; i++) {
		void *at = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
		memcpy(&found, &at, sizeof at);
	}
	return found;
}

static void *by_dlvsym(void *lib, const char *name, const char *base)
{
	dlsym_fn *find = original_dlsym();

	(void)base;
	return find ? find(lib, name) : NULL;
}

struct proc {
	CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
	int version;
	bool per_thread;
};

static void *by_proc(void *ctx, const char *name, const char *base)
{
	const struct proc *p = ctx;
	CUdriverProcAddressQueryResult status;
	void *at = NULL;
	/* cuMemAlloc without a suffix is the form of 2008. */
	const int version = strcmp(name, "cuMemAlloc") ? p->version : 2000;

	if (p->get(base, &at, version, p->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0, &status))
		return NULL;
	return at;
}

static void *by_walk(void *lib, const char *name, const char *base)
{
	struct link_map *map;
	const ElfW(Sym) *sym = NULL;
	const char *strings = NULL;
	const uint32_t *gnu = NULL;

	(void)base;
	if (dlinfo(lib, RTLD_DI_LINKMAP, &map))
		return NULL;
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_SYMTAB)
			sym = (const void *)d->d_un.d_ptr;
		if (d->d_tag == DT_STRTAB)
			strings = (const void *)d->d_un.d_ptr;
		if (d->d_tag == DT_GNU_HASH)
			gnu = (const void *)d->d_un.d_ptr;
	}
	if (!sym || !strings || !gnu)
		return NULL;
	/* All symbols of the hash table, chain by chain. */
	const uint32_t buckets = gnu[0], first = gnu[1], words = gnu[2];
	const uint32_t *bucket = gnu + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
	for (uint32_t b = 0; b < buckets; b++)
		for (uint32_t i = bucket[b]; i >= first; i++) {
			if (!strcmp(strings + sym[i].st_name, name))
				return (void *)(map->l_addr + sym[i].st_value);
			if (chain[i - first] & 1)
				break;
		}
	return NULL;
}

#ifdef PROBE_LINK

#define CALL(name, base, params) extern CUresult name params;
#include "calls.h"
#undef CALL

static void direct(void)
{
#define CALL(name, base, params) cu.name = name;
#include "calls.h"
#undef CALL
}

#endif

static void *open_lib(const char *via, const char *lib)
{
	void *h;

	if (!strcmp(via, "abspath") && !lib)
		lib = "/usr/lib/x86_64-linux-gnu/libcuda.so.1";
	if (!lib)
		lib = "libcuda.so.1";
	if (!strcmp(via, "dlmopen"))
		h = dlmopen(LM_ID_NEWLM, lib, RTLD_NOW | RTLD_LOCAL);
	else
		h = dlopen(lib, RTLD_NOW | RTLD_LOCAL);
	if (h && !strcmp(via, "noload"))
		h = dlopen(lib, RTLD_NOW | RTLD_NOLOAD);
	if (!h)
		fprintf(stderr, "cudaprobe: %s\n", dlerror());
	return h;
}

/* A file beside this program. */
static const char *beside(const char *name)
{
	static char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

	if (n < 0)
		n = 0;
	path[n] = '\0';
	char *slash = strrchr(path, '/');
	snprintf(slash ? slash + 1 : path, sizeof path - (slash ? (size_t)(slash + 1 - path) : 0), "%s", name);
	return path;
}

void probe_relink(char **argv)
{
#ifdef PROBE_LINK
	(void)argv;
#else
	const char *linked = beside("cudaprobe-link");

	argv[0] = (char *)(uintptr_t)linked;
	execv(linked, argv);
	perror(linked);
	exit(3);
#endif
}

bool probe_resolve(const char *via, const char *lib, int version, bool per_thread)
{
	if (!strcmp(via, "link")) {
#ifdef PROBE_LINK
		direct();
		return true;
#else
		return false; /* probe_relink was called first */
#endif
	}
	if (!strcmp(via, "deepbind")) {
		void *h = dlopen(beside("libcudaprobe-plugin.so"), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
		const struct calls *(*get)(void);
		void *at = h ? dlsym(h, "cudaprobe_plugin_calls") : NULL;
		if (!at) {
			fprintf(stderr, "cudaprobe: %s\n", dlerror());
			return false;
		}
		memcpy(&get, &at, sizeof at);
		cu = *get();
		return true;
	}
	void *h = open_lib(via, lib);
	if (!h)
		return false;
	if (!strcmp(via, "procaddress")) {
		struct proc p = { .version = version, .per_thread = per_thread };
		void *at = dlsym(h, "cuGetProcAddress_v2");
		if (!at) {
			fprintf(stderr, "cudaprobe: the driver has no cuGetProcAddress_v2\n");
			return false;
		}
		memcpy(&p.get, &at, sizeof at);
		fill(by_proc, &p);
	} else if (!strcmp(via, "dlvsym")) {
		fill(by_dlvsym, h);
	} else if (!strcmp(via, "elfwalk")) {
		fill(by_walk, h);
	} else if (!strcmp(via, "dlopen") || !strcmp(via, "noload") || !strcmp(via, "abspath") || !strcmp(via, "dlmopen")) {
		fill(per_thread ? by_dlsym_per_thread : by_dlsym, h);
	} else {
		fprintf(stderr, "cudaprobe: no way \"%s\"\n", via);
		return false;
	}
	if (!cu.cuInit) {
		fprintf(stderr, "cudaprobe: %s finds no cuInit\n", via);
		return false;
	}
	return true;
}
