/* libnvidia-ml: what a card is: names, numbers, modes. */
#include "nvml.h"

#include <unistd.h>

#include <stdio.h>

ML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned int length)
{
	const struct fg_card_desc *desc;
	char profile[32], text[160];
	nvmlReturn_t r = ml_any(d, &desc);

	if (r)
		return r;
	if (!d->gi)
		return ml_text(name, length, desc->name);
	fg_mig_name(&ml_fg, d->card, d->gi - 1, d->ci - 1, profile);
	snprintf(text, sizeof text, "%s MIG %s", desc->name, profile);
	return ml_text(name, length, text);
}

ML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned int length)
{
	const struct fg_card_desc *desc;
	char mig[48];
	nvmlReturn_t r = ml_any(d, &desc);

	if (r)
		return r;
	if (!d->gi)
		return ml_text(uuid, length, desc->uuid);
	fg_mig_uuid(&ml_fg, d->card, d->gi - 1, d->ci - 1, mig);
	return ml_text(uuid, length, mig);
}

ML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned int *index)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_any(d, &desc);

	if (r)
		return r;
	if (!index)
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = (unsigned)d->index;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t d, char *serial, unsigned int length)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	return r ? r : ml_text(serial, length, desc->serial);
}

ML_API nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t d, char *part, unsigned int length)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	return r ? r : ml_text(part, length, desc->board);
}

ML_API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t d, char *version, unsigned int length)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	return r ? r : ml_text(version, length, "96.00.00.00.01");
}

#define COMPUTE_EXCLUSIVE_PROCESS 3

/* One number out of the card's description. */
static nvmlReturn_t number(nvmlDevice_t d, unsigned *out, unsigned (*get)(nvmlDevice_t, const struct fg_card_desc *))
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = get(d, desc);
	return NVML_SUCCESS;
}

#define NUMBER(function, expression)                                                          \
	static unsigned get_##function(nvmlDevice_t d, const struct fg_card_desc *c)          \
	{                                                                                     \
		(void)d;                                                                      \
		(void)c;                                                                      \
		return (unsigned)(expression);                                                \
	}                                                                                     \
	ML_API nvmlReturn_t function(nvmlDevice_t d, unsigned *out)                           \
	{                                                                                     \
		return number(d, out, get_##function);                                        \
	}

NUMBER(nvmlDeviceGetMinorNumber, c->minor)
NUMBER(nvmlDeviceGetModuleId, d->card)
NUMBER(nvmlDeviceGetBrand, c->brand)
NUMBER(nvmlDeviceGetArchitecture, c->architecture)
NUMBER(nvmlDeviceGetMemoryBusWidth, c->bus_width)
NUMBER(nvmlDeviceGetNumGpuCores, c->cores)
NUMBER(nvmlDeviceGetMultiGpuBoard, 0)
NUMBER(nvmlDeviceGetBoardId, d->card << 8)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetDisplayMode, 0)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetComputeMode, ml_fg.st->card[d->card].exclusive ? COMPUTE_EXCLUSIVE_PROCESS : 0)

ML_API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t d, unsigned int mode)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (!r && geteuid() != 0)
		r = NVML_ERROR_NO_PERMISSION;
	if (!r)
		r = ml_attach();
	if (r)
		return r;
	if (mode != 0 && mode != COMPUTE_EXCLUSIVE_PROCESS)
		return NVML_ERROR_INVALID_ARGUMENT;
	struct fg_card *c = &ml_fg.st->card[d->card];
	fg_lock(&ml_fg, c);
	fg_set(c, &c->exclusive, mode != 0);
	fg_unlock(&ml_fg, c);
	return NVML_SUCCESS;
}
NUMBER(nvmlDeviceGetPerformanceState, 0)
NUMBER(nvmlDeviceGetPowerManagementMode, 1)
NUMBER(nvmlDeviceGetPowerManagementLimit, c->power_limit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, c->power_limit)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, c->power_limit)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, c->pcie_gen)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, c->pcie_width)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, c->pcie_gen)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, c->pcie_width)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, c->pcie_gen)

ML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = desc->cc_major;
	*minor = desc->cc_minor;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, int type, unsigned int *clock)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!clock || type < NVML_CLOCK_GRAPHICS || type > NVML_CLOCK_VIDEO)
		return NVML_ERROR_INVALID_ARGUMENT;
	*clock = (unsigned)(type == NVML_CLOCK_MEM ? desc->mem_clock : desc->sm_clock);
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, int type, unsigned int *clock)
{
	return nvmlDeviceGetMaxClockInfo(d, type, clock);
}
