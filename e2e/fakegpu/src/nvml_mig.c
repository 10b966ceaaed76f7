/* libnvidia-ml: MIG: the mode, profiles, GPU instances, compute instances, and
 * the devices that these are. */
#include "nvml.h"

#include <string.h>
#include <strings.h>

#define COMPUTE_SLICES 7
#define COMPUTE_PROFILES 9
#define REV1 7 /* NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1 */

/* Handles: one for every instance that there can be. What they name is looked
 * up at each call. */
struct nvmlGpuInstance_st {
	int card, gi;
};

struct nvmlComputeInstance_st {
	int card, gi, ci;
};

static struct nvmlGpuInstance_st gis[FG_MAX_CARDS][FG_GIS];
static struct nvmlComputeInstance_st cis[FG_MAX_CARDS][FG_GIS][FG_CIS];
static struct nvmlDevice_st migs[FG_MAX_CARDS][FG_GIS][FG_CIS];

static nvmlReturn_t result(enum fg_mig_result r)
{
	switch (r) {
	case FG_MIG_OK: return NVML_SUCCESS;
	case FG_MIG_UNSUPPORTED: return NVML_ERROR_NOT_SUPPORTED;
	case FG_MIG_IN_USE: return NVML_ERROR_IN_USE;
	case FG_MIG_NO_ROOM: return NVML_ERROR_INSUFFICIENT_RESOURCES;
	default: return NVML_ERROR_NOT_FOUND;
	}
}

/* Needed by whoever changes instances. */
static nvmlReturn_t may_change(void)
{
	return fg_mig_config(&ml_fg) ? ml_attach() : NVML_ERROR_NO_PERMISSION;
}

static nvmlReturn_t supported(nvmlDevice_t d, const struct fg_card_desc **desc)
{
	nvmlReturn_t r = ml_device(d, desc);

	return r ? r : (*desc)->mig ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* ---- the mode ---- */

ML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *current, unsigned int *pending)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = supported(d, &desc);

	if (r)
		return r;
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = *pending = (unsigned)ml_fg.st->card[d->card].mig.on;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t d, unsigned int mode, nvmlReturn_t *activation)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = supported(d, &desc);

	if (!r)
		r = may_change();
	if (r)
		return r;
	if (!activation || mode > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	*activation = result(fg_mig_switch(&ml_fg, d->card, mode == 1));
	return *activation;
}

ML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned int *count)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = ml_fg.st->card[d->card].mig.on ? COMPUTE_SLICES : 0;
	return NVML_SUCCESS;
}

/* ---- profiles of GPU instances ---- */

static nvmlReturn_t profile_of(nvmlDevice_t d, unsigned key, bool by_id, const struct fg_mig_profile **out)
{
	const struct fg_card_desc *desc;
	int n;
	nvmlReturn_t r = supported(d, &desc);

	if (r)
		return r;
	const struct fg_mig_profile *p = fg_mig_profiles(desc, &n);
	for (int i = 0; i < n; i++)
		if (key == (by_id ? p[i].id : (unsigned)p[i].number)) {
			*out = &p[i];
			return NVML_SUCCESS;
		}
	return by_id ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

ML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t d, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info)
{
	const struct fg_mig_profile *p;
	nvmlReturn_t r = profile_of(d, profile, false, &p);

	if (r)
		return r;
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	*info = (nvmlGpuInstanceProfileInfo_t){ .id = p->id, .sliceCount = p->slices, .instanceCount = p->count,
		.multiprocessorCount = p->sms, .copyEngineCount = p->copy, .decoderCount = p->decoders, .jpegCount = p->jpeg,
		.ofaCount = p->ofa, .memorySizeMB = p->memory >> 20 };
	return NVML_SUCCESS;
}

