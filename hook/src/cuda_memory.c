/* Linear memory, and what the program is told about memory. */
#include "claim.h"
#include "pool.h"
#include "real.h"

/* The old interface knows 32-bit addresses; drivers of today refuse it. */
CUresult cuMemAlloc(CUdeviceptr_v1 *ptr, unsigned bytes)
{
    struct claim c;
    CUresult r = claim_begin(&c, bytes);
    if (r)
        return r;
    r = REAL(cuMemAlloc)(ptr, bytes);
    return claim_end(&c, r, r ? 0 : *ptr);
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
    struct claim c;
    CUresult r = claim_begin(&c, bytes);
    if (r)
        return r;
    r = REAL(cuMemAlloc_v2)(ptr, bytes);
    return claim_end(&c, r, r ? 0 : *ptr);
}

/* Rows are padded to what the driver likes; 512 bytes is the coarsest known.
 * What it chose is known afterwards. */
enum { PITCH = 512 };

static uint64_t pitched(uint64_t width, uint64_t height)
{
    uint64_t row, bytes;
    if (__builtin_add_overflow(width, PITCH - 1, &row) ||
        __builtin_mul_overflow(row / PITCH * PITCH, height, &bytes))
        return UINT64_MAX;
    return bytes;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *ptr, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    struct claim c;
    CUresult r = claim_begin(&c, pitched(width, height));
    if (r)
        return r;
    r = REAL(cuMemAllocPitch)(ptr, pitch, width, height, element);
    if (!r && !claim_correct(&c, (uint64_t)*pitch * height)) {
        REAL(cuMemFree)(*ptr);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return claim_end(&c, r, r ? 0 : *ptr);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element)
{
    struct claim c;
    CUresult r = claim_begin(&c, pitched(width, height));
    if (r)
        return r;
    r = REAL(cuMemAllocPitch_v2)(ptr, pitch, width, height, element);
    if (!r && !claim_correct(&c, *pitch * height)) {
        REAL(cuMemFree_v2)(*ptr);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return claim_end(&c, r, r ? 0 : *ptr);
}

/* Managed memory can all migrate to the card, so all of it is charged. */
CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned flags)
{
    struct claim c;
    CUresult r = claim_begin(&c, bytes);
    if (r)
        return r;
    r = REAL(cuMemAllocManaged)(ptr, bytes, flags);
    return claim_end(&c, r, r ? 0 : *ptr);
}

/* Out of the map before the driver frees it: afterwards another thread may be
 * given the same address. */
static CUresult release(CUdeviceptr ptr, CUresult (*free_it)(CUdeviceptr))
{
    struct entry e;
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    if (r || !map_take(&process->pointers, ptr, &e))
        return free_it(ptr);
    if ((r = free_it(ptr))) {
        map_put(&process->pointers, &e);
        return r;
    }
    if (e.kind == KIND_POOLED)
        pool_settle((CUmemoryPool)(uintptr_t)e.tag);
    else
        card_return(&process->card[e.card], e.units);
    return CUDA_SUCCESS;
}

static CUresult free_v1(CUdeviceptr ptr)
{
    return REAL(cuMemFree)((CUdeviceptr_v1)ptr);
}

CUresult cuMemFree(CUdeviceptr_v1 ptr)
{
    return release(ptr, free_v1);
}

CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    return release(ptr, REAL(cuMemFree_v2));
}

/* The card whose memory the caller asks about; 0: let the driver answer. */
static struct card *reported_card(CUresult *r)
{
    CUdevice device;
    *r = process_enter();
    if (*r) {
        if (*r == CUDA_ERROR_NOT_INITIALIZED)
            *r = CUDA_SUCCESS;
        return 0;
    }
    if (REAL(cuCtxGetDevice)(&device))
        return 0;
    struct card *c = process_card(device);
    return c && !c->whole ? c : 0;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUresult r;
    struct card *c = reported_card(&r);
    if (r)
        return r;
    /* Without a card or without a place for the answer it is the driver's to
     * say what happens. */
    if ((!c || !free || !total) && ((r = REAL(cuMemGetInfo_v2)(free, total)) || !c))
        return r;
    pools_settle(c);
    if (total)
        *total = c->limit << SLUICE_UNIT_SHIFT;
    if (free)
        *free = card_room(c) << SLUICE_UNIT_SHIFT;
    return CUDA_SUCCESS;
}

static unsigned as_unsigned(uint64_t bytes)
{
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

CUresult cuMemGetInfo(unsigned *free, unsigned *total)
{
    CUresult r;
    struct card *c = reported_card(&r);
    if (r)
        return r;
    if ((!c || !free || !total) && ((r = REAL(cuMemGetInfo)(free, total)) || !c))
        return r;
    pools_settle(c);
    if (total)
        *total = as_unsigned(c->limit << SLUICE_UNIT_SHIFT);
    if (free)
        *free = as_unsigned(card_room(c) << SLUICE_UNIT_SHIFT);
    return CUDA_SUCCESS;
}

/* The driver first: it knows which devices and arguments it takes. */
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    struct card *c = r ? 0 : process_card(dev);
    r = REAL(cuDeviceTotalMem_v2)(bytes, dev);
    if (!r && bytes && c && !c->whole && *bytes > c->limit << SLUICE_UNIT_SHIFT)
        *bytes = c->limit << SLUICE_UNIT_SHIFT;
    return r;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice dev)
{
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    struct card *c = r ? 0 : process_card(dev);
    r = REAL(cuDeviceTotalMem)(bytes, dev);
    if (!r && bytes && c && !c->whole && *bytes > as_unsigned(c->limit << SLUICE_UNIT_SHIFT))
        *bytes = as_unsigned(c->limit << SLUICE_UNIT_SHIFT);
    return r;
}
