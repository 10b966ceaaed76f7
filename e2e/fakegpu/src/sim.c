/* Simulated time of a card; see sim.h. */
#include "sim.h"

#include <time.h>

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Asks the kernel at most once a millisecond and slot: a kernel launched by a
 * process that was just killed may run that much longer, as on hardware. */
static bool alive(struct fg *f, struct fg_card *c, int slot)
{
	if (slot == f->slot)
		return true;
	uint64_t now = fg_now();
	if (now < f->alive_until[slot])
		return true;
	if (c->s[slot].client != f->st->client_of[slot] || fg_slot_pid(f, slot) < 0)
		return false;
	f->alive_until[slot] = now + 1000000;
	return true;
}

static struct fg_work *head_of(struct fg_slotcard *s)
{
	return &s->work[s->head % FG_QUEUE];
}

static int oldest(struct fg_card *c)
{
	int best = -1;

	for (int w = 0; w < FG_SLOT_WORDS; w++)
		for (word left = c->active[w]; left; left &= left - 1) {
			int slot = w * 64 + __builtin_ctzll(left);
			if (best < 0 || head_of(&c->s[slot])->ticket < head_of(&c->s[best])->ticket)
				best = slot;
		}
	return best;
}

/* The next slot with work after this one, itself last. */
static int next_after(const struct fg_card *c, int slot)
{
	for (int i = 1; i <= FG_SLOTS; i++) {
		int at = (slot + i) % FG_SLOTS;
		if (c->active[at / 64] == 0) {
			i += 63 - at % 64;
			continue;
		}
		if (fg_bit(c->active, at))
			return at;
	}
	return -1;
}

/* Whose work runs now; -1 when the card is idle. */
static int choose(struct fg *f, struct fg_card *c)
{
	for (;;) {
		int slot = (int)c->turn - 1;
		bool running = slot >= 0 && fg_bit(c->active, slot);

		if (f->node.arbitration == FG_FIFO)
			running = running && c->s[slot].spent > 0;
		else
			running = running && c->slice_left > 0;
		if (!running) {
			slot = f->node.arbitration == FG_FIFO ? oldest(c) : next_after(c, slot < 0 ? FG_SLOTS - 1 : slot);
			if (slot < 0)
				return -1;
		}
		if (!alive(f, c, slot)) {
			fg_erase(c, slot);
			continue;
		}
		if (!running) {
			fg_set(c, &c->turn, (word)slot + 1);
			fg_set(c, &c->slice_left, f->node.slice_ns);
		}
		return slot;
	}
}

static void add_busy(struct fg_card *c, struct fg_bucket *buckets, uint64_t period, uint64_t ns)
{
	struct fg_bucket *b = &buckets[period % FG_BUCKETS];

	if (b->period != period) {
		fg_set(c, &b->period, period);
		fg_set(c, &b->busy, 0);
	}
	fg_set(c, &b->busy, b->busy + ns);
}

/* Back-to-back work of one process is one entry. */
static void log_run(struct fg_card *c, int slot, uint64_t start, uint64_t end, unsigned finished)
{
	struct fg_log *last = &c->log[(c->logged - 1) % FG_LOG];

	if (c->logged && last->client == c->s[slot].client && last->end == start) {
		fg_set(c, &last->end, end);
		fg_set(c, &last->kernels, last->kernels + finished);
		return;
	}
	struct fg_log *l = &c->log[c->logged % FG_LOG];
	fg_set(c, &l->start, start);
	fg_set(c, &l->end, end);
	fg_set(c, &l->client, c->s[slot].client);
	fg_set(c, &l->slot, (word)slot);
	fg_set(c, &l->kernels, finished);
	fg_set(c, &c->logged, c->logged + 1);
}

static void finish(struct fg_card *c, int slot)
{
	struct fg_slotcard *s = &c->s[slot];
	struct fg_work *w = head_of(s);

	if (w->event)
		fg_set(c, &s->event[w->event - 1], c->now);
	if (w->ns)
		fg_set(c, &s->kernels, s->kernels + 1);
	fg_set(c, &s->spent, 0);
	fg_set(c, &s->head, s->head + 1);
	if (s->head == s->tail)
		fg_set(c, &c->active[slot / 64], c->active[slot / 64] & ~((word)1 << (slot % 64)));
}

void fg_advance(struct fg *f, int card, uint64_t t)
{
	struct fg_card *c = &f->st->card[card];
	const bool sliced = f->node.arbitration == FG_TIMESLICE;

	while (c->now < t) {
		int slot = choose(f, c);
		if (slot < 0) {
			fg_set(c, &c->now, t);
			break;
		}
		struct fg_slotcard *s = &c->s[slot];
		struct fg_work *w = head_of(s);
		const uint64_t start = c->now, period = start / FG_PERIOD_NS;
		uint64_t run = min64(w->ns - s->spent, t - start);
		run = min64(run, (period + 1) * FG_PERIOD_NS - start);
		if (sliced)
			run = min64(run, c->slice_left);
		const bool done = s->spent + run == w->ns;

		if (run) {
			fg_set(c, &c->now, start + run);
			fg_set(c, &s->spent, s->spent + run);
			fg_set(c, &s->busy, s->busy + run);
			fg_set(c, &c->busy, c->busy + run);
			add_busy(c, s->bucket, period, run);
			add_busy(c, c->bucket, period, run);
			log_run(c, slot, start, c->now, done);
			if (sliced)
				fg_set(c, &c->slice_left, c->slice_left - run);
		}
		if (done)
			finish(c, slot);
		fg_commit(c);
	}
	fg_commit(c);
}

