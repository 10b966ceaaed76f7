/*
 * The guard, named in the container's /etc/ld.so.preload.
 *
 * The limiter stands where the driver's mount puts libcuda. An image can have
 * another one that the loader finds earlier: CUDA's "compat" folder in
 * LD_LIBRARY_PATH, a path of its own. The guard sees dlopen and dlmopen before
 * the C library does and turns every name of the driver's libraries into the
 * limiter's path.
 *
 * It is in every program of the container, so it does as little as can be: no
 * constructor, nothing but libc, nothing at all until somebody asks for one of
 * these names. It jumps on to the real function in such a way that the caller
 * stays the caller, whom the C library asks for its search path and namespace.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "elf_object.h"

#ifndef SLUICE_DRIVER
#define SLUICE_DRIVER "/run/sluice/driver"
#endif

#define EXPORT __attribute__((visibility("default")))

static const struct {
    const char *library, *real, *limiter;
} stands_in[] = {
    {"libcuda.so", SLUICE_DRIVER "/real-cuda.so", SLUICE_DRIVER "/limiter-cuda.so"},
    {"libnvidia-ml.so", SLUICE_DRIVER "/real-nvidia-ml.so", SLUICE_DRIVER "/limiter-nvidia-ml.so"},
};

/* "libcuda.so", "libcuda.so.1", "/any/where/libcuda.so.580.95.05" */
static bool is_called(const char *name, const char *library)
{
    size_t n = strlen(library);
    const char *base = strrchr(name, '/');
    base = base ? base + 1 : name;
    return !strncmp(base, library, n) && (base[n] == '\0' || base[n] == '.');
}

static const char *stand_in(const char *name)
{
    for (unsigned i = 0; name && i < sizeof stands_in / sizeof stands_in[0]; i++)
        if ((is_called(name, stands_in[i].library) || !strcmp(name, stands_in[i].real)) &&
            access(stands_in[i].limiter, R_OK) == 0)
            return stands_in[i].limiter;
    return name;
}

struct search {
    const char *name;
    void *found;
};

/* dlopen is in libdl in old C libraries, in libc in new ones. */
static int visit(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct search *s = arg;
    struct object o;
    (void)size;
    if (object_open(&o, info) && (!strcmp(o.soname, "libc.so.6") || !strcmp(o.soname, "libdl.so.2")))
        s->found = object_function(&o, s->name);
    return s->found != 0;
}

static void *real(void **known, const char *name)
{
    void *f = __atomic_load_n(known, __ATOMIC_RELAXED);
    if (!f) {
        struct search s = {name, 0};
        dl_iterate_phdr(visit, &s);
        f = s.found;
        __atomic_store_n(known, f, __ATOMIC_RELAXED);
    }
    return f;
}

static void *real_dlopen, *real_dlmopen;

EXPORT void *dlopen(const char *name, int flags)
{
    void *(*f)(const char *, int) = (void *(*)(const char *, int))real(&real_dlopen, "dlopen");
    return f ? f(stand_in(name), flags) : 0; /* a jump, see build.sh */
}

EXPORT void *dlmopen(Lmid_t space, const char *name, int flags)
{
    void *(*f)(Lmid_t, const char *, int) =
        (void *(*)(Lmid_t, const char *, int))real(&real_dlmopen, "dlmopen");
    return f ? f(space, stand_in(name), flags) : 0;
}