/* The forms with a version tell the profile's name. */
static nvmlReturn_t named(const struct fg_mig_profile *p, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	nvmlGpuInstanceProfileInfo_v3_t *v3 = (nvmlGpuInstanceProfileInfo_v3_t *)(void *)info;

	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version == NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2)) {
		*info = (nvmlGpuInstanceProfileInfo_v2_t){ .version = info->version, .id = p->id, .sliceCount = p->slices,
			.instanceCount = p->count, .multiprocessorCount = p->sms, .copyEngineCount = p->copy,
			.decoderCount = p->decoders, .jpegCount = p->jpeg, .ofaCount = p->ofa, .memorySizeMB = p->memory >> 20 };
		return ml_text(info->name, sizeof info->name, p->name);
	}
	if (info->version == NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v3_t, 3)) {
		*v3 = (nvmlGpuInstanceProfileInfo_v3_t){ .version = info->version, .id = p->id, .sliceCount = p->slices,
			.instanceCount = p->count, .multiprocessorCount = p->sms, .copyEngineCount = p->copy,
			.decoderCount = p->decoders, .jpegCount = p->jpeg, .ofaCount = p->ofa, .memorySizeMB = p->memory >> 20 };
		return ml_text(v3->name, sizeof v3->name, p->name);
	}
	return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

ML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t d, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	const struct fg_mig_profile *p;
	nvmlReturn_t r = profile_of(d, profile, false, &p);

	return r ? r : named(p, info);
}

ML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t d, unsigned int id, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	const struct fg_mig_profile *p;
	nvmlReturn_t r = profile_of(d, id, true, &p);

	return r ? r : named(p, info);
}

/* Without a list: how many places there are. */
ML_API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t d, unsigned int id, nvmlGpuInstancePlacement_t *out,
								  unsigned int *count)
{
	const struct fg_mig_profile *p;
	nvmlReturn_t r = profile_of(d, id, true, &p);

	if (r)
		return r;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; out && i < p->starts; i++)
		out[i] = (nvmlGpuInstancePlacement_t){ p->start[i], p->size };
	*count = (unsigned)p->starts;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t d, unsigned int id, nvmlGpuInstancePlacement_t *out,
							       unsigned int *count)
{
	return nvmlDeviceGetGpuInstancePossiblePlacements_v2(d, id, out, count);
}

/* Counts by the places alone that are free, each instance taking the first. */
ML_API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t d, unsigned int id, unsigned int *count)
{
	const struct fg_mig_profile *p;
	unsigned free_from = 0;
	nvmlReturn_t r = profile_of(d, id, true, &p);

	if (r)
		return r;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	for (int i = 0; i < p->starts; i++) {
		bool taken = p->start[i] < free_from;
		for (int gi = 0; gi < FG_GIS; gi++) {
			const struct fg_mig_profile *o = fg_mig_of(&ml_fg, d->card, gi);
			const unsigned at = (unsigned)ml_fg.st->card[d->card].mig.gi[gi].start;
			taken = taken || (o && p->start[i] < at + o->size && at < p->start[i] + p->size);
		}
		if (!taken && *count < p->count) {
			++*count;
			free_from = p->start[i] + p->size;
		}
	}
	return NVML_SUCCESS;
}

/* ---- GPU instances ---- */

static nvmlGpuInstance_t gi_handle(int card, int gi)
{
	gis[card][gi] = (struct nvmlGpuInstance_st){ card, gi };
	return (nvmlGpuInstance_t){ &gis[card][gi] };
}

static nvmlReturn_t gi_at(nvmlGpuInstance_t h, const struct fg_mig_profile **p)
{
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (h.handle < &gis[0][0] || h.handle > &gis[FG_MAX_CARDS - 1][FG_GIS - 1])
		return NVML_ERROR_INVALID_ARGUMENT;
	*p = fg_mig_of(&ml_fg, h.handle->card, h.handle->gi);
	return *p ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t make_gi(nvmlDevice_t d, unsigned id, int start, nvmlGpuInstance_t *out)
{
	const struct fg_mig_profile *p;
	int gi;
	nvmlReturn_t r = profile_of(d, id, true, &p);

	if (!r)
		r = may_change();
	if (r)
		return r;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = result(fg_mig_make_gi(&ml_fg, d->card, p, start, &gi));
	if (!r)
		*out = gi_handle(d->card, gi);
	return r;
}

ML_API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t d, unsigned int id, nvmlGpuInstance_t *out)
{
	return make_gi(d, id, -1, out);
}

ML_API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t d, unsigned int id, const nvmlGpuInstancePlacement_t *at,
							     nvmlGpuInstance_t *out)
{
	return at ? make_gi(d, id, (int)at->start, out) : NVML_ERROR_INVALID_ARGUMENT;
}

