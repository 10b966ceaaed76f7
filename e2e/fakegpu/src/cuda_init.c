/* libcuda: initialisation, and which cards a process sees. */
#include "cuda.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

struct process *fg_p;

void cu_lock(void)
{
	pthread_mutex_lock(&fg_p->mu);
}

void cu_unlock(void)
{
	pthread_mutex_unlock(&fg_p->mu);
}

CUresult cu_ready(void)
{
	return fg_p && fg_p->up ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* ---- visible devices ---- */

static int find_by_uuid(const struct fg *f, const int *cards, int n, const char *prefix, size_t len)
{
	int found = -1;

	for (int i = 0; i < n; i++)
		if (!strncasecmp(f->node.card[cards[i]].uuid, prefix, len)) {
			if (found >= 0)
				return -1; /* ambiguous */
			found = cards[i];
		}
	return found;
}

/* The compute instance that is the process's only device: a program sees one,
 * and no card beside it. The first visible one, or the one that
 * CUDA_VISIBLE_DEVICES names; false when none is visible at all. */
static bool choose_instance(struct fg *f, const int *cards, int n, const char *env, int *out, int *got)
{
	const size_t len = env ? strcspn(env, ", \t") : 0;
	bool any = false;
	char uuid[48];

	*got = 0;
	for (int i = 0; i < n; i++)
		for (int gi = 0; gi < FG_GIS; gi++)
			for (int ci = 0; ci < FG_CIS; ci++) {
				if (!fg_mig_visible(f, cards[i], gi, ci))
					continue;
				any = true;
				fg_mig_uuid(f, cards[i], gi, ci, uuid);
				if (*got || (env && (len <= 4 || strncasecmp(uuid, env, len)) && !(len == 1 && *env == '0')))
					continue;
				out[0] = cards[i];
				f->gi[cards[i]] = gi + 1;
				f->ci[cards[i]] = ci + 1;
				*got = 1;
			}
	return any;
}

/* CUDA_VISIBLE_DEVICES: the list ends at its first entry that names no card;
 * a card named twice makes the whole list invalid. A card in MIG mode is no
 * device itself. */
static int choose_devices(struct fg *f, int *out)
{
	const char *env = getenv("CUDA_VISIBLE_DEVICES");
	int cards[FG_MAX_CARDS], n = 0, got = 0;

	for (int i = 0; i < f->node.cards; i++)
		if (fg_visible(f, i))
			cards[n++] = i;
	if ((!env || strncasecmp(env, "GPU-", 4)) && choose_instance(f, cards, n, env, out, &got))
		return got;
	const int all = n;
	n = 0;
	for (int i = 0; i < all; i++)
		if (!f->st->card[cards[i]].mig.on)
			cards[n++] = cards[i];
	if (!env) {
		memcpy(out, cards, sizeof cards);
		return n;
	}
	while (*env) {
		while (isspace((unsigned char)*env))
			env++;
		size_t len = strcspn(env, ", \t");
		int card = -1;
		if (isdigit((unsigned char)*env)) {
			long index = strtol(env, NULL, 10);
			card = index < n ? cards[index] : -1;
		} else if (len > 4 && !strncasecmp(env, "GPU-", 4)) {
			card = find_by_uuid(f, cards, n, env, len);
		}
		if (card < 0)
			return got;
		for (int i = 0; i < got; i++)
			if (out[i] == card)
				return 0;
		out[got++] = card;
		env += len;
		env += strcspn(env, ",");
		if (*env)
			env++;
		if (got == FG_MAX_CARDS)
			break;
	}
	return got;
}

/* ---- initialisation ---- */

static struct process *page(void)
{
	struct process *p = __atomic_load_n(&fg_p, __ATOMIC_ACQUIRE), *none = NULL;

	if (p)
		return p;
	p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, sizeof *p, MADV_WIPEONFORK);
	if (!__atomic_compare_exchange_n(&fg_p, &none, p, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		munmap(p, sizeof *p);
		p = none;
	}
	return p;
}

static CUresult start(struct process *p)
{
	struct fg_faults faults;
	char why[512];

	if (!fg_open(&p->fg, why, sizeof why)) {
		if (getenv("FAKEGPU_DEBUG"))
			fprintf(stderr, "fakegpu: %s\n", why);
		return CUDA_ERROR_NO_DEVICE;
	}
	fg_faults_read(p->fg.dir, &faults);
	if (faults.unloaded)
		return CUDA_ERROR_NO_DEVICE;
	p->devices = choose_devices(&p->fg, p->card_of);
	if (!p->devices)
		return CUDA_ERROR_NO_DEVICE;
	for (int i = 0; i < p->devices; i++)
		if (faults.lost[p->card_of[i]])
			return CUDA_ERROR_DEVICE_UNAVAILABLE;
	for (int i = 0; i < FG_MAX_CARDS; i++)
		p->ecc_before[i] = faults.ecc_uncorrected[i];
	if (!fg_attach(&p->fg, FG_COMPUTE))
		return CUDA_ERROR_OPERATING_SYSTEM;
	p->next_id = 1;
	__atomic_store_n(&p->up, true, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

CU_API CUresult cuInit(unsigned int flags)
{
	struct process *p = page();
	CUresult r = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cu_lock();
	if (!p->up)
		r = start(p);
	cu_unlock();
	return r;
}

CUresult cu_health(int card)
{
	struct process *p = fg_p;
	struct fg_faults faults;
	const uint64_t now = fg_now();

	if (now - __atomic_load_n(&p->health_looked, __ATOMIC_RELAXED) < 10000000)
		return __atomic_load_n(&p->health[card], __ATOMIC_RELAXED);
	__atomic_store_n(&p->health_looked, now, __ATOMIC_RELAXED);
	fg_faults_read(p->fg.dir, &faults);
	for (int i = 0; i < FG_MAX_CARDS; i++) {
		/* Both stay until the process ends. */
		if (faults.lost[i])
			__atomic_store_n(&p->health[i], CUDA_ERROR_UNKNOWN, __ATOMIC_RELAXED);
		else if (faults.ecc_uncorrected[i] > p->ecc_before[i] && !__atomic_load_n(&p->health[i], __ATOMIC_RELAXED))
			__atomic_store_n(&p->health[i], CUDA_ERROR_ECC_UNCORRECTABLE, __ATOMIC_RELAXED);
	}
	return __atomic_load_n(&p->health[card], __ATOMIC_RELAXED);
}

/* Needs no cuInit: then the node file is asked. */
CUresult cu_driver_version(int *version)
{
	static int cached;
	const char *dir = getenv("FAKEGPU_DIR");
	char why[512], path[300];
	struct fg_node_desc n;

	if (!cached) {
		snprintf(path, sizeof path, "%s/node", dir && *dir ? dir : "/run/fakegpu");
		cached = fg_node_read(path, &n, why, sizeof why) ? n.cuda : FG_CUDA_VERSION;
	}
	*version = cached;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDriverGetVersion(int *version)
{
	return version ? cu_driver_version(version) : CUDA_ERROR_INVALID_VALUE;
}
