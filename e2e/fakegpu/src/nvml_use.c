/* libnvidia-ml: what is in use: memory, processes, time; health. */
#include "nvml.h"

#include <stdlib.h>
#include <time.h>

#define NO_INSTANCE 0xffffffffu

/* ---- memory ---- */

static nvmlReturn_t used_of(nvmlDevice_t d, const struct fg_card_desc **desc, uint64_t *used)
{
	nvmlReturn_t r = ml_any(d, desc);

	if (!r)
		r = ml_attach();
	if (r)
		return r;
	*used = fg_mem_used(&ml_fg, d->card);
	if (d->gi) {
		struct fg_card *c = &ml_fg.st->card[d->card];
		fg_lock(&ml_fg, c);
		*used = fg_mig_used(c, d->gi - 1);
		fg_unlock(&ml_fg, c);
	}
	return NVML_SUCCESS;
}

/* An instance has its memory for its programs; the driver's own is the card's. */
static uint64_t total_of(nvmlDevice_t d, const struct fg_card_desc *desc)
{
	const struct fg_mig_profile *p = d->gi ? fg_mig_of(&ml_fg, d->card, d->gi - 1) : NULL;

	return p ? p->memory : desc->memory;
}

static uint64_t reserved_of(nvmlDevice_t d, const struct fg_card_desc *desc)
{
	return d->gi ? 0 : desc->reserved;
}

/* This form counts the driver's own memory as used. */
ML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m)
{
	const struct fg_card_desc *desc;
	uint64_t used;
	nvmlReturn_t r = used_of(d, &desc, &used);

	if (r)
		return r;
	if (!m)
		return NVML_ERROR_INVALID_ARGUMENT;
	m->total = total_of(d, desc);
	m->used = used + reserved_of(d, desc);
	m->free = m->total - m->used;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m)
{
	const struct fg_card_desc *desc;
	uint64_t used;
	nvmlReturn_t r = used_of(d, &desc, &used);

	if (r)
		return r;
	if (!m)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (m->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	m->total = total_of(d, desc);
	m->reserved = reserved_of(d, desc);
	m->used = used;
	m->free = m->total - m->reserved - used;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, nvmlBAR1Memory_t *m)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!m)
		return NVML_ERROR_INVALID_ARGUMENT;
	m->bar1Total = 1;
	while (m->bar1Total < desc->memory)
		m->bar1Total *= 2;
	m->bar1Used = 1 << 20;
	m->bar1Free = m->bar1Total - m->bar1Used;
	return NVML_SUCCESS;
}

/* ---- processes ---- */

struct process {
	pid_t pid;
	int slot;
	uint64_t mem;
};

/* The living processes with a context on the card or MIG device, in our pid
 * namespace. Two copies of libcuda in a process are one process. */
static int processes(nvmlDevice_t d, struct process out[FG_SLOTS])
{
	struct fg_card *c = &ml_fg.st->card[d->card];
	int n = 0;

	fg_lock(&ml_fg, c);
	fg_reap(&ml_fg, c);
	for (int slot = 0; slot < FG_SLOTS; slot++) {
		if (!fg_bit(c->present, slot) || !c->s[slot].contexts)
			continue;
		if (d->gi && (c->s[slot].gi != (word)d->gi || c->s[slot].ci != (word)d->ci))
			continue;
		const pid_t pid = fg_slot_pid(&ml_fg, slot);
		if (pid <= 0)
			continue; /* in no namespace that we see */
		int at = 0;
		while (at < n && out[at].pid != pid)
			at++;
		if (at == n)
			out[n++] = (struct process){ .pid = pid, .slot = slot };
		out[at].mem += c->s[slot].mem;
	}
	fg_unlock(&ml_fg, c);
	return n;
}

static unsigned instance(int card, int slot, bool compute)
{
	const struct fg_slotcard *s = &ml_fg.st->card[card].s[slot];

	return s->gi ? (unsigned)(compute ? s->ci : s->gi) - 1 : NO_INSTANCE;
}

static nvmlReturn_t list(nvmlDevice_t d, unsigned *count, void *infos, bool instances)
{
	const struct fg_card_desc *desc;
	struct process found[FG_SLOTS];
	nvmlReturn_t r = ml_any(d, &desc);

	if (!r)
		r = ml_attach();
	if (r)
		return r;
	if (!count || (*count && !infos))
		return NVML_ERROR_INVALID_ARGUMENT;
	const unsigned n = (unsigned)processes(d, found), room = *count;
	*count = n;
	if (n > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < n; i++)
		if (instances)
			((nvmlProcessInfo_t *)infos)[i] = (nvmlProcessInfo_t){ (unsigned)found[i].pid, found[i].mem, instance(d->card, found[i].slot, 0), instance(d->card, found[i].slot, 1) };
		else
			((nvmlProcessInfo_v1_t *)infos)[i] = (nvmlProcessInfo_v1_t){ (unsigned)found[i].pid, found[i].mem };
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *infos)
{
	return list(d, n, infos, true);
}

ML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_t *infos)
{
	return list(d, n, infos, true);
}

ML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v1_t *infos)
{
	return list(d, n, infos, false);
}

