/* Instances of a card in MIG mode; see mig.h. */
#include "mig.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024ull * 1024)
#define CONFIG_MINOR 1
#define FIRST_MINOR 3

/* Of NVIDIA's MIG user guide, and of `nvidia-smi mig -lgip` and `-lgipp` on such
 * cards: ids, slices, multiprocessors, engines, memory, places. */
#define ONE_SLICE 7, { 0, 1, 2, 3, 4, 5, 6 }
static const struct fg_mig_profile a100_40[] = {
	{ "1g.5gb", 0, 19, 1, 7, 14, 1, 0, 0, 0, 4864 * MIB, 1, ONE_SLICE },
	{ "1g.5gb+me", 7, 20, 1, 1, 14, 1, 1, 1, 1, 4864 * MIB, 1, ONE_SLICE },
	{ "1g.10gb", 9, 15, 1, 4, 14, 1, 1, 0, 0, 9856 * MIB, 2, 4, { 0, 2, 4, 6 } },
	{ "2g.10gb", 1, 14, 2, 3, 28, 2, 1, 0, 0, 9856 * MIB, 2, 3, { 0, 2, 4 } },
	{ "3g.20gb", 2, 9, 3, 2, 42, 3, 2, 0, 0, 19968 * MIB, 4, 2, { 0, 4 } },
	{ "4g.20gb", 3, 5, 4, 1, 56, 4, 2, 0, 0, 19968 * MIB, 4, 1, { 0 } },
	{ "7g.40gb", 4, 0, 7, 1, 98, 7, 5, 1, 1, 40192 * MIB, 8, 1, { 0 } },
};
static const struct fg_mig_profile a100_80[] = {
	{ "1g.10gb", 0, 19, 1, 7, 14, 1, 0, 0, 0, 9728 * MIB, 1, ONE_SLICE },
	{ "1g.10gb+me", 7, 20, 1, 1, 14, 1, 1, 1, 1, 9728 * MIB, 1, ONE_SLICE },
	{ "1g.20gb", 9, 15, 1, 4, 14, 1, 1, 0, 0, 19968 * MIB, 2, 4, { 0, 2, 4, 6 } },
	{ "2g.20gb", 1, 14, 2, 3, 28, 2, 1, 0, 0, 19968 * MIB, 2, 3, { 0, 2, 4 } },
	{ "3g.40gb", 2, 9, 3, 2, 42, 3, 2, 0, 0, 40192 * MIB, 4, 2, { 0, 4 } },
	{ "4g.40gb", 3, 5, 4, 1, 56, 4, 2, 0, 0, 40192 * MIB, 4, 1, { 0 } },
	{ "7g.80gb", 4, 0, 7, 1, 98, 7, 5, 1, 1, 80384 * MIB, 8, 1, { 0 } },
};
static const struct fg_mig_profile h100_80[] = {
	{ "1g.10gb", 0, 19, 1, 7, 16, 1, 1, 1, 0, 9984 * MIB, 1, ONE_SLICE },
	{ "1g.10gb+me", 7, 20, 1, 1, 16, 1, 1, 1, 1, 9984 * MIB, 1, ONE_SLICE },
	{ "1g.20gb", 9, 15, 1, 4, 26, 1, 1, 1, 0, 20096 * MIB, 2, 4, { 0, 2, 4, 6 } },
	{ "2g.20gb", 1, 14, 2, 3, 32, 2, 2, 2, 0, 20096 * MIB, 2, 3, { 0, 2, 4 } },
	{ "3g.40gb", 2, 9, 3, 2, 60, 3, 3, 3, 0, 40448 * MIB, 4, 2, { 0, 4 } },
	{ "4g.40gb", 3, 5, 4, 1, 64, 4, 4, 4, 0, 40448 * MIB, 4, 1, { 0 } },
	{ "7g.80gb", 4, 0, 7, 1, 132, 8, 7, 7, 1, 80896 * MIB, 8, 1, { 0 } },
};

#define LENGTH(a) ((int)(sizeof(a) / sizeof((a)[0])))

const struct fg_mig_profile *fg_mig_profiles(const struct fg_card_desc *d, int *n)
{
	switch (d->mig) {
	case FG_MIG_A100_40: *n = LENGTH(a100_40); return a100_40;
	case FG_MIG_A100_80: *n = LENGTH(a100_80); return a100_80;
	case FG_MIG_H100_80: *n = LENGTH(h100_80); return h100_80;
	default: *n = 0; return NULL;
	}
}

static struct fg_gi *gi_of(const struct fg *f, int card, int gi)
{
	struct fg_card *c = &f->st->card[card];

	return c->mig.on && gi >= 0 && gi < FG_GIS && c->mig.gi[gi].profile ? &c->mig.gi[gi] : NULL;
}

