/*
 * The gate: holds the launches of one card to the SM time that the card's
 * shares are granted.
 *
 *      launch ---> known kernel, room left? ---yes---------------------> driver
 *                          | no
 *                          v
 *      look which work is done, charge it       (events, see below)
 *      fill the bucket                          (rate of the grant x time)
 *      wait while the bucket is empty, or while more than OUTSTANDING of work
 *      is with the card; one kernel may always be there
 *                          | then
 *                          v
 *      record an event behind the launch --------------------------------> driver
 *
 * Time is what passes between completions, as the card's own clock stamps them
 * into events: from the later of the work's beginning and the completion
 * before it, to its completion. On a card that takes turns between processes
 * that is too much, for the turns of the others are in it. So it is multiplied
 * by a factor that the node finds from what NVML has seen, and which is in the
 * grant. What is charged comes out of a bucket in the account that all
 * processes of the share have in common.
 *
 * Not every launch gets an event. What a launch of a kernel with a grid costs
 * is learnt from single ones, and an event is recorded when SAMPLE of expected
 * time is open, that is, launched since the last one. That expectation decides
 * how often to look, and how much is let out; what is charged is what was
 * observed, except where nothing can be: after an error of an event on a
 * stream, and for the open rest of a stream that is left for another one.
 *
 * Nothing is recorded, held or charged in a stream that is being captured, and
 * all calls to the driver are made in relaxed capture mode, so that a capture
 * elsewhere never notices. No error of them reaches the program. There is no
 * thread: what is done is found by whoever launches next, and the stamps do not
 * care when.
 */
#ifndef SLUICE_GATE_H
#define SLUICE_GATE_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "lock.h"
#include "sluice_layout.h"

enum {
    GATE_SHARES = 8,   /* of one card */
    GATE_KERNELS = 512, /* remembered */
    GATE_SAMPLES = 64, /* with the card at one time, of one context */
    GATE_BLIND = 8,    /* streams that cannot be sampled now */
};

#define GATE_MS 1000000ull

/* Work with the card, of expected length, that is followed by an event. */
#define GATE_OUTSTANDING (25 * GATE_MS)
#define GATE_SAMPLE      (GATE_MS / 2)
/* The bucket holds what is granted in this time, and so does a window. */
#define GATE_WINDOW (100 * GATE_MS)
/* The longest that a launch waits for what is owed: after a kernel that took
 * more than is granted in this time the rest is forgiven. */
#define GATE_DEBT (2000 * GATE_MS)
/* A grant that is older was left by a node that no longer looks. */
#define GATE_STALE (2000 * GATE_MS)

struct gate_share {
    struct sluice_account *account;
    const struct sluice_grant *grant;
    uint32_t slot;     /* of this process in the account */
    uint32_t sequence; /* of the grant when it was read */
    uint32_t rate, fallback;
    uint64_t heartbeat;
};

struct gate_kernel {
    uint64_t key;
    uint64_t cost; /* ns */
};

struct gate_sample {
    CUevent begin; /* 0: it began behind the one before it */
    CUevent end;
    CUstream stream;
    uint64_t key;  /* of its only launch; 0: several */
    uint64_t cost; /* expected, ns */
    uint64_t launched; /* by our clock */
    bool exact;    /* nothing but work was between its ends */
};

struct gate_lane {
    struct gate_lane *next;
    CUcontext context;
    CUevent last; /* the latest completion */
    unsigned samples, spares;
    struct gate_sample sample[GATE_SAMPLES];
    CUevent spare[2 * GATE_SAMPLES + 2];
};

struct gate {
    /* What a launch looks at first. Written under the lock, except open, which
     * the one thread that the tag names adds to: a lost sum is another look. */
    uint64_t tag; /* the stream and thread whose launches are open; 0: none */
    uint64_t open; /* expected ns launched since the last event */
    uint64_t room; /* how far open may grow */
    uint64_t generation; /* part of every key; a new one forgets all kernels */
    struct gate_kernel kernel[GATE_KERNELS];

    struct lock lock;
    bool windows; /* filled at the same instants as all other cards' buckets */
    unsigned shares;
    struct gate_share share[GATE_SHARES];
    struct gate_lane *lanes;
    uint64_t rate, factor; /* millionths */
    uint64_t mean;         /* cost of a launch, ns */
    uint64_t scale;        /* observed over expected time, millionths */
    uint64_t forgot;       /* when the generation changed */
    uint64_t throttled_to; /* up to here waiting was counted */
    uint64_t charged_at;
    struct {
        CUstream stream;
        uint64_t until;
    } blind[GATE_BLIND];
};

/* One launch that did not pass at once. */
struct gate_launch {
    struct gate_lane *lane; /* 0: nothing to do after it */
    CUstream stream;
    uint64_t key, cost;
    CUevent begin;
    bool single, exact, blind;
};

/* Begins with the shares in place. */
void gate_begin(struct gate *g);

/* Distinguishes launches by what makes their time: what is launched, and how
 * many blocks of it. */
static inline uint64_t gate_key(const struct gate *g, const void *what, unsigned x, unsigned y, unsigned z)
{
    uint64_t h = (uintptr_t)what + __atomic_load_n(&g->generation, __ATOMIC_RELAXED);
    h = (h ^ (x + ((uint64_t)y << 21) + ((uint64_t)z << 42)) * 0xc2b2ae3d27d4eb4full) * 0x9e3779b97f4a7c15ull;
    return h | 1;
}

static inline struct gate_kernel *gate_kernel(struct gate *g, uint64_t key)
{
    return &g->kernel[key >> 55];
}

/* One byte of each thread, for its address. */
extern __thread char gate_thread;

static inline uint64_t gate_tag(CUstream stream)
{
    return (uintptr_t)stream * 0x9e3779b97f4a7c15ull + (uintptr_t)&gate_thread;
}

/* Whether a launch may go on at once; it is then done with. */
static inline bool gate_pass(struct gate *g, uint64_t key, CUstream stream)
{
    struct gate_kernel *k = gate_kernel(g, key);
    uint64_t open = __atomic_load_n(&g->open, __ATOMIC_RELAXED) + __atomic_load_n(&k->cost, __ATOMIC_RELAXED);
    if (__atomic_load_n(&k->key, __ATOMIC_RELAXED) != key || __atomic_load_n(&g->tag, __ATOMIC_RELAXED) != gate_tag(stream) ||
        open > __atomic_load_n(&g->room, __ATOMIC_RELAXED))
        return false;
    __atomic_store_n(&g->open, open, __ATOMIC_RELAXED);
    return true;
}

/* Waits until the launch may go on. To be followed by gate_leave. The stream is
 * named as the legacy functions do, and is not being captured. */
void gate_enter(struct gate *g, struct gate_launch *l, uint64_t key, CUstream stream);

/* After the launch; r is the driver's answer. */
void gate_leave(struct gate *g, struct gate_launch *l, CUresult r);

/* The context is gone, and its events with it. */
void gate_forget(struct gate *g, CUcontext context);

/* CLOCK_MONOTONIC, and sleep; tests have their own. */
uint64_t gate_now(void);
void gate_sleep(uint64_t ns);

#endif
