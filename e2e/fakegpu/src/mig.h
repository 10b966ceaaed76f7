/* A card in MIG mode: GPU instances and the compute instances within them.
 *
 * A GPU instance takes a range of the card's eight memory slices; its profile
 * tells how many, where they may begin and what comes with them. A compute
 * instance takes multiprocessors of its GPU instance and shares the memory.
 * Both are part of the card's shared state and change under the card's lock,
 * so that a process killed half way leaves none that is half made.
 *
 * A process sees a compute instance if it sees the capability files of both
 * instances, /dev/nvidia-caps/nvidia-cap<minor>; whoever sees the capability
 * "config" may make and destroy instances. A process works on one compute
 * instance at most. What is not cut is the card's time: instances take turns
 * as processes do.
 */
#ifndef FAKEGPU_MIG_H
#define FAKEGPU_MIG_H

#include "shm.h"

/* What a card's "mig" key says. */
enum fg_mig_family { FG_MIG_NONE, FG_MIG_NO_PROFILES, FG_MIG_A100_40, FG_MIG_A100_80, FG_MIG_H100_80 };

struct fg_mig_profile {
	const char *name;       /* "3g.40gb" */
	int number;             /* NVML_GPU_INSTANCE_PROFILE_* */
	unsigned id;            /* the card's own id of it */
	unsigned slices;        /* compute slices, of seven */
	unsigned count;         /* instances of it that fit on an empty card */
	unsigned sms, copy, decoders, jpeg, ofa;
	uint64_t memory;        /* bytes */
	unsigned size;          /* memory slices, of eight */
	int starts;
	unsigned start[7];      /* where they may begin */
};

enum fg_mig_result { FG_MIG_OK, FG_MIG_UNSUPPORTED, FG_MIG_IN_USE, FG_MIG_NO_ROOM, FG_MIG_NOT_FOUND };

/* The card's profiles; none for a card without MIG. */
const struct fg_mig_profile *fg_mig_profiles(const struct fg_card_desc *d, int *n);
/* The one that an instance was made of; NULL when there is no such instance. */
const struct fg_mig_profile *fg_mig_of(const struct fg *f, int card, int gi);
bool fg_mig_has_ci(const struct fg *f, int card, int gi, int ci);
/* Multiprocessors of a compute instance. */
unsigned fg_mig_sms(const struct fg *f, int card, int gi, int ci);
/* "MIG-8-4-4-4-12", another one for each compute instance that is ever made. */
void fg_mig_uuid(const struct fg *f, int card, int gi, int ci, char out[48]);
/* "3g.40gb", or "1c.3g.40gb" for a compute instance that is not all of it. */
void fg_mig_name(const struct fg *f, int card, int gi, int ci, char out[32]);
/* The minor number of the capability of a GPU instance (ci < 0) or of one of
 * its compute instances. */
int fg_mig_minor(int card_minor, int gi, int ci);
bool fg_mig_visible(const struct fg *f, int card, int gi, int ci);
/* Whether this process may make and destroy instances. */
bool fg_mig_config(const struct fg *f);

/* Bytes taken on an instance, and how many processes are there (of one compute
 * instance unless ci < 0). Under the card's lock. */
uint64_t fg_mig_used(const struct fg_card *c, int gi);
int fg_mig_processes(const struct fg_card *c, int gi, int ci);

/* Changes; the process must be attached. */
enum fg_mig_result fg_mig_switch(struct fg *f, int card, bool on);
/* start < 0: the first place that is free. */
enum fg_mig_result fg_mig_make_gi(struct fg *f, int card, const struct fg_mig_profile *p, int start, int *gi);
enum fg_mig_result fg_mig_free_gi(struct fg *f, int card, int gi);
enum fg_mig_result fg_mig_make_ci(struct fg *f, int card, int gi, unsigned slices, int *ci);
enum fg_mig_result fg_mig_free_ci(struct fg *f, int card, int gi, int ci);

#endif