ML_API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t h)
{
	const struct fg_mig_profile *p;
	nvmlReturn_t r = gi_at(h, &p);

	if (!r)
		r = may_change();
	return r ? r : result(fg_mig_free_gi(&ml_fg, h.handle->card, h.handle->gi));
}

ML_API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t d, unsigned int id, nvmlGpuInstance_t *out, unsigned int *count)
{
	const struct fg_mig_profile *p;
	nvmlReturn_t r = profile_of(d, id, true, &p);

	if (r)
		return r;
	if (!out || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!ml_fg.st->card[d->card].mig.on)
		return NVML_ERROR_NOT_SUPPORTED;
	*count = 0;
	for (int gi = 0; gi < FG_GIS; gi++)
		if (fg_mig_of(&ml_fg, d->card, gi) == p)
			out[(*count)++] = gi_handle(d->card, gi);
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t d, unsigned int id, nvmlGpuInstance_t *out)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = supported(d, &desc);

	if (r)
		return r;
	if (!out || id >= FG_GIS)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!fg_mig_of(&ml_fg, d->card, (int)id))
		return NVML_ERROR_NOT_FOUND;
	*out = gi_handle(d->card, (int)id);
	return NVML_SUCCESS;
}

static nvmlDevice_t card_handle(int card)
{
	for (int i = 0; i < ml_devices_n; i++)
		if (ml_devices[i].card == card)
			return &ml_devices[i];
	return NULL;
}

ML_API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t h, nvmlGpuInstanceInfo_t *info)
{
	const struct fg_mig_profile *p;
	nvmlReturn_t r = gi_at(h, &p);

	if (r)
		return r;
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	const struct fg_gi *g = &ml_fg.st->card[h.handle->card].mig.gi[h.handle->gi];
	*info = (nvmlGpuInstanceInfo_t){ .device = card_handle(h.handle->card), .id = (unsigned)h.handle->gi, .profileId = p->id,
		.placement = { (unsigned)g->start, p->size } };
	return NVML_SUCCESS;
}

/* ---- profiles of compute instances: one for each number of slices ---- */

static const unsigned slices_of[COMPUTE_PROFILES] = { 1, 2, 3, 4, 7 };

static nvmlReturn_t compute_profile(nvmlGpuInstance_t h, unsigned profile, const struct fg_mig_profile **p, unsigned *slices)
{
	nvmlReturn_t r = gi_at(h, p);

	if (r)
		return r;
	if (profile >= COMPUTE_PROFILES)
		return NVML_ERROR_INVALID_ARGUMENT;
	*slices = slices_of[profile];
	/* The library numbers them as it numbers the profiles: id and number are one. */
	return profile < REV1 && *slices && *slices <= (*p)->slices ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

ML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t h, unsigned int profile, unsigned int engines,
								 nvmlComputeInstanceProfileInfo_t *info)
{
	const struct fg_mig_profile *p;
	unsigned slices;
	nvmlReturn_t r = compute_profile(h, profile, &p, &slices);

	if (r)
		return r;
	if (!info || engines)
		return NVML_ERROR_INVALID_ARGUMENT;
	*info = (nvmlComputeInstanceProfileInfo_t){ .id = profile, .sliceCount = slices, .instanceCount = p->slices / slices,
		.multiprocessorCount = p->sms / p->slices * slices, .sharedCopyEngineCount = p->copy,
		.sharedDecoderCount = p->decoders, .sharedJpegCount = p->jpeg, .sharedOfaCount = p->ofa };
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t h, unsigned int profile, unsigned int engines,
								  nvmlComputeInstanceProfileInfo_v2_t *info)
{
	nvmlComputeInstanceProfileInfo_t plain;
	nvmlComputeInstanceProfileInfo_v3_t *v3 = (nvmlComputeInstanceProfileInfo_v3_t *)(void *)info;
	nvmlReturn_t r = nvmlGpuInstanceGetComputeInstanceProfileInfo(h, profile, engines, info ? &plain : NULL);

	if (r)
		return r;
	const bool is_v3 = info->version == NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3);
	if (!is_v3 && info->version != NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	/* Both begin with the version and go on as the plain form. */
	memcpy(&info->id, &plain, sizeof plain);
	if (is_v3)
		v3->capabilities = 0;
	return ml_text(info->name, sizeof info->name, fg_mig_of(&ml_fg, h.handle->card, h.handle->gi)->name);
}

