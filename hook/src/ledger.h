/*
 * The ledger: what the processes of one share hold, in a file that they all
 * map. It needs no lock between processes and stays exact when any of them is
 * killed at any instruction.
 *
 * One word carries the total and names who changed it last:
 *
 *      63            30 29        20 19            0
 *     +----------------+------------+---------------+
 *     |     units      |    slot    |   sequence    |
 *     +----------------+------------+---------------+
 *
 * Each slot has a counter `applied` and two records; record[applied & 1] is
 * what the process holds. A change number n = applied + 1 of a slot is
 *
 *     1. record[n & 1] = new amount         (not valid yet)
 *     2. total: w -> (units + d, slot, n)   compare-and-swap: checks and charges
 *     3. applied = n                        (now it is)
 *
 * Killed before 2, nothing has happened. Killed between 2 and 3, the word still
 * names the slot and n: whoever changes the word next does step 3 for it before
 * it overwrites the only trace. So at any time
 *
 *     units = sum of the valid records, once the change that the word names is done
 *
 * A slot belongs to the process that holds the lock on the file's byte of the
 * same number. The lock is an open file description lock that only the mapping
 * keeps alive (the descriptor is closed, forked children do not inherit the
 * mapping): the kernel drops it when the process ends or execs, in whatever way,
 * and at no other time. Whoever gets the lock of a slot whose record is not zero
 * acts as its dead owner: finishes what it began and returns what it held.
 */
#ifndef SLUICE_LEDGER_H
#define SLUICE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"
#include "sluice_layout.h"

/* Tests define this to kill the process between the steps above. */
#ifndef LEDGER_STEP
#define LEDGER_STEP(n) ((void)(n))
#endif

struct ledger {
    struct sluice_account *account;
    uint32_t slot;
    struct lock lock; /* one change of a slot at a time */
};

enum ledger_open_result {
    LEDGER_OPENED,
    LEDGER_CANNOT_OPEN, /* errno says why */
    LEDGER_CANNOT_MAP,  /* errno says why */
    LEDGER_NOT_ACCOUNT, /* size, magic or version is wrong */
    LEDGER_FULL,        /* every slot has a live process */
};

/* Attaches to the account file at path. On success this process owns a slot
 * until it ends. The caller keeps fork() out meanwhile: a child born between
 * the lock and the end of this function would keep the slot alive. */
enum ledger_open_result ledger_open(struct ledger *l, const char *path);

/* Charges units unless the total would exceed limit. False: nothing changed. */
bool ledger_charge(struct ledger *l, uint64_t units, uint64_t limit);

/* Charges units whatever the limit says, for what the card has lost already. */
void ledger_force(struct ledger *l, uint64_t units);

/* Returns at most units; never more than this process holds. Tells how many. */
uint64_t ledger_return(struct ledger *l, uint64_t units);

/* Returns what dead processes held, and tells how many there were. Keeps fork()
 * out like ledger_open. */
unsigned ledger_collect(struct ledger *l, const char *path);

/* What all processes hold, and what this one does. */
uint64_t ledger_total(const struct ledger *l);
uint64_t ledger_mine(const struct ledger *l);

#endif
