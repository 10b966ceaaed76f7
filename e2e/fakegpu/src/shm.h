/* The state of a node's cards that all processes of the node share.
 *
 * There is no daemon. The state is a file mapped by every process; a card's
 * part of it is changed only under that card's lock, and only through
 * fg_set(), which first writes the old value to the card's undo log:
 *
 *      lock ──> fg_set, fg_set, ... ──> fg_commit ──> ... ──> unlock
 *                     │                     │
 *                 undo log grows        undo log empty
 *
 * A process that is killed between any two instructions leaves either an
 * empty undo log (nothing to do) or one that takes the card back to the last
 * commit. Whoever takes the lock over plays it back.
 *
 * A process is a slot. It lives as long as the kernel holds its POSIX write
 * lock on byte 1 + slot of the lock file: the kernel drops it when the process
 * dies or execs, however that happens, and reports the holder in the reader's
 * own pid namespace. So the NVML of the host sees host pids, and the memory of
 * a killed process is taken back by the next one that looks. As with the real
 * driver, a program that closes all descriptors loses its cards.
 *
 * Every attach gets a number that is never used again (the client id). Lock
 * words and queues name it beside the slot, so a reused slot or pid is never
 * mistaken for its former owner.
 */
#ifndef FAKEGPU_SHM_H
#define FAKEGPU_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "node.h"

#define FG_MAGIC 0x31555047454b4146ull /* "FAKEGPU1" */
#define FG_SLOTS 256
#define FG_SLOT_WORDS (FG_SLOTS / 64)
#define FG_QUEUE 1024     /* depth of a process's hardware queue on a card */
#define FG_EVENTS 4096    /* event cells of a process on a card */
#define FG_UNDO 128
#define FG_BUCKETS 32     /* history of utilisation, one bucket a period */
#define FG_PERIOD_NS 166666667ull /* the driver samples utilisation 6 times a second */
#define FG_LOG (1u << 18)
#define FG_CLIENTS 8192
#define FG_GIS 15         /* ids of GPU instances of a card in MIG mode */
#define FG_CIS 8          /* ids of compute instances of a GPU instance */

typedef uint64_t word;

struct fg_work {
	word ns;          /* how long it occupies the card; 0 for a marker */
	word ticket;      /* order of arrival at the card */
	word event;       /* 1 + event cell to stamp when done; 0: none */
};

struct fg_bucket {
	word period;      /* which period of FG_PERIOD_NS since boot */
	word busy;        /* nanoseconds of it the card worked */
};

/* What one process has on one card. Work numbers only grow: head is the next
 * to finish, tail the next to be queued, so "done up to n" is head >= n. */
struct fg_slotcard {
	word client;
	word gi, ci;      /* 1 + the MIG instances that it works on; 0: the card */
	word mem;         /* bytes taken from the card */
	word contexts;
	word head, tail;
	word spent;       /* nanoseconds that work[head] has had already */
	word busy;        /* nanoseconds since attach */
	word kernels;     /* finished, markers not counted */
	struct fg_bucket bucket[FG_BUCKETS];
	word event[FG_EVENTS]; /* finish time; 0: never recorded */
	struct fg_work work[FG_QUEUE];
};

struct fg_log {
	word start, end;  /* CLOCK_MONOTONIC nanoseconds */
	word client;
	word slot;
	word kernels;     /* that finished within */
};

/* Instances of a card in MIG mode; see mig.h. */
struct fg_gi {
	word profile;     /* 1 + place among the card's profiles; 0: none */
	word start;       /* first memory slice */
	struct { word slices, serial; } ci[FG_CIS]; /* no slices: none */
};

struct fg_mig {
	word on;
	word serial;      /* compute instances ever made */
	struct fg_gi gi[FG_GIS];
};

struct fg_card {
	word lock;        /* 0, or client << 16 | slot + 1 */
	word waiters;
	word undo_n;
	struct { word off, old; } undo[FG_UNDO];

