/* Shared state, liveness and the undo log; see shm.h for the design. */
#include "shm.h"
#include "mig.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define ATTACH_BYTE 0
#define SLOT_BYTE(slot) (1 + (slot))

/* Orders stores as another process sees them if we die right here. The test
 * of crashes dies at every one of them in turn. */
#ifndef step
#define step() __atomic_thread_fence(__ATOMIC_RELEASE)
#endif
#define load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)

uint64_t fg_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int byte_lock(int fd, int cmd, int type, int byte, pid_t *holder)
{
	struct flock l = { .l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
	int r;

	do
		r = fcntl(fd, cmd, &l);
	while (r < 0 && errno == EINTR);
	if (holder)
		*holder = l.l_type == F_UNLCK ? -1 : l.l_pid;
	return r;
}

static const char *dir_of(const char *env, const char *otherwise)
{
	const char *d = getenv(env);

	return d && *d ? d : otherwise;
}

bool fg_open(struct fg *f, char *err, int errlen)
{
	char path[300];
	struct stat st;
	int fd;

	memset(f, 0, sizeof *f);
	f->slot = -1;
	snprintf(f->dir, sizeof f->dir, "%s", dir_of("FAKEGPU_DIR", "/run/fakegpu"));
	snprintf(f->dev, sizeof f->dev, "%s", dir_of("FAKEGPU_DEV", "/dev"));
	snprintf(path, sizeof path, "%s/node", f->dir);
	if (!fg_node_read(path, &f->node, err, errlen))
		return false;

	snprintf(path, sizeof path, "%s/lock", f->dir);
	f->fd = open(path, O_RDWR | O_CLOEXEC);
	if (f->fd < 0 || fstat(f->fd, &st)) {
		snprintf(err, (size_t)errlen, "cannot open %s: %s", path, strerror(errno));
		return false;
	}
	/* From here on no descriptor of this file may be closed, not even another
	 * one: that would drop the locks of every copy of us in this process. */
	f->fd_dev = st.st_dev;
	f->fd_ino = st.st_ino;

	snprintf(path, sizeof path, "%s/state", f->dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) || (size_t)st.st_size < sizeof(struct fg_state)) {
		snprintf(err, (size_t)errlen, "no state of %zu bytes at %s", sizeof(struct fg_state), path);
		return false;
	}
	f->st = mmap(NULL, sizeof(struct fg_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (f->st == MAP_FAILED) {
		snprintf(err, (size_t)errlen, "cannot map %s: %s", path, strerror(errno));
		return false;
	}
	return true;
}

bool fg_visible(const struct fg *f, int card)
{
	char path[300];

	snprintf(path, sizeof path, "%s/nvidiactl", f->dev);
	if (access(path, F_OK))
		return false;
	snprintf(path, sizeof path, "%s/nvidia%d", f->dev, f->node.card[card].minor);
	return access(path, F_OK) == 0;
}

/* Playing the undo log back may itself be cut short and started again. */
static void play_back(struct fg_card *c)
{
	while (c->undo_n) {
		word n = c->undo_n - 1;
		*(word *)(void *)((char *)c + c->undo[n].off) = c->undo[n].old;
		step();
		c->undo_n = n;
		step();
	}
}

static word lock_word(const struct fg *f)
{
	return f->client << 16 | (word)(f->slot + 1);
}

static bool swap(word *w, word from, word to)
{
	return __atomic_compare_exchange_n(w, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* The owner named by a lock word is gone: its slot is free, or another
 * process has it (which then has cleaned up, or is about to). */
static bool owner_dead(struct fg *f, word owner)
{
	int slot = (int)(owner & 0xffff) - 1;

	if (slot == f->slot)
		return owner >> 16 != f->client;
	return load(&f->st->client_of[slot]) != owner >> 16 || fg_slot_pid(f, slot) < 0;
}

void fg_lock(struct fg *f, struct fg_card *c)
{
	const struct timespec patience = { 0, 2000000 };
	word mine = lock_word(f), owner;

	for (int spins = 0;; spins++) {
		owner = load(&c->lock);
		if (!owner) {
			if (swap(&c->lock, 0, mine))
				return;
			continue;
		}
		if (spins < 200) {
			__builtin_ia32_pause();
			continue;
		}
		__atomic_add_fetch(&c->waiters, 1, __ATOMIC_SEQ_CST);
		long r = syscall(SYS_futex, &c->lock, FUTEX_WAIT, (uint32_t)owner, &patience, NULL, 0);
		bool late = r < 0 && errno == ETIMEDOUT;
		__atomic_sub_fetch(&c->waiters, 1, __ATOMIC_SEQ_CST);
		if (late && load(&c->lock) == owner && owner_dead(f, owner) && swap(&c->lock, owner, mine)) {
			play_back(c);
			return;
		}
	}
}

void fg_unlock(struct fg *f, struct fg_card *c)
{
	(void)f;
	fg_commit(c);
	__atomic_store_n(&c->lock, 0, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&c->waiters, __ATOMIC_SEQ_CST))
		syscall(SYS_futex, &c->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void fg_commit(struct fg_card *c)
{
	step();
	c->undo_n = 0;
	step();
}

void fg_set(struct fg_card *c, word *w, word value)
{
	word n = c->undo_n;

	if (n >= FG_UNDO)
		abort(); /* a step that changes more than the log holds is a mistake here */
	c->undo[n].off = (word)((char *)w - (char *)c);
	c->undo[n].old = *w;
	step();
	c->undo_n = n + 1;
	step();
	*w = value;
	step();
}

pid_t fg_slot_pid(struct fg *f, int slot)
{
	pid_t holder = -1;
	struct stat st;

	/* The program may have closed our descriptor and opened another file
	 * under its number; then every answer would be wrong. */
	if (fstat(f->fd, &st) || st.st_dev != f->fd_dev || st.st_ino != f->fd_ino)
		return slot == f->slot ? -1 : 0;
	/* The OFD form also sees locks that this very process holds. */
	byte_lock(f->fd, F_OFD_GETLK, F_WRLCK, SLOT_BYTE(slot), &holder);
	return holder;
}

void fg_erase(struct fg_card *c, int slot)
{
	struct fg_slotcard *s = &c->s[slot];
	const word bit = (word)1 << (slot % 64);

	fg_set(c, &c->mem, c->mem - s->mem);
	fg_set(c, &s->mem, 0);
	fg_set(c, &s->gi, 0);
	fg_set(c, &s->ci, 0);
	fg_set(c, &s->contexts, 0);
	fg_set(c, &s->head, 0);
	fg_set(c, &s->tail, 0);
	fg_set(c, &s->spent, 0);
	fg_set(c, &s->busy, 0);
	fg_set(c, &s->kernels, 0);
	for (int i = 0; i < FG_BUCKETS; i++)
		fg_set(c, &s->bucket[i].busy, 0);
	fg_set(c, &s->client, 0);
	fg_set(c, &c->active[slot / 64], c->active[slot / 64] & ~bit);
	fg_set(c, &c->present[slot / 64], c->present[slot / 64] & ~bit);
	if (c->turn == (word)slot + 1) {
		fg_set(c, &c->turn, 0);
		fg_set(c, &c->slice_left, 0);
	}
	fg_commit(c);
}

void fg_reap(struct fg *f, struct fg_card *c)
{
	for (int w = 0; w < FG_SLOT_WORDS; w++) {
		for (word left = c->present[w]; left; left &= left - 1) {
			int slot = w * 64 + __builtin_ctzll(left);
			if (slot == f->slot)
				continue;
			if (c->s[slot].client != load(&f->st->client_of[slot]) || fg_slot_pid(f, slot) < 0)
				fg_erase(c, slot);
		}
	}
}

static void introduce(struct fg *f, enum fg_kind kind)
{
	struct fg_client *k = &f->st->client[f->client % FG_CLIENTS];
	struct utsname u;

	__atomic_store_n(&k->id, 0, __ATOMIC_RELEASE);
	k->pid = (word)getpid();
	k->kind = kind;
	k->since = fg_now();
	memset(k->host, 0, sizeof k->host);
	if (!uname(&u))
		snprintf(k->host, sizeof k->host, "%.63s", u.nodename);
	memset(k->comm, 0, sizeof k->comm);
	prctl(PR_GET_NAME, k->comm, 0, 0, 0);
	__atomic_store_n(&k->id, f->client, __ATOMIC_RELEASE);
}

/* We hold the slot's byte, so its former owner is dead and nobody else may
 * have the slot: clean up as the owner would have. */
static void inherit(struct fg *f)
{
	for (int i = 0; i < f->node.cards; i++) {
		struct fg_card *c = &f->st->card[i];
		word owner = load(&c->lock);
		if ((owner & 0xffff) == (word)f->slot + 1 && owner >> 16 != f->client &&
		    swap(&c->lock, owner, lock_word(f)))
			play_back(c);
		else
			fg_lock(f, c);
		if (fg_bit(c->present, f->slot))
			fg_erase(c, f->slot);
		fg_unlock(f, c);
	}
}

bool fg_attach(struct fg *f, enum fg_kind kind)
{
	pid_t holder;

	/* An OFD lock: it also keeps apart two copies of the library in one
	 * process, whose POSIX locks would not exclude each other. */
	if (byte_lock(f->fd, F_OFD_SETLKW, F_WRLCK, ATTACH_BYTE, NULL))
		return false;
	for (int slot = 0; slot < FG_SLOTS; slot++) {
		byte_lock(f->fd, F_OFD_GETLK, F_WRLCK, SLOT_BYTE(slot), &holder);
		if (holder != -1 || byte_lock(f->fd, F_SETLK, F_WRLCK, SLOT_BYTE(slot), NULL))
			continue;
		f->client = ++f->st->next_client;
		f->slot = slot;
		introduce(f, kind);
		__atomic_store_n(&f->st->client_of[slot], f->client, __ATOMIC_RELEASE);
		break;
	}
	byte_lock(f->fd, F_OFD_SETLK, F_UNLCK, ATTACH_BYTE, NULL);
	if (f->slot < 0)
		return false;
	inherit(f);
	return true;
}

struct fg_slotcard *fg_mine(struct fg *f, struct fg_card *c)
{
	struct fg_slotcard *s = &c->s[f->slot];

	if (s->client != f->client) {
		const int card = (int)(c - f->st->card);
		fg_set(c, &s->gi, (word)f->gi[card]);
		fg_set(c, &s->ci, (word)f->ci[card]);
		fg_set(c, &s->client, f->client);
		fg_set(c, &c->present[f->slot / 64], c->present[f->slot / 64] | (word)1 << (f->slot % 64));
	}
	return s;
}

uint64_t fg_room(const struct fg *f, int card)
{
	const struct fg_mig_profile *p = f->gi[card] ? fg_mig_of(f, card, f->gi[card] - 1) : NULL;

	return p ? p->memory : fg_usable(&f->node.card[card]);
}

static uint64_t taken(const struct fg *f, int card)
{
	const struct fg_card *c = &f->st->card[card];

	return f->gi[card] ? fg_mig_used(c, f->gi[card] - 1) : c->mem;
}

bool fg_mem_take(struct fg *f, int card, uint64_t bytes)
{
	struct fg_card *c = &f->st->card[card];
	bool ok = true;

	fg_lock(f, c);
	const uint64_t room = fg_room(f, card);
	if (bytes > room || taken(f, card) > room - bytes) {
		fg_reap(f, c);
		ok = bytes <= room && taken(f, card) <= room - bytes;
	}
	struct fg_slotcard *s = fg_mine(f, c);
	if (f->limit[card] && (bytes > f->limit[card] || s->mem > f->limit[card] - bytes))
		ok = false;
	if (ok) {
		fg_set(c, &c->mem, c->mem + bytes);
		fg_set(c, &s->mem, s->mem + bytes);
	}
	fg_unlock(f, c);
	return ok;
}

void fg_mem_give(struct fg *f, int card, uint64_t bytes)
{
	struct fg_card *c = &f->st->card[card];

	fg_lock(f, c);
	struct fg_slotcard *s = fg_mine(f, c);
	if (s->mem < bytes)
		bytes = s->mem; /* descriptors were closed and we were reaped */
	fg_set(c, &c->mem, c->mem - bytes);
	fg_set(c, &s->mem, s->mem - bytes);
	fg_unlock(f, c);
}

uint64_t fg_mem_used(struct fg *f, int card)
{
	struct fg_card *c = &f->st->card[card];
	uint64_t used;

	fg_lock(f, c);
	fg_reap(f, c);
	used = taken(f, card);
	fg_unlock(f, c);
	return used;
}

void fg_contexts_add(struct fg *f, int card, int n)
{
	struct fg_card *c = &f->st->card[card];

	fg_lock(f, c);
	struct fg_slotcard *s = fg_mine(f, c);
	if (n > 0 || s->contexts)
		fg_set(c, &s->contexts, s->contexts + (word)n);
	fg_unlock(f, c);
}
