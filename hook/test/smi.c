/*
 * Prints what NVML says of the first card: memory by both forms, then the
 * compute processes by all forms.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct nvmlDevice_st *nvmlDevice_t;
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_v1 {
    unsigned pid;
    unsigned long long used;
};
struct process_v2 {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

int main(void)
{
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    nvmlDevice_t device;
    struct memory m;
    struct memory_v2 m2 = {.version = sizeof m2 | 2u << 24};
    struct process_v1 p1[64];
    struct process_v2 p2[64];
    unsigned n1 = 64, n2 = 64, n3 = 64, none = 0, graphics = 64, mps = 64;
#define CALL(name, type, ...) ((int (*) type)dlsym(lib, name))(__VA_ARGS__)
    if (!lib || CALL("nvmlInit_v2", (void)) || CALL("nvmlDeviceGetHandleByIndex_v2", (unsigned, nvmlDevice_t *), 0, &device))
        return 1;
    if (CALL("nvmlDeviceGetMemoryInfo", (nvmlDevice_t, struct memory *), device, &m) ||
        CALL("nvmlDeviceGetMemoryInfo_v2", (nvmlDevice_t, struct memory_v2 *), device, &m2))
        return 2;
    printf("total %llu free %llu used %llu\n", m.total >> 20, m.free >> 20, m.used >> 20);
    printf("total %llu free %llu used %llu\n", m2.total >> 20, m2.free >> 20, m2.used >> 20);
    int r1 = CALL("nvmlDeviceGetComputeRunningProcesses", (nvmlDevice_t, unsigned *, void *), device, &n1, p1);
    int r2 = CALL("nvmlDeviceGetComputeRunningProcesses_v2", (nvmlDevice_t, unsigned *, void *), device, &n2, p2);
    int r3 = CALL("nvmlDeviceGetComputeRunningProcesses_v3", (nvmlDevice_t, unsigned *, void *), device, &n3, p2);
    int r4 = CALL("nvmlDeviceGetComputeRunningProcesses_v3", (nvmlDevice_t, unsigned *, void *), device, &none, (void *)0);
    int r5 = CALL("nvmlDeviceGetGraphicsRunningProcesses_v3", (nvmlDevice_t, unsigned *, void *), device, &graphics, p2);
    int r6 = CALL("nvmlDeviceGetMPSComputeRunningProcesses_v3", (nvmlDevice_t, unsigned *, void *), device, &mps, p2);
    printf("processes %d:%u %d:%u %d:%u, asked for the number %d:%u, others %d:%u %d:%u\n", r1, n1, r2, n2, r3, n3, r4, none,
           r5, graphics, r6, mps);
    for (unsigned i = 0; i < n1 && i < n3; i++)
        if (p1[i].pid == p2[i].pid && p1[i].used == p2[i].used)
            printf("pid %u used %llu\n", p1[i].pid, p1[i].used >> 20);
    return 0;
}
