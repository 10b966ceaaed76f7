/* fakegpuctl: looks at a simulated node from outside.
 *
 *   fakegpuctl init DIR     makes the state of the node whose file is DIR/node,
 *                           all cards empty
 *   fakegpuctl usage        what each card and each process has, as JSON
 *   fakegpuctl log [SINCE]  what ran on which card, one JSON object a line;
 *                           SINCE in nanoseconds of CLOCK_MONOTONIC
 *   fakegpuctl mig CARD     the card's instances, as JSON
 *   fakegpuctl mig CARD on | off | make PROFILE [START] | destroy INSTANCE
 *                           what an administrator does with nvidia-smi: make
 *                           makes a GPU instance and a compute instance that
 *                           is all of it, destroy ends both
 *
 * usage, log and mig find the node as the libraries do (FAKEGPU_DIR).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mig.h"
#include "sim.h"

static int fail(const char *why)
{
	fprintf(stderr, "fakegpuctl: %s\n", why);
	return 1;
}

static int make_file(const char *dir, const char *name, off_t size)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	unlink(path);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	/* Containers run as anybody; the umask must not matter. */
	if (fd < 0 || fchmod(fd, 0666) || ftruncate(fd, size)) {
		fprintf(stderr, "fakegpuctl: cannot make %s: %s\n", path, strerror(errno));
		return 1;
	}
	close(fd);
	return 0;
}

static int init(const char *dir)
{
	char path[4096], why[512];
	struct fg_node_desc n;

	snprintf(path, sizeof path, "%s/node", dir);
	if (!fg_node_read(path, &n, why, sizeof why))
		return fail(why);
	return make_file(dir, "lock", 0) || make_file(dir, "state", sizeof(struct fg_state)) || make_file(dir, "faults", 0);
}

static const struct fg_client *client(const struct fg *f, word id)
{
	const struct fg_client *k = &f->st->client[id % FG_CLIENTS];

	return k->id == id ? k : NULL;
}

static void usage_of(struct fg *f, int card)
{
	struct fg_card *c = &f->st->card[card];
	const char *comma = "";

	fg_lock(f, c);
	fg_advance(f, card, fg_now());
	fg_reap(f, c);
	printf("{\"card\":%d,\"uuid\":\"%s\",\"usable\":%llu,\"used\":%llu,\"busyNs\":%llu,\"nowNs\":%llu,\"processes\":[", card,
	       f->node.card[card].uuid, (unsigned long long)fg_usable(&f->node.card[card]), (unsigned long long)c->mem,
	       (unsigned long long)c->busy, (unsigned long long)c->now);
	for (int slot = 0; slot < FG_SLOTS; slot++) {
		if (!fg_bit(c->present, slot))
			continue;
		const struct fg_slotcard *s = &c->s[slot];
		const struct fg_client *k = client(f, s->client);
		printf("%s{\"client\":%llu,\"pid\":%d,\"ownPid\":%llu,\"host\":\"%s\",\"comm\":\"%s\",\"used\":%llu,\"contexts\":%llu,"
		       "\"busyNs\":%llu,\"kernels\":%llu,\"queued\":%llu}", comma, (unsigned long long)s->client,
		       (int)fg_slot_pid(f, slot), (unsigned long long)(k ? k->pid : 0), k ? k->host : "", k ? k->comm : "",
		       (unsigned long long)s->mem, (unsigned long long)s->contexts, (unsigned long long)s->busy,
		       (unsigned long long)s->kernels, (unsigned long long)(s->tail - s->head));
		comma = ",";
	}
	printf("]}");
	fg_unlock(f, c);
}

static void log_of(struct fg *f, int card, uint64_t since)
{
	struct fg_card *c = &f->st->card[card];

	fg_lock(f, c);
	fg_advance(f, card, fg_now());
	const uint64_t end = c->logged;
	fg_unlock(f, c);
	/* Written entries stay; the newest may still grow. */
	for (uint64_t i = end > FG_LOG ? end - FG_LOG : 0; i < end; i++) {
		const struct fg_log *l = &c->log[i % FG_LOG];
		const struct fg_client *k = client(f, l->client);
		if (l->end < since)
			continue;
		printf("{\"card\":%d,\"startNs\":%llu,\"endNs\":%llu,\"client\":%llu,\"ownPid\":%llu,\"host\":\"%s\",\"kernels\":%llu}\n",
		       card, (unsigned long long)l->start, (unsigned long long)l->end, (unsigned long long)l->client,
		       (unsigned long long)(k ? k->pid : 0), k ? k->host : "", (unsigned long long)l->kernels);
	}
}