/* Nothing here draws, and there is no MPS. */
static nvmlReturn_t none(nvmlDevice_t d, unsigned *n)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_any(d, &desc);

	if (r)
		return r;
	if (!n)
		return NVML_ERROR_INVALID_ARGUMENT;
	*n = 0;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *n) { return none(d, n); }
ML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t d, unsigned *n) { return none(d, n); }
ML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t d, unsigned *n) { return none(d, n); }
ML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n) { return none(d, n); }
ML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t d, unsigned *n) { return none(d, n); }
ML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t d, unsigned *n) { return none(d, n); }

/* ---- time ---- */

/* NVML's time stamps are microseconds of the day's clock, the simulation's
 * are nanoseconds since boot. */
static int64_t offset_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - (int64_t)fg_now();
}

static uint64_t since_of(unsigned long long seen_us, int64_t offset)
{
	const int64_t t = (int64_t)seen_us * 1000 - offset;

	/* "No time seen yet" means the last period. */
	return !seen_us || t < 0 ? fg_now() - FG_PERIOD_NS : (uint64_t)t;
}

ML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u)
{
	const struct fg_card_desc *desc;
	uint64_t until;
	nvmlReturn_t r = ml_device(d, &desc);

	if (!r)
		r = ml_attach();
	if (r)
		return r;
	if (!u)
		return NVML_ERROR_INVALID_ARGUMENT;
	u->gpu = fg_busy_percent(&ml_fg, d->card, -1, fg_now() - FG_PERIOD_NS, &until);
	u->memory = 0; /* the traffic of memory is not simulated */
	return NVML_SUCCESS;
}

/* One sample a process that was busy, averaged from the time last seen (or
 * the last period) to the end of the last whole period. */
ML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *out, unsigned *count,
						    unsigned long long seen)
{
	const struct fg_card_desc *desc;
	struct process found[FG_SLOTS];
	nvmlReturn_t r = ml_device(d, &desc);

	if (!r)
		r = ml_attach();
	if (r)
		return r;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	const int64_t offset = offset_ns();
	const int n = processes(d, found);
	const unsigned room = *count;
	unsigned got = 0;
	if (!out) {
		*count = n ? (unsigned)n : 1;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	for (int i = 0; i < n; i++) {
		uint64_t until;
		const unsigned busy = fg_busy_percent(&ml_fg, d->card, found[i].slot, since_of(seen, offset), &until);
		const unsigned long long stamp = (unsigned long long)((int64_t)until + offset) / 1000;
		if (!busy || stamp <= seen)
			continue;
		if (got == room) {
			*count = (unsigned)n;
			return NVML_ERROR_INSUFFICIENT_SIZE;
		}
		out[got++] = (nvmlProcessUtilizationSample_t){ .pid = (unsigned)found[i].pid, .timeStamp = stamp, .smUtil = busy };
	}
	*count = got;
	return got ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t no_codec(nvmlDevice_t d, unsigned *util, unsigned *period_us)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!util || !period_us)
		return NVML_ERROR_INVALID_ARGUMENT;
	*util = 0;
	*period_us = (unsigned)(FG_PERIOD_NS / 1000);
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t d, unsigned *u, unsigned *p) { return no_codec(d, u, p); }
ML_API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t d, unsigned *u, unsigned *p) { return no_codec(d, u, p); }

/* ---- health ---- */

ML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *temperature)
{
	const struct fg_card_desc *desc;
	struct fg_faults faults;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!temperature || sensor)
		return NVML_ERROR_INVALID_ARGUMENT;
	fg_faults_read(ml_fg.dir, &faults);
	*temperature = faults.temperature[d->card] ? (unsigned)faults.temperature[d->card] : 35;
	return NVML_SUCCESS;
}

/* Idle power is a sixth of the limit; the rest follows the load. */
ML_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *milliwatts)
{
	const struct fg_card_desc *desc;
	nvmlUtilization_t u;
	nvmlReturn_t r = nvmlDeviceGetUtilizationRates(d, &u);

	if (!r)
		r = ml_device(d, &desc);
	if (r)
		return r;
	if (!milliwatts)
		return NVML_ERROR_INVALID_ARGUMENT;
	const unsigned idle = (unsigned)desc->power_limit / 6;
	*milliwatts = idle + ((unsigned)desc->power_limit - idle) / 100 * u.gpu;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, unsigned *current, unsigned *pending)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = *pending = 1;
	return NVML_SUCCESS;
}

/* type: 0 corrected, 1 uncorrected. Volatile and aggregate agree here. */
ML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int type, int counter, unsigned long long *count)
{
	const struct fg_card_desc *desc;
	struct fg_faults faults;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!count || type < 0 || type > 1 || counter < 0 || counter > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	fg_faults_read(ml_fg.dir, &faults);
	*count = type ? faults.ecc_uncorrected[d->card] : faults.ecc_corrected[d->card];
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, int type, int counter, int location, unsigned long long *count)
{
	/* All errors are told of the card's main memory. */
	nvmlReturn_t r = nvmlDeviceGetTotalEccErrors(d, type, counter, count);

	if (!r && location != 2)
		*count = 0;
	return r;
}

ML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!corrected || !uncorrected || !pending || !failed)
		return NVML_ERROR_INVALID_ARGUMENT;
	*corrected = *uncorrected = *pending = *failed = 0;
	return NVML_SUCCESS;
}
