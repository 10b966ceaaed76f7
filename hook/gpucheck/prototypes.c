/*
 * Compiles only if every function that the limiter touches has, in the
 * toolkit's cuda.h, the prototype that cuda.def gives it. An entry that an older
 * cuda.h does not know is reported by the compiler as undeclared.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#define SAME(name, params) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), CUresult params), "prototype of " #name);
#define WRAP(name, asked, since, stream, params) SAME(name, params)
#define CALL(name, params)                       SAME(name, params)
#define ALSO(name, asked, since, stream)
#include "cuda.def"