/* At least this long until our work below n is done; exact in fifo. */
static uint64_t remaining(struct fg *f, struct fg_card *c, uint64_t n)
{
	const struct fg_slotcard *s = &c->s[f->slot];
	uint64_t sum = 0;

	if (s->head >= n)
		return 0;
	for (uint64_t i = s->head; i < n; i++)
		sum += s->work[i % FG_QUEUE].ns;
	sum -= s->spent;
	if (f->node.arbitration != FG_FIFO)
		return sum;
	const uint64_t ticket = s->work[(n - 1) % FG_QUEUE].ticket;
	for (int w = 0; w < FG_SLOT_WORDS; w++)
		for (word left = c->active[w]; left; left &= left - 1) {
			int slot = w * 64 + __builtin_ctzll(left);
			const struct fg_slotcard *o = &c->s[slot];
			if (slot == f->slot)
				continue;
			for (uint64_t i = o->head; i < o->tail && o->work[i % FG_QUEUE].ticket < ticket; i++)
				sum += o->work[i % FG_QUEUE].ns - (i == o->head ? o->spent : 0);
		}
	return sum;
}

/* Waits for about ns: the last stretch awake, because a sleep overshoots by
 * more than a short kernel lasts. Never long, since a process that dies lets
 * others be done earlier than reckoned. */
static void idle(uint64_t ns)
{
	if (ns <= 60000) {
		uint64_t until = fg_now() + ns;
		while (fg_now() < until)
			__builtin_ia32_pause();
		return;
	}
	struct timespec d = { 0, (long)(min64(ns, 20000000) - 50000) };
	nanosleep(&d, NULL);
}

static struct fg_slotcard *enter(struct fg *f, int card)
{
	struct fg_card *c = &f->st->card[card];

	fg_lock(f, c);
	fg_advance(f, card, fg_now());
	struct fg_slotcard *s = fg_mine(f, c);
	fg_commit(c);
	return s;
}

/* The marks of this process only grow, whichever thread is first to tell. */
static void raise_mark(word *mark, uint64_t value)
{
	word old = __atomic_load_n(mark, __ATOMIC_RELAXED);

	while (old < value && !__atomic_compare_exchange_n(mark, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

uint64_t fg_submit(struct fg *f, int card, uint64_t ns, uint64_t event)
{
	struct fg_card *c = &f->st->card[card];
	struct fg_slotcard *s;

	/* Nothing to do, and nothing of ours to wait for. */
	const word mark = __atomic_load_n(&f->submitted[card], __ATOMIC_RELAXED);
	if (!ns && !event && mark <= __atomic_load_n(&f->known_done[card], __ATOMIC_RELAXED))
		return mark;

	for (;;) {
		s = enter(f, card);
		if (s->tail - s->head < FG_QUEUE)
			break;
		uint64_t wait = remaining(f, c, s->head + 1);
		fg_unlock(f, c);
		idle(wait + 1000);
	}
	const uint64_t n = s->tail;
	if (!ns && !event && s->head == s->tail) {
		fg_unlock(f, c);
		raise_mark(&f->known_done[card], n);
		return n;
	}
	struct fg_work *w = &s->work[n % FG_QUEUE];
	fg_set(c, &w->ns, ns);
	fg_set(c, &w->event, event);
	fg_set(c, &w->ticket, c->ticket);
	fg_set(c, &c->ticket, c->ticket + 1);
	fg_set(c, &s->tail, n + 1);
	fg_set(c, &c->active[f->slot / 64], c->active[f->slot / 64] | (word)1 << (f->slot % 64));
	raise_mark(&f->submitted[card], n + 1);
	fg_unlock(f, c);
	return n + 1;
}

uint64_t fg_done(struct fg *f, int card)
{
	uint64_t n = enter(f, card)->head;

	fg_unlock(f, &f->st->card[card]);
	raise_mark(&f->known_done[card], n);
	return n;
}

void fg_wait(struct fg *f, int card, uint64_t n)
{
	struct fg_card *c = &f->st->card[card];

	for (;;) {
		struct fg_slotcard *s = enter(f, card);
		/* A tail below n: our descriptors were closed and we were reaped. */
		if (s->head >= n || s->tail < n) {
			raise_mark(&f->known_done[card], s->head);
			fg_unlock(f, c);
			return;
		}
		uint64_t wait = remaining(f, c, n);
		bool alone = true;
		for (int w = 0; w < FG_SLOT_WORDS; w++)
			if (c->active[w] & ~(f->slot / 64 == w ? (word)1 << (f->slot % 64) : 0))
				alone = false;
		fg_unlock(f, c);
		/* Sharing a time-sliced card, the reckoning is a lower bound that
		 * shrinks to nothing; do not spin on it. */
		idle(alone || f->node.arbitration == FG_FIFO ? wait + 1000 : wait + 100000);
	}
}

unsigned fg_busy_percent(struct fg *f, int card, int slot, uint64_t since, uint64_t *until)
{
	struct fg_card *c = &f->st->card[card];
	uint64_t now = fg_now(), last = now / FG_PERIOD_NS, first, busy = 0;

	fg_lock(f, c);
	fg_advance(f, card, now);
	const struct fg_bucket *b = slot < 0 ? c->bucket : c->s[slot].bucket;
	first = since / FG_PERIOD_NS;
	if (first >= last)
		first = last - 1;
	if (last - first >= FG_BUCKETS)
		first = last - FG_BUCKETS + 1;
	for (uint64_t p = first; p < last; p++)
		if (b[p % FG_BUCKETS].period == p)
			busy += b[p % FG_BUCKETS].busy;
	fg_unlock(f, c);
	*until = last * FG_PERIOD_NS;
	return (unsigned)((busy * 100 + FG_PERIOD_NS * (last - first) / 2) / (FG_PERIOD_NS * (last - first)));
}