const struct fg_mig_profile *fg_mig_of(const struct fg *f, int card, int gi)
{
	const struct fg_gi *g = gi_of(f, card, gi);
	int n;
	const struct fg_mig_profile *p = fg_mig_profiles(&f->node.card[card], &n);

	return g && g->profile <= (word)n ? &p[g->profile - 1] : NULL;
}

bool fg_mig_has_ci(const struct fg *f, int card, int gi, int ci)
{
	const struct fg_gi *g = gi_of(f, card, gi);

	return g && ci >= 0 && ci < FG_CIS && g->ci[ci].slices;
}

unsigned fg_mig_sms(const struct fg *f, int card, int gi, int ci)
{
	const struct fg_mig_profile *p = fg_mig_of(f, card, gi);

	return p && fg_mig_has_ci(f, card, gi, ci) ? p->sms / p->slices * (unsigned)f->st->card[card].mig.gi[gi].ci[ci].slices : 0;
}

static uint64_t mix(uint64_t h, const char *text)
{
	while (*text)
		h = (h ^ (unsigned char)*text++) * 0x100000001b3ull;
	h ^= h >> 29;
	return h * 0xbf58476d1ce4e5b9ull;
}

void fg_mig_uuid(const struct fg *f, int card, int gi, int ci, char out[48])
{
	const word serial = f->st->card[card].mig.gi[gi].ci[ci].serial;
	const uint64_t a = mix(0xcbf29ce484222325ull + serial, f->node.card[card].uuid);
	const uint64_t b = mix(a + serial * 0x9e3779b97f4a7c15ull, f->node.card[card].uuid);

	snprintf(out, 48, "MIG-%08x-%04x-%04x-%04x-%012llx", (unsigned)(a >> 32), (unsigned)(a >> 16 & 0xffff), (unsigned)(a & 0xffff),
		 (unsigned)(b >> 48), (unsigned long long)(b & 0xffffffffffffull));
}

void fg_mig_name(const struct fg *f, int card, int gi, int ci, char out[32])
{
	const struct fg_mig_profile *p = fg_mig_of(f, card, gi);
	const unsigned slices = (unsigned)f->st->card[card].mig.gi[gi].ci[ci].slices;

	if (!p)
		out[0] = '\0';
	else if (slices == p->slices)
		snprintf(out, 32, "%s", p->name);
	else
		snprintf(out, 32, "%uc.%s", slices, p->name);
}

int fg_mig_minor(int card_minor, int gi, int ci)
{
	return FIRST_MINOR + card_minor * FG_GIS * (1 + FG_CIS) + gi * (1 + FG_CIS) + 1 + ci;
}

static bool has_cap(const struct fg *f, int minor)
{
	char path[320];

	snprintf(path, sizeof path, "%s/nvidia-caps/nvidia-cap%d", f->dev, minor);
	return access(path, F_OK) == 0;
}

bool fg_mig_visible(const struct fg *f, int card, int gi, int ci)
{
	const int minor = f->node.card[card].minor;

	return fg_mig_has_ci(f, card, gi, ci) && has_cap(f, fg_mig_minor(minor, gi, -1)) && has_cap(f, fg_mig_minor(minor, gi, ci));
}

bool fg_mig_config(const struct fg *f)
{
	return has_cap(f, CONFIG_MINOR);
}

/* ---- what is there ---- */

uint64_t fg_mig_used(const struct fg_card *c, int gi)
{
	uint64_t sum = 0;

	for (int w = 0; w < FG_SLOT_WORDS; w++)
		for (word left = c->present[w]; left; left &= left - 1) {
			const struct fg_slotcard *s = &c->s[w * 64 + __builtin_ctzll(left)];
			if (s->gi == (word)gi + 1)
				sum += s->mem;
		}
	return sum;
}

int fg_mig_processes(const struct fg_card *c, int gi, int ci)
{
	int n = 0;

	for (int w = 0; w < FG_SLOT_WORDS; w++)
		for (word left = c->present[w]; left; left &= left - 1) {
			const struct fg_slotcard *s = &c->s[w * 64 + __builtin_ctzll(left)];
			n += s->gi == (word)gi + 1 && s->contexts && (ci < 0 || s->ci == (word)ci + 1);
		}
	return n;
}

/* ---- changes ---- */

enum fg_mig_result fg_mig_switch(struct fg *f, int card, bool on)
{
	struct fg_card *c = &f->st->card[card];
	enum fg_mig_result r = FG_MIG_OK;
	int n;

	if (!fg_mig_profiles(&f->node.card[card], &n))
		return FG_MIG_UNSUPPORTED;
	fg_lock(f, c);
	fg_reap(f, c);
	for (int slot = 0; slot < FG_SLOTS; slot++)
		if (fg_bit(c->present, slot) && c->s[slot].contexts)
			r = FG_MIG_IN_USE;
	for (int gi = 0; gi < FG_GIS; gi++)
		if (c->mig.on && c->mig.gi[gi].profile)
			r = FG_MIG_IN_USE;
	if (!r)
		fg_set(c, &c->mig.on, on);
	fg_unlock(f, c);
	return r;
}

