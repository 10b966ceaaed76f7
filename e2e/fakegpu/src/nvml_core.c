/* libnvidia-ml: initialisation, versions, handles of devices. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

struct fg ml_fg;
struct nvmlDevice_st ml_devices[FG_MAX_CARDS];
int ml_devices_n;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static int refs;
static pid_t attached_by;
static ino_t mapped;

/* The files of a node stay mapped from one nvmlInit to the next: closing them
 * would drop process locks. Only a node installed anew is opened anew. */
static bool open_node(void)
{
	char why[512], path[300];
	struct stat st;

	if (ml_fg.st) {
		snprintf(path, sizeof path, "%s/state", ml_fg.dir);
		if (!stat(path, &st) && st.st_ino == mapped) {
			snprintf(path, sizeof path, "%s/node", ml_fg.dir);
			return fg_node_read(path, &ml_fg.node, why, sizeof why);
		}
	}
	if (!fg_open(&ml_fg, why, sizeof why))
		return false;
	snprintf(path, sizeof path, "%s/state", ml_fg.dir);
	mapped = stat(path, &st) ? 0 : st.st_ino;
	attached_by = 0;
	return true;
}

static nvmlReturn_t start(void)
{
	struct fg_faults faults;
	char path[300];

	if (!open_node())
		return NVML_ERROR_DRIVER_NOT_LOADED;
	fg_faults_read(ml_fg.dir, &faults);
	snprintf(path, sizeof path, "%s/nvidiactl", ml_fg.dev);
	if (faults.unloaded || access(path, F_OK))
		return NVML_ERROR_DRIVER_NOT_LOADED;
	ml_devices_n = 0;
	for (int i = 0; i < ml_fg.node.cards; i++)
		if (fg_visible(&ml_fg, i)) {
			ml_devices[ml_devices_n].card = i;
			ml_devices[ml_devices_n].index = ml_devices_n;
			ml_devices_n++;
		}
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	nvmlReturn_t r = NVML_SUCCESS;

	(void)flags;
	pthread_mutex_lock(&mu);
	if (!refs)
		r = start();
	if (!r)
		refs++;
	pthread_mutex_unlock(&mu);
	return r;
}

ML_API nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

ML_API nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

ML_API nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t r = NVML_SUCCESS;

	pthread_mutex_lock(&mu);
	if (refs)
		refs--;
	else
		r = NVML_ERROR_UNINITIALIZED;
	pthread_mutex_unlock(&mu);
	return r;
}

nvmlReturn_t ml_ready(void)
{
	return __atomic_load_n(&refs, __ATOMIC_ACQUIRE) ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t ml_attach(void)
{
	nvmlReturn_t r = NVML_SUCCESS;

	pthread_mutex_lock(&mu);
	if (attached_by != getpid()) {
		/* Also in a forked child, whose parent has the slot. */
		ml_fg.slot = -1;
		if (fg_attach(&ml_fg, FG_OBSERVER))
			attached_by = getpid();
		else
			r = NVML_ERROR_UNKNOWN;
	}
	pthread_mutex_unlock(&mu);
	return r;
}

nvmlReturn_t ml_device(nvmlDevice_t d, const struct fg_card_desc **desc)
{
	struct fg_faults faults;
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (d < ml_devices || d >= ml_devices + ml_devices_n)
		return NVML_ERROR_INVALID_ARGUMENT;
	fg_faults_read(ml_fg.dir, &faults);
	if (faults.lost[d->card])
		return NVML_ERROR_GPU_IS_LOST;
	*desc = &ml_fg.node.card[d->card];
	return NVML_SUCCESS;
}

nvmlReturn_t ml_text(char *out, unsigned length, const char *text)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!text[0])
		return NVML_ERROR_NOT_SUPPORTED;
	if (length <= strlen(text))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

static const struct { nvmlReturn_t code; const char *text; } errors[] = {
	{ NVML_SUCCESS, "Success" },
	{ NVML_ERROR_UNINITIALIZED, "Uninitialized" },
	{ NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument" },
	{ NVML_ERROR_NOT_SUPPORTED, "Not Supported" },
	{ NVML_ERROR_NO_PERMISSION, "Insufficient Permissions" },
	{ NVML_ERROR_NOT_FOUND, "Not Found" },
	{ NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size" },
	{ NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded" },
	{ NVML_ERROR_TIMEOUT, "Timeout" },
	{ NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found" },
	{ NVML_ERROR_GPU_IS_LOST, "GPU is lost" },
	{ NVML_ERROR_MEMORY, "Insufficient Memory" },
	{ NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch" },
};

ML_API const char *nvmlErrorString(nvmlReturn_t code)
{
	for (unsigned i = 0; i < sizeof errors / sizeof errors[0]; i++)
		if (errors[i].code == code)
			return errors[i].text;
	return "Unknown Error";
}

/* ---- the system ---- */

ML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	nvmlReturn_t r = ml_ready();

	return r ? r : ml_text(version, length, ml_fg.node.driver);
}

ML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char text[64];

	/* Works without nvmlInit in the real library, too. */
	snprintf(text, sizeof text, "13.%s", ml_fg.node.driver[0] ? ml_fg.node.driver : "0");
	return ml_text(version, length, text);
}

ML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = ml_fg.node.cuda;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

ML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[64], text[1024];
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return NVML_ERROR_NOT_FOUND;
	size_t n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = '\0';
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}

/* ---- handles ---- */

ML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = (unsigned)ml_devices_n;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

ML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (!device || index >= (unsigned)ml_devices_n)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = ml_device(&ml_devices[index], &desc);
	if (!r)
		*device = &ml_devices[index];
	return r;
}

ML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t by_text(const char *text, nvmlDevice_t *device, bool (*same)(const struct fg_card_desc *, const char *))
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (!text || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < ml_devices_n; i++)
		if (same(&ml_fg.node.card[ml_devices[i].card], text)) {
			r = ml_device(&ml_devices[i], &desc);
			if (!r)
				*device = &ml_devices[i];
			return r;
		}
	return NVML_ERROR_NOT_FOUND;
}

static bool same_uuid(const struct fg_card_desc *d, const char *text)
{
	return !strcasecmp(d->uuid, text);
}

static bool same_serial(const struct fg_card_desc *d, const char *text)
{
	return !strcmp(d->serial, text);
}

/* "0000:17:00.0", "00000000:17:00.0", any case. */
static bool same_pci(const struct fg_card_desc *d, const char *text)
{
	unsigned a[4], b[4];

	return sscanf(d->pci, "%x:%x:%x.%x", &a[0], &a[1], &a[2], &a[3]) == 4 &&
	       sscanf(text, "%x:%x:%x.%x", &b[0], &b[1], &b[2], &b[3]) == 4 && !memcmp(a, b, sizeof a);
}

ML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	if (uuid && !strncasecmp(uuid, "MIG-", 4))
		return ml_mig_by_uuid(uuid, device);
	return by_text(uuid, device, same_uuid);
}

ML_API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	return by_text(serial, device, same_serial);
}

ML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	return by_text(id, device, same_pci);
}

ML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return by_text(id, device, same_pci);
}
