/*
 * Charge first, allocate then, and take the charge back if that fails.
 *
 *     struct claim c;
 *     CUresult r = claim_begin(&c, bytes);
 *     if (r == CUDA_SUCCESS) {
 *         r = REAL(cuMemAlloc_v2)(ptr, bytes);
 *         r = claim_end(&c, r, *ptr);
 *     }
 */
#ifndef SLUICE_CLAIM_H
#define SLUICE_CLAIM_H

#include "process.h"

/* entry.kind of process->pointers */
enum kind {
    KIND_LINEAR, /* and arrays; tag: the context */
    KIND_POOLED, /* tag: the pool, which is charged, not the pointer */
    KIND_ORPHAN, /* its pool was destroyed: charged by itself, no tag */
};

struct claim {
    struct card *card; /* 0: nothing to limit, let it pass */
    CUcontext context;
    uint64_t units;
};

/* For the current context's card. SUCCESS: go on. Else: return it. */
CUresult claim_begin(struct claim *c, uint64_t bytes);

/* For a given card, outside any context. */
CUresult claim_card(struct claim *c, struct card *card, uint64_t bytes);

/* The card that memory of a kind (CUmemAllocationType) at a location is charged
 * to; 0 with SUCCESS: to none, it is the host's. Managed memory without a card of
 * its own is charged to the current context's, as cuMemAllocManaged is; so is,
 * where there is but one card, what this limiter does not know. NOT_SUPPORTED:
 * it could be any card's. */
CUresult claim_location(int kind, const CUmemLocation *location, struct card **card);

/* Corrects the charge to what the driver took. False: no room for it. */
bool claim_correct(struct claim *c, uint64_t bytes);

/* r is the driver's answer. On success the pointer is entered; if there is no
 * memory for the entry, it is freed again. */
CUresult claim_end(struct claim *c, CUresult r, CUdeviceptr ptr);

/* The same for what another function frees. */
CUresult claim_end_with(struct claim *c, CUresult r, uint64_t key, CUresult (*free_it)(uint64_t));

/* Gives the charge back. */
void claim_abort(struct claim *c);

#endif
