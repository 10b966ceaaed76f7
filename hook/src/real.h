/*
 * The real driver behind the limiter.
 *
 * The limiter has the real library in its DT_NEEDED under a private path, so
 * the loader brings it in and every name that the limiter does not define is
 * found there by itself. For the names that it does define, the real function
 * is looked up in the real object's own symbol table: not by dlsym, which
 * others like to replace, and which old and new C libraries keep in different
 * files.
 */
#ifndef SLUICE_REAL_H
#define SLUICE_REAL_H

#include <stdbool.h>

#include "cuda_abi.h"

enum function {
#define WRAP(name, asked, since, stream, params) FN_##name,
#define CALL(name, params)                       FN_##name,
#define ALSO(name, asked, since, stream)
#include "cuda.def"
#undef WRAP
#undef CALL
#undef ALSO
    FUNCTIONS
};

#define WRAP(name, asked, since, stream, params)                        \
    typedef CUresult(*type_##name) params;                              \
    __attribute__((visibility("default"))) CUresult name params;
#define CALL(name, params) typedef CUresult(*type_##name) params;
#define ALSO(name, asked, since, stream)
#include "cuda.def"
#undef WRAP
#undef CALL
#undef ALSO

extern void *real_functions[FUNCTIONS];

/* Looks everything up once; cheap to call again. Where the driver has no such
 * function, or there is no driver, the pointer leads to one that answers with
 * an error. */
void real_resolve(void);

static inline void *real_function(enum function f)
{
    void *p = __atomic_load_n(&real_functions[f], __ATOMIC_ACQUIRE);
    if (__builtin_expect(!p, 0)) {
        real_resolve();
        p = __atomic_load_n(&real_functions[f], __ATOMIC_ACQUIRE);
    }
    return p;
}

#define REAL(name) ((type_##name)real_function(FN_##name))

/* Whether the driver has the function. */
bool real_has(enum function f);
#define HAS(name) real_has(FN_##name)

/* How many objects in this process call themselves libcuda.so.1, beside the
 * limiter. One is the driver; a second one would be a way around us. */
int real_drivers(void);

#endif