	word mem;         /* bytes taken, all processes */
	word now;         /* simulated up to here */
	word turn;        /* slot + 1 that has the time slice (or runs, in fifo) */
	word slice_left;
	word ticket;
	word busy;
	word logged;
	word present[FG_SLOT_WORDS]; /* slots with anything on this card */
	word active[FG_SLOT_WORDS];  /* slots with work queued */
	struct fg_mig mig;
	word exclusive;   /* compute mode EXCLUSIVE_PROCESS: MPS clients alone have contexts */
	struct fg_bucket bucket[FG_BUCKETS];
	struct fg_slotcard s[FG_SLOTS];
	struct fg_log log[FG_LOG];
};

enum fg_kind { FG_COMPUTE = 1, FG_OBSERVER = 2 };

struct fg_client {
	word id;
	word pid;         /* in its own pid namespace */
	word kind;
	word since;
	char host[64];    /* its UTS node name: a pod's name in a cluster */
	char comm[32];
};

struct fg_state {
	word magic;
	word next_client;
	word client_of[FG_SLOTS];
	struct fg_client client[FG_CLIENTS]; /* ring by client id */
	struct fg_card card[FG_MAX_CARDS];
};

/* A process's attachment. */
struct fg {
	struct fg_node_desc node;
	struct fg_state *st;
	int fd;           /* the lock file; private, never closed */
	int slot;         /* -1 until attached */
	int gi[FG_MAX_CARDS], ci[FG_MAX_CARDS]; /* 1 + our instances; 0: the card */
	word client;
	uint64_t limit[FG_MAX_CARDS]; /* most that we may take of a card as an MPS client; 0: all */
	char dir[256], dev[256];
	dev_t fd_dev;
	ino_t fd_ino;
	word submitted[FG_MAX_CARDS]; /* mark of our last work, and up to which */
	word known_done[FG_MAX_CARDS]; /* mark it was seen to be done */
	word alive_until[FG_SLOTS]; /* a liveness answer is good for 1 ms in the simulation */
};

/* Reads the node file and maps the state. Costs no slot. */
bool fg_open(struct fg *f, char *err, int errlen);
/* Takes a slot. False when all FG_SLOTS are taken. */
bool fg_attach(struct fg *f, enum fg_kind kind);
/* Whether the card's device nodes exist for this process. */
bool fg_visible(const struct fg *f, int card);

uint64_t fg_now(void);

void fg_lock(struct fg *f, struct fg_card *c);
void fg_unlock(struct fg *f, struct fg_card *c);
void fg_set(struct fg_card *c, word *w, word value);
void fg_commit(struct fg_card *c);

/* The holder's pid in our pid namespace, 0 when it is in none that we see,
 * -1 when the slot is dead. */
pid_t fg_slot_pid(struct fg *f, int slot);
/* Takes back all that dead processes have on the card. Under its lock. */
void fg_reap(struct fg *f, struct fg_card *c);
/* Takes back what one slot has on the card. Under its lock. */
void fg_erase(struct fg_card *c, int slot);

/* Takes bytes of the card's memory, or returns false when it does not have
 * them even after the dead were reaped. */
bool fg_mem_take(struct fg *f, int card, uint64_t bytes);
void fg_mem_give(struct fg *f, int card, uint64_t bytes);
/* Bytes that all together can take of the card, or of our instance of it. */
uint64_t fg_room(const struct fg *f, int card);
/* Bytes taken by all of the same, after reaping. */
uint64_t fg_mem_used(struct fg *f, int card);
void fg_contexts_add(struct fg *f, int card, int n);

/* Under the card's lock: our entry on the card, marked present. */
struct fg_slotcard *fg_mine(struct fg *f, struct fg_card *c);

static inline uint64_t fg_usable(const struct fg_card_desc *d)
{
	return d->memory - d->reserved;
}

static inline bool fg_bit(const word *map, int i)
{
	return map[i / 64] >> (i % 64) & 1;
}

#endif