ML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t h, unsigned int id, unsigned int *count)
{
	const struct fg_mig_profile *p;
	unsigned slices, taken = 0;
	nvmlReturn_t r = compute_profile(h, id, &p, &slices);

	if (r)
		return r;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int ci = 0; ci < FG_CIS; ci++)
		taken += (unsigned)ml_fg.st->card[h.handle->card].mig.gi[h.handle->gi].ci[ci].slices;
	*count = (p->slices - taken) / slices;
	return NVML_SUCCESS;
}

/* ---- compute instances ---- */

static nvmlComputeInstance_t ci_handle(int card, int gi, int ci)
{
	cis[card][gi][ci] = (struct nvmlComputeInstance_st){ card, gi, ci };
	return (nvmlComputeInstance_t){ &cis[card][gi][ci] };
}

static nvmlReturn_t ci_at(nvmlComputeInstance_t h)
{
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (h.handle < &cis[0][0][0] || h.handle > &cis[FG_MAX_CARDS - 1][FG_GIS - 1][FG_CIS - 1])
		return NVML_ERROR_INVALID_ARGUMENT;
	return fg_mig_has_ci(&ml_fg, h.handle->card, h.handle->gi, h.handle->ci) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

ML_API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t h, unsigned int id, nvmlComputeInstance_t *out)
{
	const struct fg_mig_profile *p;
	unsigned slices;
	int ci;
	nvmlReturn_t r = compute_profile(h, id, &p, &slices);

	if (!r)
		r = may_change();
	if (r)
		return r;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = result(fg_mig_make_ci(&ml_fg, h.handle->card, h.handle->gi, slices, &ci));
	if (!r)
		*out = ci_handle(h.handle->card, h.handle->gi, ci);
	return r;
}

ML_API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t h)
{
	nvmlReturn_t r = ci_at(h);

	if (!r)
		r = may_change();
	return r ? r : result(fg_mig_free_ci(&ml_fg, h.handle->card, h.handle->gi, h.handle->ci));
}

static unsigned compute_id(int card, int gi, int ci)
{
	unsigned id = 0;

	while (slices_of[id] != ml_fg.st->card[card].mig.gi[gi].ci[ci].slices)
		id++;
	return id;
}

ML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t h, unsigned int id, nvmlComputeInstance_t *out, unsigned int *count)
{
	const struct fg_mig_profile *p;
	unsigned slices;
	nvmlReturn_t r = compute_profile(h, id, &p, &slices);

	if (r)
		return r;
	if (!out || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	for (int ci = 0; ci < FG_CIS; ci++)
		if (ml_fg.st->card[h.handle->card].mig.gi[h.handle->gi].ci[ci].slices == slices)
			out[(*count)++] = ci_handle(h.handle->card, h.handle->gi, ci);
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t h, unsigned int id, nvmlComputeInstance_t *out)
{
	const struct fg_mig_profile *p;
	nvmlReturn_t r = gi_at(h, &p);

	if (r)
		return r;
	if (!out || id >= FG_CIS)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!fg_mig_has_ci(&ml_fg, h.handle->card, h.handle->gi, (int)id))
		return NVML_ERROR_NOT_FOUND;
	*out = ci_handle(h.handle->card, h.handle->gi, (int)id);
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t h, nvmlComputeInstanceInfo_t *info)
{
	nvmlReturn_t r = ci_at(h);

	if (r)
		return r;
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	const int card = h.handle->card, gi = h.handle->gi, ci = h.handle->ci;
	*info = (nvmlComputeInstanceInfo_t){ .device = card_handle(card), .gpuInstance = gi_handle(card, gi), .id = (unsigned)ci,
		.profileId = compute_id(card, gi, ci), .placement = { 0, (unsigned)ml_fg.st->card[card].mig.gi[gi].ci[ci].slices } };
	for (int before = 0; before < ci; before++)
		info->placement.start += (unsigned)ml_fg.st->card[card].mig.gi[gi].ci[before].slices;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t h, nvmlComputeInstanceInfo_t *info)
{
	return nvmlComputeInstanceGetInfo_v2(h, info);
}

