/* fakegpuctl: looks at a simulated node from outside.
 *
 *   fakegpuctl init DIR     makes the state of the node whose file is DIR/node,
 *                           all cards empty
 *   fakegpuctl usage        what each card and each process has, as JSON
 *   fakegpuctl log [SINCE]  what ran on which card, one JSON object a line;
 *                           SINCE in nanoseconds of CLOCK_MONOTONIC
 *
 * usage and log find the node as the libraries do (FAKEGPU_DIR).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

int main(int argc, char **argv)
{
	static struct fg f;
	char why[512];

	if (argc == 3 && !strcmp(argv[1], "init"))
		return init(argv[2]);
	if (argc < 2 || (strcmp(argv[1], "usage") && strcmp(argv[1], "log")))
		return fail("usage: fakegpuctl init DIR | usage | log [SINCE]");
	if (!fg_open(&f, why, sizeof why))
		return fail(why);
	if (!fg_attach(&f, FG_OBSERVER))
		return fail("all process slots of the node are taken");
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
