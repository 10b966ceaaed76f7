/*
 * The three files of a share, as bytes.
 *
 * Every share that a container holds has a folder with three small files,
 * which the node makes and mounts into the container one by one:
 *
 *   limit    what the share may use; written once, read-only for the tenant
 *   grant    what the node tells the share now; rewritten in place by the node
 *            with a new sequence number, read-only for the tenant
 *   account  what the share uses; written by the processes of the tenant, read
 *            and never believed by the node
 *
 * This header is the only description of the bytes. hook/account mirrors it in
 * Go, and a test there compiles this file and compares every offset and size.
 * All numbers are little endian; the limiter runs where the driver does, on
 * little-endian 64-bit machines.
 */
#ifndef SLUICE_LAYOUT_H
#define SLUICE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the share files are little endian"
#endif

/* Changes whenever the meaning of any byte below changes. Node and container
 * are served by one release, so there is no reader for an older version: a
 * process that finds another version refuses, closed. Reserved bytes are zero;
 * one of them may get a meaning without a new version if zero means what there
 * was before. */
#define SLUICE_VERSION 1u

#define SLUICE_LIMIT_MAGIC   0x314d494c494c5353ull /* "SSLILIM1" */
#define SLUICE_GRANT_MAGIC   0x31415247494c5353ull /* "SSLIGRA1" */
#define SLUICE_ACCOUNT_MAGIC 0x31434341494c5353ull /* "SSLIACC1" */

/* Memory is counted in units of what the smallest allocation takes of a card. */
#define SLUICE_UNIT_SHIFT 9
#define SLUICE_UNIT       (1ull << SLUICE_UNIT_SHIFT)

/* The total word: units(34) | slot(10) | sequence(20). See src/ledger.h. */
#define SLUICE_SEQ_BITS  20
#define SLUICE_SLOT_BITS 10
#define SLUICE_UNIT_BITS 34
#define SLUICE_MAX_UNITS ((1ull << SLUICE_UNIT_BITS) - 1)
#define SLUICE_MAX_BYTES (SLUICE_MAX_UNITS << SLUICE_UNIT_SHIFT)

/* Processes of one share that may hold memory at one time. */
#define SLUICE_SLOTS 960u

/* limit.flags */
#define SLUICE_LIMIT_WHOLE 1u /* the whole card: memory is not limited by us */

/* limit.core_policy */
#define SLUICE_CORES_NONE  0u /* no guarantee: the time that others leave */
#define SLUICE_CORES_BURST 1u /* the guaranteed share, and time that is idle */
#define SLUICE_CORES_HARD  2u /* never more than the guaranteed share */

struct sluice_limit {
    uint64_t magic;
    uint32_t version;
    uint32_t size;         /* of this struct */
    uint8_t card[16];      /* UUID of the card (or MIG instance), as the driver gives it */
    uint64_t memory_bytes; /* multiple of SLUICE_UNIT; not read when the share is whole */
    uint32_t core_percent; /* 0..100 of the card's SM time */
    uint32_t core_policy;
    uint32_t flags;
    uint32_t reserved0;
    uint64_t reserved1[8];
    uint64_t checksum; /* sluice_checksum of all bytes before it */
};

struct sluice_grant {
    uint64_t magic;
    uint32_t version;
    uint32_t size;
    uint32_t sequence; /* odd while the node writes */
    uint32_t reserved0;
    uint64_t heartbeat_ns;           /* CLOCK_MONOTONIC of the last write; 0: none yet */
    uint64_t context_overhead_bytes; /* charged for each context when it is made */
    uint32_t core_rate_ppm;          /* SM time granted now, millionths of the card */
    uint32_t busy_factor_ppm;        /* true busy time over claimed busy time, millionths */
    uint32_t core_gated;             /* 0: launches pass freely, rates are not looked at */
    uint32_t core_fallback_ppm;      /* the rate while the heartbeat is old; what is guaranteed */
    uint64_t reserved1[8];
    uint64_t checksum; /* of all bytes before it, sequence read as 0 */
};

/* One process. It is live while, and only while, somebody holds the lock on
 * the file's byte of the same number. */
struct sluice_slot {
    uint64_t applied;   /* number of the last change that is done */
    uint64_t record[2]; /* units held; the one of (applied & 1) is valid */
    uint32_t pid;       /* in the process's own PID namespace; only to be shown */
    uint32_t contexts;  /* live contexts; only to be shown */
    uint64_t busy_ns;   /* SM time claimed by this process; only grows */
    /* What each live context was charged at least, units: tells the node which
     * of its grants this process has followed. Only to be shown. */
    uint64_t context_units;
    uint64_t reserved[2];
};

/* Cache lines are kept apart so that a reader of the limits never waits for a
 * writer of the total. */
struct sluice_account {
    uint64_t magic;
    uint32_t version;
    uint32_t size;
    uint32_t slots; /* SLUICE_SLOTS */
    uint32_t reserved0;
    uint64_t reserved1[5];

    uint64_t total; /* the total word */
    uint64_t reserved2[7];

    uint64_t peak_units; /* highest total seen by anybody */
    uint64_t refused;    /* allocations refused */
    uint64_t reaped;     /* slots of dead processes that were emptied */
    uint64_t next_slot;  /* where the next process begins to look */
    uint64_t reserved3[4];

    /* SM time, of all processes of the share, also of those that ended. What
     * only grows is read by the node, which looks at how much it grew. See
     * src/gate.h. */
    int64_t core_tokens_ns;     /* may be used now; below zero: owed */
    uint64_t core_filled_ns;    /* CLOCK_MONOTONIC up to which tokens were given */
    uint64_t core_busy_ns;      /* grows: observed, not corrected by the busy factor */
    uint64_t core_charged_ns;   /* grows: of that charged, after correction */
    uint64_t core_throttled_ns; /* grows: launches waited for tokens for so long */
    uint64_t core_asked;        /* grows: launches, and looks of those that wait */
    uint64_t reserved4[2];

    uint8_t reserved5[4096 - 4 * 64];

    struct sluice_slot slot[SLUICE_SLOTS];
};

_Static_assert(sizeof(struct sluice_limit) == 128, "limit");
_Static_assert(sizeof(struct sluice_grant) == 128, "grant");
_Static_assert(sizeof(struct sluice_slot) == 64, "slot");
_Static_assert(sizeof(struct sluice_account) == 65536, "account");
_Static_assert(SLUICE_SLOTS <= 1u << SLUICE_SLOT_BITS, "slots");
_Static_assert(SLUICE_SEQ_BITS + SLUICE_SLOT_BITS + SLUICE_UNIT_BITS == 64, "total word");

/* FNV-1a, 64 bits: it finds torn and damaged files, it does not resist a forger
 * (the tenant cannot write the files that carry it). */
static inline uint64_t sluice_checksum(const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

#endif
