/* cuInit and cuGetProcAddress: how a program comes in. */
#include <string.h>

#include "process.h"
#include "real.h"
#include "say.h"

CUresult cuInit(unsigned flags)
{
    if (process->ready)
        return REAL(cuInit)(flags);
    real_resolve();
    int drivers = real_drivers();
    if (drivers == 0) {
        say("the CUDA driver is not where the limiter expects it; this container was not prepared for this limiter");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (drivers > 1) {
        say("a second libcuda.so.1 is loaded beside the driver of this node; remove CUDA compat folders from the "
            "image's library path");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (!process_load())
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult r = REAL(cuInit)(flags);
    return r ? r : process_attach();
}

enum stream { ANY, LEGACY, PER_THREAD };

/* Each exported variant, as cuGetProcAddress is asked for it. */
static const struct variant {
    const char *asked;
    int since;
    enum stream stream;
    enum function real;
    void *wrapper;
} variants[] = {
#define WRAP(name, asked, since, stream, params) {#asked, since, stream, FN_##name, (void *)name},
#define CALL(name, params)
#define ALSO(name, asked, since, stream) {#asked, since, stream, FN_##name, (void *)name},
#include "cuda.def"
#undef WRAP
#undef CALL
#undef ALSO
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static CUresult ask(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
    if (HAS(cuGetProcAddress_v2))
        return REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
    return REAL(cuGetProcAddress)(symbol, pfn, version, flags);
}

/* The newest variant that is not newer than the caller, for the caller's default
 * stream: the rule by which the driver chooses. It may know newer ones than we
 * do, so it is asked what it gives for the version of our choice: only if that
 * is the function in question is our choice its choice. */
static void *by_rule(const char *symbol, void *function, int version, uint64_t flags)
{
    const struct variant *best = 0;
    enum stream other = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? LEGACY : PER_THREAD;
    void *same = 0;
    int status;
    for (int i = 0; i < VARIANTS; i++) {
        const struct variant *v = &variants[i];
        if (v->stream != other && v->since <= version && !strcmp(v->asked, symbol) && real_has(v->real) &&
            (!best || v->since > best->since))
            best = v;
    }
    if (!best || ask(symbol, &same, best->since, flags, &status) || same != function)
        return 0;
    return best->wrapper;
}

/* What to hand out for what the driver handed out. The driver's own choice is
 * recognised by its address; where it hands out an inner function that is not
 * the exported one, its rule is applied to the name. A name that is none of
 * ours passes. A variant of ours that we do not know is not handed out, for it
 * would be unlimited: false. */
static bool wrap(const char *symbol, void **pfn, int version, uint64_t flags)
{
    void *wrapper = 0, *alias = 0;
    bool ours = false;
    for (int i = 0; i < VARIANTS && !wrapper; i++) {
        bool same_name = !strcmp(variants[i].asked, symbol);
        ours |= same_name;
        if (*pfn == real_function(variants[i].real))
            *(same_name ? &wrapper : &alias) = variants[i].wrapper;
    }
    if (!wrapper) /* one function under a second name */
        wrapper = alias;
    if (ours && !wrapper)
        wrapper = by_rule(symbol, *pfn, version, flags);
    if (wrapper || ours)
        *pfn = wrapper;
    return !ours || wrapper;
}

enum { VERSION_NOT_SUFFICIENT = 2 }; /* status */

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
    CUresult r = REAL(cuGetProcAddress)(symbol, pfn, version, flags);
    if (r || !symbol || !pfn || !*pfn || wrap(symbol, pfn, version, flags))
        return r;
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
    CUresult r = REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
    if (r || !symbol || !pfn || !*pfn || wrap(symbol, pfn, version, flags))
        return r;
    if (status)
        *status = VERSION_NOT_SUFFICIENT;
    return r;
}
