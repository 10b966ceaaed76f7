/* nvidia-smi of the simulated driver: what NVML says, as text.
 *
 *   nvidia-smi        a table of cards and one of processes
 *   nvidia-smi -L     one line a card, and one for each MIG device in it
 *   nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]
 *                     FIELD: index name uuid pci.bus_id memory.total
 *                     memory.reserved memory.used memory.free utilization.gpu
 *                     driver_version
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../abi/nvml_abi.h"

#define CALLS(X)                                                                           \
	X(nvmlInit_v2, (void))                                                             \
	X(nvmlDeviceGetCount_v2, (unsigned *))                                             \
	X(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *))                       \
	X(nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned))                             \
	X(nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned))                             \
	X(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *))                        \
	X(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, nvmlMemory_v2_t *))                   \
	X(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *))              \
	X(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_t *)) \
	X(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t, unsigned, nvmlDevice_t *))   \
	X(nvmlSystemGetProcessName, (unsigned, char *, unsigned))                          \
	X(nvmlSystemGetDriverVersion, (char *, unsigned))                                  \
	X(nvmlSystemGetCudaDriverVersion_v2, (int *))

static struct {
#define FIELD(name, params) nvmlReturn_t(*name) params;
	CALLS(FIELD)
#undef FIELD
} ml;

static const char *(*error_string)(nvmlReturn_t);

static bool load(void)
{
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW), *at;

	if (!lib) {
		printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system: %s\n", dlerror());
		return false;
	}
#define LOOK(name, params) \
	at = dlsym(lib, #name); \
	memcpy(&ml.name, &at, sizeof at); \
	if (!at) { \
		printf("NVIDIA-SMI: no %s in the library\n", #name); \
		return false; \
	}
	CALLS(LOOK)
#undef LOOK
	at = dlsym(lib, "nvmlErrorString");
	memcpy(&error_string, &at, sizeof at);
	return at != NULL;
}

struct card {
	nvmlDevice_t device;
	char name[96], uuid[96];
	nvmlPciInfo_t pci;
	nvmlMemory_v2_t memory;
	nvmlUtilization_t busy;
};

static nvmlReturn_t look(unsigned index, struct card *c)
{
	nvmlReturn_t r = ml.nvmlDeviceGetHandleByIndex_v2(index, &c->device);

	c->memory.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2);
	if (!r)
		r = ml.nvmlDeviceGetName(c->device, c->name, sizeof c->name);
	if (!r)
		r = ml.nvmlDeviceGetUUID(c->device, c->uuid, sizeof c->uuid);
	if (!r)
		r = ml.nvmlDeviceGetPciInfo_v3(c->device, &c->pci);
	if (!r)
		r = ml.nvmlDeviceGetMemoryInfo_v2(c->device, &c->memory);
	if (!r)
		r = ml.nvmlDeviceGetUtilizationRates(c->device, &c->busy);
	return r;
}

static unsigned long long mib(unsigned long long bytes)
{
	return bytes >> 20;
}

static void field(const struct card *c, unsigned index, const char *name, bool units, const char *driver)
{
	const char *unit = units ? " MiB" : "";

	if (!strcmp(name, "index"))
		printf("%u", index);
	else if (!strcmp(name, "name"))
		printf("%s", c->name);
	else if (!strcmp(name, "uuid"))
		printf("%s", c->uuid);
	else if (!strcmp(name, "pci.bus_id"))
		printf("%s", c->pci.busId);
	else if (!strcmp(name, "memory.total"))
		printf("%llu%s", mib(c->memory.total), unit);
	else if (!strcmp(name, "memory.reserved"))
		printf("%llu%s", mib(c->memory.reserved), unit);
	else if (!strcmp(name, "memory.used"))
		printf("%llu%s", mib(c->memory.used), unit);
	else if (!strcmp(name, "memory.free"))
		printf("%llu%s", mib(c->memory.free), unit);
	else if (!strcmp(name, "utilization.gpu"))
		printf("%u%s", c->busy.gpu, units ? " %" : "");
	else if (!strcmp(name, "driver_version"))
		printf("%s", driver);
	else
		printf("[N/A]");
}

static int query(unsigned n, const char *fields, const char *format, const char *driver)
{
	const bool units = !strstr(format, "nounits");

	if (!strstr(format, "noheader"))
		printf("%s\n", fields);
	for (unsigned i = 0; i < n; i++) {
		char copy[512], *rest = copy;
		struct card c = { 0 };
		if (look(i, &c))
			continue;
		snprintf(copy, sizeof copy, "%s", fields);
		for (char *f = strtok_r(rest, ",", &rest); f; f = strtok_r(rest, ",", &rest)) {
			printf("%s", f == copy ? "" : ", ");
			field(&c, i, f, units, driver);
		}
		printf("\n");
	}
	return 0;
}

static void table(unsigned n, const char *driver)
{
	int cuda = 0;

	ml.nvmlSystemGetCudaDriverVersion_v2(&cuda);
	printf("NVIDIA-SMI (simulated)   Driver Version: %s   CUDA Version: %d.%d\n", driver, cuda / 1000, cuda % 1000 / 10);
	printf("GPU  Name                      Bus-Id            Memory-Usage             GPU-Util\n");
	for (unsigned i = 0; i < n; i++) {
		struct card c = { 0 };
		nvmlReturn_t r = look(i, &c);
		if (r) {
			printf("%3u  %s\n", i, error_string(r));
			continue;
		}
		printf("%3u  %-24s  %s  %6lluMiB / %6lluMiB    %3u%%\n", i, c.name, c.pci.busId, mib(c.memory.used), mib(c.memory.total),
		       c.busy.gpu);
	}
	printf("Processes:\nGPU      PID  Process name                 GPU Memory\n");
	for (unsigned i = 0; i < n; i++) {
		nvmlProcessInfo_t procs[256];
		unsigned count = 256;
		struct card c = { 0 };
		if (look(i, &c) || ml.nvmlDeviceGetComputeRunningProcesses_v3(c.device, &count, procs))
			continue;
		for (unsigned p = 0; p < count; p++) {
			char name[64] = "";
			ml.nvmlSystemGetProcessName(procs[p].pid, name, sizeof name);
			printf("%3u  %7u  %-24s  %10lluMiB\n", i, procs[p].pid, name, mib(procs[p].usedGpuMemory));
		}
	}
}

static void line(unsigned index)
{
	struct card c = { 0 };
	nvmlDevice_t mig;

	if (look(index, &c))
		return;
	printf("GPU %u: %s (UUID: %s)\n", index, c.name, c.uuid);
	for (unsigned i = 0; !ml.nvmlDeviceGetMigDeviceHandleByIndex(c.device, i, &mig); i++) {
		char name[128] = "", uuid[96] = "";
		ml.nvmlDeviceGetName(mig, name, sizeof name);
		ml.nvmlDeviceGetUUID(mig, uuid, sizeof uuid);
		const char *profile = strstr(name, "MIG ");
		printf("  %-15s Device %2u: (UUID: %s)\n", profile ? profile : name, i, uuid);
	}
}

int main(int argc, char **argv)
{
	char driver[64] = "";
	const char *fields = NULL, *format = "csv";
	unsigned n = 0;
	bool lines = false;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-L"))
			lines = true;
		else if (!strncmp(argv[i], "--query-gpu=", 12))
			fields = argv[i] + 12;
		else if (!strncmp(argv[i], "--format=", 9))
			format = argv[i] + 9;
		else {
			printf("nvidia-smi: cannot use \"%s\"\n", argv[i]);
			return 2;
		}
	}
	if (!load())
		return 12;
	nvmlReturn_t r = ml.nvmlInit_v2();
	if (r) {
		printf("NVIDIA-SMI has failed: %s\n", error_string(r));
		return (int)r;
	}
	ml.nvmlDeviceGetCount_v2(&n);
	ml.nvmlSystemGetDriverVersion(driver, sizeof driver);
	if (fields)
		return query(n, fields, format, driver);
	if (lines) {
		for (unsigned i = 0; i < n; i++)
			line(i);
		return 0;
	}
	table(n, driver);
	return 0;
}
