/* libnvidia-ml: event sets. A set delivers what the faults file tells after a
 * card was registered with it. */
#include "nvml.h"

#include <stdlib.h>
#include <time.h>

#define KNOWN (NVML_EVENT_SINGLE_BIT_ECC | NVML_EVENT_DOUBLE_BIT_ECC | NVML_EVENT_XID)
#define LOOK_NS 10000000

struct nvmlEventSet_st {
	unsigned long long types[FG_MAX_CARDS];
	int xids_seen[FG_MAX_CARDS];         /* lines of the file that are over */
	uint64_t corrected[FG_MAX_CARDS], uncorrected[FG_MAX_CARDS];
};

ML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof **set);
	return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

ML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	nvmlReturn_t r = ml_ready();

	if (!r)
		free(set);
	return r;
}

ML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *types)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!types)
		return NVML_ERROR_INVALID_ARGUMENT;
	*types = KNOWN;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set)
{
	const struct fg_card_desc *desc;
	struct fg_faults faults;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~KNOWN)
		return NVML_ERROR_NOT_SUPPORTED;
	fg_faults_read(ml_fg.dir, &faults);
	set->types[d->card] |= types;
	set->xids_seen[d->card] = faults.xids;
	set->corrected[d->card] = faults.ecc_corrected[d->card];
	set->uncorrected[d->card] = faults.ecc_uncorrected[d->card];
	return NVML_SUCCESS;
}

static bool next_event(nvmlEventSet_t set, nvmlDevice_t d, const struct fg_faults *now, nvmlEventData_t *out)
{
	const int card = d->card;

	*out = (nvmlEventData_t){ .device = d, .gpuInstanceId = 0xffffffff, .computeInstanceId = 0xffffffff };
	if (set->xids_seen[card] > now->xids)
		set->xids_seen[card] = 0; /* the file was begun anew */
	if (set->types[card] & NVML_EVENT_XID)
		while (set->xids_seen[card] < now->xids) {
			const int i = set->xids_seen[card]++;
			if (now->xid[i].card != card)
				continue;
			out->eventType = NVML_EVENT_XID;
			out->eventData = now->xid[i].code;
			out->gpuInstanceId = (unsigned)now->xid[i].gi;
			return true;
		}
	if (set->types[card] & NVML_EVENT_DOUBLE_BIT_ECC && now->ecc_uncorrected[card] > set->uncorrected[card]) {
		set->uncorrected[card] = now->ecc_uncorrected[card];
		out->eventType = NVML_EVENT_DOUBLE_BIT_ECC;
		return true;
	}
	if (set->types[card] & NVML_EVENT_SINGLE_BIT_ECC && now->ecc_corrected[card] > set->corrected[card]) {
		set->corrected[card] = now->ecc_corrected[card];
		out->eventType = NVML_EVENT_SINGLE_BIT_ECC;
		return true;
	}
	return false;
}

ML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	const struct timespec pause = { 0, LOOK_NS };
	const uint64_t until = fg_now() + (uint64_t)timeout_ms * 1000000;
	struct fg_faults faults;
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (;;) {
		fg_faults_read(ml_fg.dir, &faults);
		for (int i = 0; i < ml_devices_n; i++)
			if (next_event(set, &ml_devices[i], &faults, data))
				return NVML_SUCCESS;
		/* After all events are told: a registered card that is gone. */
		for (int i = 0; i < ml_devices_n; i++)
			if (set->types[ml_devices[i].card] && faults.lost[ml_devices[i].card])
				return NVML_ERROR_GPU_IS_LOST;
		if (fg_now() >= until)
			return NVML_ERROR_TIMEOUT;
		nanosleep(&pause, NULL);
	}
}

/* The older form's data ends before the instance ids. */
ML_API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, void *data, unsigned int timeout_ms)
{
	nvmlEventData_t full;
	nvmlReturn_t r = nvmlEventSetWait_v2(set, data ? &full : NULL, timeout_ms);

	if (!r)
		__builtin_memcpy(data, &full, __builtin_offsetof(nvmlEventData_t, gpuInstanceId));
	return r;
}
