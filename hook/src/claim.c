#include "claim.h"

#include "pool.h"
#include "real.h"

CUresult claim_card(struct claim *c, struct card *card, uint64_t bytes)
{
    c->card = card && !card->whole ? card : 0;
    c->context = 0;
    c->units = to_units(bytes);
    if (c->card)
        card_follow_grant(c->card);
    if (!c->card || card_charge(c->card, c->units))
        return CUDA_SUCCESS;
    /* What pools keep for later is nobody's need now. */
    if (pools_trim(c->card) && card_charge(c->card, c->units))
        return CUDA_SUCCESS;
    c->card = 0;
    return card_refuse(card);
}

static bool any_limited(void)
{
    for (uint32_t i = 0; i < process->cards; i++)
        if (!process->card[i].whole)
            return true;
    return false;
}

CUresult claim_location(int kind, const CUmemLocation *location, struct card **card)
{
    bool host = location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    CUdevice device;
    *card = 0;
    if (host && kind == CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_SUCCESS;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
        *card = process_card(location->id); /* none: the driver will say so */
        return CUDA_SUCCESS;
    }
    if (process->cards == 1)
        *card = &process->card[0];
    else if (kind == CU_MEM_ALLOCATION_TYPE_MANAGED && (host || location->type == CU_MEM_LOCATION_TYPE_NONE) &&
             !REAL(cuCtxGetDevice)(&device))
        *card = process_card(device);
    return *card || !any_limited() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult claim_begin(struct claim *c, uint64_t bytes)
{
    CUcontext context = 0;
    CUdevice device = 0;
    CUresult r = process_enter();
    c->card = 0;
    if (r == CUDA_ERROR_NOT_INITIALIZED)
        return CUDA_SUCCESS; /* the driver will say so */
    if (r)
        return r;
    if (REAL(cuCtxGetCurrent)(&context) || !context)
        return CUDA_SUCCESS; /* the driver will say so */
    struct card *card = &process->card[0];
    if (process->cards != 1) {
        if ((r = REAL(cuCtxGetDevice)(&device)))
            return r;
        card = process_card(device);
    }
    if (card && !card->whole)
        context_adopt(card, context);
    r = claim_card(c, card, bytes);
    c->context = context;
    return r;
}

bool claim_correct(struct claim *c, uint64_t bytes)
{
    uint64_t units = to_units(bytes);
    if (!c->card)
        return true;
    if (units > c->units && !card_charge(c->card, units - c->units))
        return false;
    if (units < c->units)
        card_return(c->card, c->units - units);
    c->units = units;
    return true;
}

void claim_abort(struct claim *c)
{
    if (c->card)
        card_return(c->card, c->units);
}

CUresult claim_end_with(struct claim *c, CUresult r, uint64_t key, CUresult (*free_it)(uint64_t))
{
    if (!c->card)
        return r;
    if (r) {
        claim_abort(c);
        return r;
    }
    struct entry e = {
        .key = key,
        .units = c->units,
        .tag = (uintptr_t)c->context,
        .card = (uint32_t)(c->card - process->card),
        .kind = KIND_LINEAR,
    };
    struct entry old;
    if (map_swap(&process->pointers, &e, &old)) {
        /* The driver gives an address out again only when it is free: somebody
         * freed it where no wrapper saw it. */
        if (old.key && old.kind != KIND_POOLED)
            card_return(&process->card[old.card], old.units);
        return CUDA_SUCCESS;
    }
    free_it(key);
    claim_abort(c);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult free_linear(uint64_t ptr)
{
    return REAL(cuMemFree_v2)(ptr);
}

CUresult claim_end(struct claim *c, CUresult r, CUdeviceptr ptr)
{
    return claim_end_with(c, r, ptr, free_linear);
}
