/*
 * Asks the driver and the limiter for the same entry points and compares.
 *
 *     procs REAL NAMES_FILE
 *
 * REAL is the path of the driver behind the limiter, NAMES_FILE has one line
 * "exported asked" for each function that the limiter wraps. For every asked
 * name, version, flag and form of cuGetProcAddress the two must agree in result
 * and status, and where the driver hands out one of the wrapped functions, the
 * limiter must hand out its own of the same exported name. Prints what differs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "cuda_abi.h"

typedef CUresult (*v1)(const char *, void **, int, uint64_t);
typedef CUresult (*v2)(const char *, void **, int, uint64_t, int *);

static struct {
    char exported[64], asked[64];
} names[256];
static int n_names, compared, wrong;
static void *real, *ours;

static void *at(void *lib, const char *name)
{
    return dlsym(lib, name);
}

/* What the limiter should hand out where the driver handed out p. */
static void *expected(void *p)
{
    for (int i = 0; p && i < n_names; i++)
        if (at(real, names[i].exported) == p)
            return at(ours, names[i].exported);
    return p;
}

static void compare(const char *asked, int version, uint64_t flags, int status_wanted)
{
    void *p = (void *)1, *q = (void *)1, *p1 = (void *)1, *q1 = (void *)1;
    int s = -1, t = -1;
    CUresult r = ((v2)at(real, "cuGetProcAddress_v2"))(asked, &p, version, flags, status_wanted ? &s : 0);
    CUresult o = ((v2)at(ours, "cuGetProcAddress_v2"))(asked, &q, version, flags, status_wanted ? &t : 0);
    CUresult r1 = ((v1)at(real, "cuGetProcAddress"))(asked, &p1, version, flags);
    CUresult o1 = ((v1)at(ours, "cuGetProcAddress"))(asked, &q1, version, flags);
    compared++;
    if (r != o || s != t || r1 != o1 || (!r && q != expected(p)) || (!r1 && q1 != expected(p1))) {
        wrong++;
        printf("%s version %d flags %d: driver %d %d %p, limiter %d %d %p; old form %d %p, %d %p\n", asked, version,
               (int)flags, r, s, p, o, t, q, r1, p1, o1, q1);
    }
}

int main(int argc, char **argv)
{
    static const int versions[] = {1000,  2000,  3010,  3020,  4000,  6000,  7000,  10000, 10020, 11000, 11010,
                                   11020, 11030, 11040, 12000, 12010, 12030, 12050, 12080, 13000, 14000};
    if (argc != 3)
        return 2;
    FILE *f = fopen(argv[2], "r");
    while (f && n_names < 256 && fscanf(f, "%63s %63s", names[n_names].exported, names[n_names].asked) == 2)
        n_names++;
    ours = dlopen("libcuda.so.1", RTLD_NOW);
    real = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD);
    if (!f || !ours || !real || at(ours, "cuInit") == at(real, "cuInit"))
        return 3;
    for (int i = 0; i < n_names; i++)
        if (!at(ours, names[i].exported)) {
            wrong++;
            printf("%s is not exported\n", names[i].exported);
        }
    static const char *const others[] = {"cuMemcpyHtoD", "cuCtxSynchronize", "cuDeviceGet", "cuNoSuchFunction", ""};
    for (unsigned v = 0; v < sizeof versions / sizeof versions[0]; v++)
        for (uint64_t flags = 0; flags <= 3; flags++)
            for (int status = 0; status < 2; status++) {
                for (int i = 0; i < n_names; i++)
                    compare(names[i].asked, versions[v], flags, status);
                for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++)
                    compare(others[i], versions[v], flags, status);
            }
    printf("compared %d, wrong %d\n", compared, wrong);
    return wrong != 0;
}