static bool place_free(const struct fg *f, int card, unsigned start, unsigned size)
{
	for (int gi = 0; gi < FG_GIS; gi++) {
		const struct fg_mig_profile *p = fg_mig_of(f, card, gi);
		const unsigned at = (unsigned)f->st->card[card].mig.gi[gi].start;
		if (p && start < at + p->size && at < start + size)
			return false;
	}
	return true;
}

/* Whether one more fits by what all instances share: compute slices and the
 * media engines, of which the largest profile has all. */
static bool engines_free(const struct fg *f, int card, const struct fg_mig_profile *want)
{
	unsigned slices = want->slices, same = 1, ofa = want->ofa;

	for (int gi = 0; gi < FG_GIS; gi++) {
		const struct fg_mig_profile *p = fg_mig_of(f, card, gi);
		if (!p)
			continue;
		slices += p->slices;
		ofa += p->ofa;
		same += p == want;
	}
	return slices <= 7 && ofa <= 1 && same <= want->count;
}

enum fg_mig_result fg_mig_make_gi(struct fg *f, int card, const struct fg_mig_profile *p, int start, int *gi)
{
	struct fg_card *c = &f->st->card[card];
	enum fg_mig_result r = FG_MIG_NO_ROOM;
	int n, at = -1, id = 1;
	const struct fg_mig_profile *all = fg_mig_profiles(&f->node.card[card], &n);

	fg_lock(f, c);
	for (int i = 0; i < p->starts && at < 0; i++)
		if ((start < 0 || p->start[i] == (unsigned)start) && place_free(f, card, p->start[i], p->size))
			at = (int)p->start[i];
	while (id < FG_GIS && c->mig.gi[id].profile)
		id++;
	if (!c->mig.on) {
		r = FG_MIG_UNSUPPORTED;
	} else if (at >= 0 && id < FG_GIS && engines_free(f, card, p)) {
		struct fg_gi *g = &c->mig.gi[id];
		fg_set(c, &g->start, (word)at);
		for (int ci = 0; ci < FG_CIS; ci++)
			fg_set(c, &g->ci[ci].slices, 0);
		fg_set(c, &g->profile, (word)(p - all) + 1);
		*gi = id;
		r = FG_MIG_OK;
	}
	fg_unlock(f, c);
	return r;
}

enum fg_mig_result fg_mig_free_gi(struct fg *f, int card, int gi)
{
	struct fg_card *c = &f->st->card[card];
	enum fg_mig_result r = FG_MIG_OK;

	fg_lock(f, c);
	struct fg_gi *g = gi_of(f, card, gi);
	if (!g)
		r = FG_MIG_NOT_FOUND;
	for (int ci = 0; g && ci < FG_CIS; ci++)
		if (g->ci[ci].slices)
			r = FG_MIG_IN_USE;
	if (!r)
		fg_set(c, &g->profile, 0);
	fg_unlock(f, c);
	return r;
}

enum fg_mig_result fg_mig_make_ci(struct fg *f, int card, int gi, unsigned slices, int *ci)
{
	struct fg_card *c = &f->st->card[card];
	enum fg_mig_result r = FG_MIG_NO_ROOM;
	unsigned taken = 0;
	int at = -1;

	fg_lock(f, c);
	const struct fg_mig_profile *p = fg_mig_of(f, card, gi);
	struct fg_gi *g = &c->mig.gi[gi];
	for (int i = FG_CIS - 1; p && i >= 0; i--) {
		taken += (unsigned)g->ci[i].slices;
		if (!g->ci[i].slices)
			at = i;
	}
	if (!p) {
		r = FG_MIG_NOT_FOUND;
	} else if (at >= 0 && slices && taken + slices <= p->slices) {
		fg_set(c, &c->mig.serial, c->mig.serial + 1);
		fg_set(c, &g->ci[at].serial, c->mig.serial);
		fg_set(c, &g->ci[at].slices, slices);
		*ci = at;
		r = FG_MIG_OK;
	}
	fg_unlock(f, c);
	return r;
}

enum fg_mig_result fg_mig_free_ci(struct fg *f, int card, int gi, int ci)
{
	struct fg_card *c = &f->st->card[card];
	enum fg_mig_result r = FG_MIG_OK;

	fg_lock(f, c);
	fg_reap(f, c);
	if (!fg_mig_has_ci(f, card, gi, ci))
		r = FG_MIG_NOT_FOUND;
	else if (fg_mig_processes(c, gi, ci))
		r = FG_MIG_IN_USE;
	else
		fg_set(c, &c->mig.gi[gi].ci[ci].slices, 0);
	fg_unlock(f, c);
	return r;
}
