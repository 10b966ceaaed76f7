#define _GNU_SOURCE
#include "real.h"

#include <stdint.h>
#include <string.h>

#include "elf_object.h"

#ifndef SLUICE_REAL_CUDA
#define SLUICE_REAL_CUDA "/run/sluice/driver/real-cuda.so"
#endif

void *real_functions[FUNCTIONS];

static const char *const names[FUNCTIONS] = {
#define WRAP(name, asked, since, stream, params) #name,
#define CALL(name, params)                       #name,
#define ALSO(name, asked, since, stream)
#include "cuda.def"
#undef WRAP
#undef CALL
#undef ALSO
};

static CUresult absent(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_driver(void)
{
    return CUDA_ERROR_NOT_PERMITTED;
}

struct search {
    struct object driver;
    int found;
    bool by_name;
};

static int visit(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct search *s = arg;
    struct object o;
    (void)size;
    if (!object_open(&o, info) || strcmp(o.soname, "libcuda.so.1"))
        return 0;
    if (object_function(&o, "cuInit") == (void *)cuInit)
        return 0; /* the limiter itself */
    bool by_name = info->dlpi_name && !strcmp(info->dlpi_name, SLUICE_REAL_CUDA);
    if (!s->found++ || (by_name && !s->by_name)) {
        s->driver = o;
        s->by_name = by_name;
    }
    return 0;
}

static struct search search(void)
{
    struct search s;
    memset(&s, 0, sizeof s);
    dl_iterate_phdr(visit, &s);
    return s;
}

void real_resolve(void)
{
    struct search s = search();
    /* Two threads that come here at once write the same values. */
    for (int f = 0; f < FUNCTIONS; f++) {
        void *p = s.found ? object_function(&s.driver, names[f]) : (void *)no_driver;
        __atomic_store_n(&real_functions[f], p ? p : (void *)absent, __ATOMIC_RELEASE);
    }
}

bool real_has(enum function f)
{
    void *p = real_function(f);
    return p != (void *)absent && p != (void *)no_driver;
}

int real_drivers(void)
{
    return search().found;
}