static void mig_show(struct fg *f, int card)
{
	const char *comma = "";
	char uuid[48], name[32];

	printf("{\"on\":%s,\"instances\":[", f->st->card[card].mig.on ? "true" : "false");
	for (int gi = 0; gi < FG_GIS; gi++) {
		const struct fg_mig_profile *p = fg_mig_of(f, card, gi);
		if (!p)
			continue;
		printf("%s{\"id\":%d,\"profile\":\"%s\",\"start\":%llu,\"size\":%u,\"compute\":[", comma, gi, p->name,
		       (unsigned long long)f->st->card[card].mig.gi[gi].start, p->size);
		const char *and = "";
		for (int ci = 0; ci < FG_CIS; ci++)
			if (fg_mig_has_ci(f, card, gi, ci)) {
				fg_mig_uuid(f, card, gi, ci, uuid);
				fg_mig_name(f, card, gi, ci, name);
				printf("%s{\"id\":%d,\"profile\":\"%s\",\"uuid\":\"%s\"}", and, ci, name, uuid);
				and = ",";
			}
		printf("]}");
		comma = ",";
	}
	printf("]}\n");
}

static enum fg_mig_result mig_make(struct fg *f, int card, const char *profile, int start)
{
	int n, gi, ci;
	const struct fg_mig_profile *p = fg_mig_profiles(&f->node.card[card], &n);

	for (int i = 0; i < n; i++)
		if (!strcmp(p[i].name, profile)) {
			enum fg_mig_result r = fg_mig_make_gi(f, card, &p[i], start, &gi);
			return r ? r : fg_mig_make_ci(f, card, gi, p[i].slices, &ci);
		}
	return FG_MIG_NOT_FOUND;
}

static enum fg_mig_result mig_destroy(struct fg *f, int card, int gi)
{
	enum fg_mig_result r = FG_MIG_OK;

	for (int ci = 0; !r && ci < FG_CIS; ci++)
		if (fg_mig_has_ci(f, card, gi, ci))
			r = fg_mig_free_ci(f, card, gi, ci);
	return r ? r : fg_mig_free_gi(f, card, gi);
}

static int mig(struct fg *f, int argc, char **argv)
{
	static const char *const why[] = {
		[FG_MIG_UNSUPPORTED] = "the card has no MIG, or the mode is off", [FG_MIG_IN_USE] = "in use",
		[FG_MIG_NO_ROOM] = "no room for it", [FG_MIG_NOT_FOUND] = "no such profile or instance",
	};
	const int card = argc ? atoi(argv[0]) : -1;
	const char *verb = argc > 1 ? argv[1] : "show";
	enum fg_mig_result r = FG_MIG_OK;

	if (card < 0 || card >= f->node.cards)
		return fail("mig: which card?");
	if (!strcmp(verb, "on") || !strcmp(verb, "off"))
		r = fg_mig_switch(f, card, !strcmp(verb, "on"));
	else if (!strcmp(verb, "make") && argc > 2)
		r = mig_make(f, card, argv[2], argc > 3 ? atoi(argv[3]) : -1);
	else if (!strcmp(verb, "destroy") && argc > 2)
		r = mig_destroy(f, card, atoi(argv[2]));
	else if (strcmp(verb, "show"))
		return fail("usage: fakegpuctl mig CARD [on | off | make PROFILE [START] | destroy INSTANCE]");
	if (r) {
		fprintf(stderr, "fakegpuctl: mig %s: %s\n", verb, why[r]);
		return 1;
	}
	mig_show(f, card);
	return 0;
}

int main(int argc, char **argv)
{
	static struct fg f;
	char why[512];

	if (argc == 3 && !strcmp(argv[1], "init"))
		return init(argv[2]);
	if (argc < 2 || (strcmp(argv[1], "usage") && strcmp(argv[1], "log") && strcmp(argv[1], "mig")))
		return fail("usage: fakegpuctl init DIR | usage | log [SINCE] | mig CARD ...");
	if (!fg_open(&f, why, sizeof why))
		return fail(why);
	if (!fg_attach(&f, FG_OBSERVER))
		return fail("all process slots of the node are taken");
	if (!strcmp(argv[1], "mig"))
		return mig(&f, argc - 2, argv + 2);
	const bool usage = !strcmp(argv[1], "usage");
	if (usage)
		printf("[");
	for (int i = 0; i < f.node.cards; i++) {
		if (usage) {
			printf("%s", i ? "," : "");
			usage_of(&f, i);
		} else {
			log_of(&f, i, argc > 2 ? strtoull(argv[2], NULL, 10) : 0);
		}
	}
	printf("%s", usage ? "]\n" : "");
	return 0;
}