/* ---- MIG devices ---- */

static bool is_mig(nvmlDevice_t d)
{
	return d >= &migs[0][0][0] && d <= &migs[FG_MAX_CARDS - 1][FG_GIS - 1][FG_CIS - 1] && d->gi;
}

nvmlReturn_t ml_any(nvmlDevice_t d, const struct fg_card_desc **desc)
{
	nvmlReturn_t r;

	if (!is_mig(d))
		return ml_device(d, desc);
	r = card_handle(d->card) ? ml_device(card_handle(d->card), desc) : NVML_ERROR_INVALID_ARGUMENT;
	if (!r && !fg_mig_visible(&ml_fg, d->card, d->gi - 1, d->ci - 1))
		r = NVML_ERROR_INVALID_ARGUMENT; /* it was destroyed */
	return r;
}

/* The visible MIG devices of a card, in the order of their instances' ids. */
static nvmlDevice_t nth(int card, unsigned index)
{
	unsigned n = 0;

	for (int gi = 0; gi < FG_GIS; gi++)
		for (int ci = 0; ci < FG_CIS; ci++) {
			if (!fg_mig_visible(&ml_fg, card, gi, ci) || n++ != index)
				continue;
			migs[card][gi][ci] = (struct nvmlDevice_st){ .card = card, .index = (int)index, .gi = gi + 1, .ci = ci + 1 };
			return &migs[card][gi][ci];
		}
	return NULL;
}

ML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int index, nvmlDevice_t *out)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = supported(d, &desc);

	if (r)
		return r;
	if (!out || index >= COMPUTE_SLICES)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = nth(d->card, index);
	return *out ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t ml_mig_by_uuid(const char *uuid, nvmlDevice_t *out)
{
	char text[48];
	nvmlReturn_t r = ml_ready();

	if (r)
		return r;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < ml_devices_n; i++)
		for (unsigned index = 0; index < COMPUTE_SLICES; index++) {
			nvmlDevice_t d = nth(ml_devices[i].card, index);
			if (!d)
				break;
			fg_mig_uuid(&ml_fg, d->card, d->gi - 1, d->ci - 1, text);
			if (!strcasecmp(text, uuid)) {
				*out = d;
				return NVML_SUCCESS;
			}
		}
	return NVML_ERROR_NOT_FOUND;
}

ML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned int *is)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_any(d, &desc);

	if (r)
		return r;
	if (!is)
		return NVML_ERROR_INVALID_ARGUMENT;
	*is = d->gi != 0;
	return NVML_SUCCESS;
}

/* A number of a MIG device; of a card it is no question. */
static nvmlReturn_t number(nvmlDevice_t d, unsigned *out, bool compute)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_any(d, &desc);

	if (r)
		return r;
	if (!out || !d->gi)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = (unsigned)(compute ? d->ci : d->gi) - 1;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned int *id)
{
	return number(d, id, false);
}

ML_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned int *id)
{
	return number(d, id, true);
}

ML_API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t d, nvmlDevice_t *out)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_any(d, &desc);

	if (r)
		return r;
	if (!out || !d->gi)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = card_handle(d->card);
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, nvmlDeviceAttributes_t *a)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_any(d, &desc);

	if (r)
		return r;
	if (!a || !d->gi)
		return NVML_ERROR_INVALID_ARGUMENT;
	const struct fg_mig_profile *p = fg_mig_of(&ml_fg, d->card, d->gi - 1);
	*a = (nvmlDeviceAttributes_t){ .multiprocessorCount = fg_mig_sms(&ml_fg, d->card, d->gi - 1, d->ci - 1),
		.sharedCopyEngineCount = p->copy, .sharedDecoderCount = p->decoders, .sharedJpegCount = p->jpeg,
		.sharedOfaCount = p->ofa, .gpuInstanceSliceCount = p->slices, .memorySizeMB = p->memory >> 20,
		.computeInstanceSliceCount = (unsigned)ml_fg.st->card[d->card].mig.gi[d->gi - 1].ci[d->ci - 1].slices };
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t d, nvmlDeviceAttributes_t *a)
{
	return nvmlDeviceGetAttributes_v2(d, a);
}
