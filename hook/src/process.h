/*
 * What this process knows: the cards that it sees, the shares that it holds of
 * them, and what it has allocated.
 *
 * All of it lies in pages of their own that the kernel wipes in a forked child,
 * so that all zero means: not attached yet. A child counts on its own, whichever
 * way it was made. The pages are static data, where a program's leak checker
 * looks for what is still in use.
 */
#ifndef SLUICE_PROCESS_H
#define SLUICE_PROCESS_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "gate.h"
#include "ledger.h"
#include "map.h"

enum {
    MAX_SHARES = 64, /* of one container */
    MAX_CARDS = 64,
    CARD_SHARES = GATE_SHARES, /* of one card in one container */
};

struct share {
    struct ledger ledger;
    const struct sluice_grant *grant;
    uint64_t limit;    /* units */
    uint64_t overhead; /* of a context, units, as last read from the grant */
    uint32_t sequence; /* of the grant that it was read from */
    char *account;     /* path of the file */
    uint8_t card[16];
    bool whole;
};

/* A card as CUDA numbers it here. */
struct card {
    CUdevice device;
    uint8_t uuid[16];
    bool whole; /* not limited */
    uint8_t shares;
    uint8_t share[CARD_SHARES];
    uint64_t limit; /* units, all shares together */

    struct lock contexts;     /* one creation or end of a context at a time */
    CUcontext primary;        /* while it is alive */
    uint64_t primary_units;   /* charged for it */
    uint64_t next_collection; /* ns; reports look for dead processes then */

    struct lock pools;    /* one change of a pool's or the graphs' charge at a time */
    uint32_t has_pools;   /* ever */
    uint32_t has_graphs;  /* ever, that take memory */
    uint64_t graph_units; /* charged for what graphs have reserved */

    struct gate *gate; /* 0 until a launch was held to a rate */
};

struct process {
    uint32_t ready;
    /* Of each card that is limited, whether its launches are: a word of its
     * grant. The first one is never 0 once this process is attached. */
    uint32_t gates;
    const uint32_t *gated[MAX_CARDS];
    struct lock attaching; /* also keeps fork() out while a slot is taken */
    uint32_t shares, cards;
    struct share share[MAX_SHARES];
    struct card card[MAX_CARDS];

    struct map pointers; /* linear and stream-ordered memory */
    struct map contexts; /* created ones; primary ones are in their card */
    struct map handles;  /* of virtual memory */
    struct map mappings; /* by first address */
    struct map pools;    /* tag: see cuda_pool.c */
    struct map execs;    /* instantiated graphs that take memory */
    struct lock chunks;  /* guards what handles and mappings point to, and: */
    uint32_t imports;    /* pieces of memory that were imported and live */
    void *held;          /* exported pieces that may live on as one of them */
};

extern struct process *const process;

/* Reads the limits and nothing else; what cuInit does before the driver starts.
 * False: refused, and stderr says why. */
bool process_load(void);

/* Matches cards and shares and attaches to the accounts; needs a driver that is
 * initialised. */
CUresult process_attach(void);

/* What every wrapper asks first. SUCCESS: attached. NOT_INITIALIZED: the driver
 * is not, let it answer itself. Else: refused. */
CUresult process_enter_slowly(void);
static inline CUresult process_enter(void)
{
    if (__builtin_expect(__atomic_load_n(&process->ready, __ATOMIC_ACQUIRE), 1))
        return CUDA_SUCCESS;
    return process_enter_slowly();
}

/* The card of a device handle; 0 if there is none. */
struct card *process_card(CUdevice device);

/* The card of a context that this process made or retained; 0 if unknown. */
struct card *context_card(CUcontext ctx);

/* entry.kind of process->contexts */
enum context_kind {
    CONTEXT_MADE,  /* seen when it was made, and charged */
    CONTEXT_FOUND, /* seen when it was used; not charged */
};

/* For a current context of a limited card: if it was made in a way that no
 * wrapper saw, it is entered now. A primary context, which the driver's private
 * tables can make, is charged its overhead whether it fits or not. */
void context_adopt(struct card *c, CUcontext ctx);

/* Charges units to the card's shares, spread as they have room. If there is
 * none, dead processes are collected before false is returned. */
bool card_charge(struct card *c, uint64_t units);
void card_force(struct card *c, uint64_t units);
void card_return(struct card *c, uint64_t units);

/* Counts a refusal; what the program is told. */
CUresult card_refuse(struct card *c);

/* Room left, units, never negative; dead processes no longer counted after
 * 100 ms. */
uint64_t card_room(struct card *c);

/* What the node says a context takes, units. */
uint64_t card_context_overhead(struct card *c);

/* Charges living contexts what the node has found since that they take. Free
 * memory must not grow under a program that starts up, so a charge is raised
 * here and never lowered. Cheap while the grant is unchanged. */
void card_raise_overhead(struct card *c);
static inline void card_follow_grant(struct card *c)
{
    for (unsigned i = 0; i < c->shares; i++) {
        const struct share *s = &process->share[c->share[i]];
        if (__builtin_expect(__atomic_load_n(&s->grant->sequence, __ATOMIC_RELAXED) !=
                                 __atomic_load_n(&s->sequence, __ATOMIC_RELAXED), 0)) {
            card_raise_overhead(c);
            return;
        }
    }
}

/* Shown in the account: contexts alive in this process. */
void card_count_context(struct card *c, int change);

static inline uint64_t to_units(uint64_t bytes)
{
    return (bytes >> SLUICE_UNIT_SHIFT) + ((bytes & (SLUICE_UNIT - 1)) != 0);
}

#endif
