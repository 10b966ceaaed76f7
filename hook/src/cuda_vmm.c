/*
 * Virtual memory management. Physical memory is charged to the card that its
 * properties name, whatever context is current, and lives until its last handle
 * is released and its last mapping is gone.
 *
 * Memory that was imported is its exporter's and is not charged again. The
 * driver does not tell what an imported handle is a handle of, and it may be of
 * memory that this process exported itself: so what was exported stays charged,
 * after its own last handle and mapping, while anything imported is alive here.
 */
#include <stdlib.h>

#include "claim.h"
#include "real.h"

/* A piece of physical memory; guarded by process->chunks. */
struct chunk {
    uint64_t units;
    uint32_t card;
    uint32_t handles;
    uint32_t mappings;
    bool exported;
    bool imported; /* units is 0 */
    struct chunk *next_held;
};

static struct chunk *chunk_of(const struct entry *e)
{
    return (struct chunk *)(uintptr_t)e->tag;
}

/* Under the lock. */
static void drop_if_dead(struct chunk *k)
{
    if (k->handles || k->mappings)
        return;
    if (k->exported && process->imports) {
        k->next_held = process->held;
        process->held = k;
        return;
    }
    card_return(&process->card[k->card], k->units);
    if (k->imported && --process->imports == 0) {
        struct chunk *held = process->held;
        process->held = 0;
        while (held) {
            struct chunk *next = held->next_held;
            card_return(&process->card[held->card], held->units);
            free(held);
            held = next;
        }
    }
    free(k);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    struct claim c;
    struct card *card;
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    if (r || !handle || !prop)
        return REAL(cuMemCreate)(handle, bytes, prop, flags);
    if ((r = claim_location(prop->type, &prop->location, &card)) || (r = claim_card(&c, card, bytes)))
        return r;
    struct chunk *k = c.card ? malloc(sizeof *k) : 0;
    if (c.card && !k) {
        claim_abort(&c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    r = REAL(cuMemCreate)(handle, bytes, prop, flags);
    if (!c.card)
        return r;
    if (!r) {
        *k = (struct chunk){.units = c.units, .card = (uint32_t)(c.card - process->card), .handles = 1};
        struct entry e = {.key = *handle, .tag = (uintptr_t)k};
        if (map_put(&process->handles, &e))
            return CUDA_SUCCESS;
        REAL(cuMemRelease)(*handle);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    claim_abort(&c);
    free(k);
    return r;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct entry e;
    CUresult r = process_enter();
    if (r)
        return r == CUDA_ERROR_NOT_INITIALIZED ? REAL(cuMemRelease)(handle) : r;
    lock_take(&process->chunks);
    bool known = map_take(&process->handles, handle, &e);
    r = REAL(cuMemRelease)(handle);
    if (known) {
        struct chunk *k = chunk_of(&e);
        k->handles -= !r;
        if (k->handles)
            map_put(&process->handles, &e);
        else
            drop_if_dead(k);
    }
    lock_drop(&process->chunks);
    return r;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags)
{
    struct entry e;
    CUresult r = process_enter();
    if (r)
        return r == CUDA_ERROR_NOT_INITIALIZED ? REAL(cuMemExportToShareableHandle)(out, handle, type, flags) : r;
    lock_take(&process->chunks);
    r = REAL(cuMemExportToShareableHandle)(out, handle, type, flags);
    if (!r && map_get(&process->handles, handle, &e))
        chunk_of(&e)->exported = true;
    lock_drop(&process->chunks);
    return r;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *in, int type)
{
    struct entry e;
    CUresult r = process_enter();
    if (r)
        return r == CUDA_ERROR_NOT_INITIALIZED ? REAL(cuMemImportFromShareableHandle)(handle, in, type) : r;
    lock_take(&process->chunks);
    r = REAL(cuMemImportFromShareableHandle)(handle, in, type);
    if (!r && map_get(&process->handles, *handle, &e)) {
        chunk_of(&e)->handles++; /* a handle that is known here: one more of it */
    } else if (!r) {
        struct chunk *k = calloc(1, sizeof *k);
        e = (struct entry){.key = *handle, .tag = (uintptr_t)k};
        if (k && map_put(&process->handles, &e)) {
            k->handles = 1;
            k->imported = true;
            process->imports++;
        } else {
            free(k);
            REAL(cuMemRelease)(*handle);
            r = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    lock_drop(&process->chunks);
    return r;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    struct entry e;
    CUresult r = process_enter();
    if (r)
        return r == CUDA_ERROR_NOT_INITIALIZED ? REAL(cuMemMap)(ptr, bytes, offset, handle, flags) : r;
    lock_take(&process->chunks);
    r = REAL(cuMemMap)(ptr, bytes, offset, handle, flags);
    if (!r && map_get(&process->handles, handle, &e)) {
        struct entry mapping = {.key = ptr, .units = to_units(bytes), .tag = e.tag};
        if (map_put(&process->mappings, &mapping)) {
            chunk_of(&e)->mappings++;
        } else {
            REAL(cuMemUnmap)(ptr, bytes);
            r = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    lock_drop(&process->chunks);
    return r;
}

/* One call may end several mappings that lie side by side, some of them of
 * memory that is not ours to count. */
struct range {
    CUdeviceptr from, to;
};

static bool unmapped(struct entry *e, void *arg)
{
    const struct range *range = arg;
    if (e->key < range->from || e->key >= range->to)
        return false;
    struct chunk *k = chunk_of(e);
    k->mappings--;
    drop_if_dead(k);
    return true;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
    struct entry e;
    CUresult r = process_enter();
    if (r)
        return r == CUDA_ERROR_NOT_INITIALIZED ? REAL(cuMemUnmap)(ptr, bytes) : r;
    lock_take(&process->chunks);
    r = REAL(cuMemUnmap)(ptr, bytes);
    struct range left = {ptr, ptr + bytes};
    while (!r && left.from < left.to && map_take(&process->mappings, left.from, &e)) {
        left.from += e.units << SLUICE_UNIT_SHIFT;
        unmapped(&e, &(struct range){e.key, e.key + 1});
    }
    if (!r && left.from < left.to)
        map_sweep(&process->mappings, unmapped, &left);
    lock_drop(&process->chunks);
    return r;
}

struct holder {
    CUdeviceptr address;
    struct chunk *chunk;
};

static bool find_holder(struct entry *e, void *arg)
{
    struct holder *h = arg;
    if (e->key <= h->address && h->address - e->key < e->units << SLUICE_UNIT_SHIFT)
        h->chunk = chunk_of(e);
    return false;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    struct entry e;
    CUresult r = process_enter();
    if (r)
        return r == CUDA_ERROR_NOT_INITIALIZED ? REAL(cuMemRetainAllocationHandle)(handle, addr) : r;
    lock_take(&process->chunks);
    r = REAL(cuMemRetainAllocationHandle)(handle, addr);
    if (!r && map_get(&process->handles, *handle, &e)) {
        chunk_of(&e)->handles++;
    } else if (!r) {
        /* Its handles were released while it stayed mapped. */
        struct holder h = {.address = (uintptr_t)addr};
        map_sweep(&process->mappings, find_holder, &h);
        if (h.chunk) {
            e = (struct entry){.key = *handle, .tag = (uintptr_t)h.chunk};
            if (map_put(&process->handles, &e)) {
                h.chunk->handles++;
            } else {
                REAL(cuMemRelease)(*handle);
                r = CUDA_ERROR_OUT_OF_MEMORY;
            }
        }
    }
    lock_drop(&process->chunks);
    return r;
}
