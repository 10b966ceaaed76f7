/*
 * Arrays. What one takes depends on a layout that only the driver knows. It
 * tells for an array whose memory is to be mapped later, which takes none; so
 * such a twin is made, asked and destroyed. Where that is not possible the size
 * is estimated, rather too large.
 */
#include "claim.h"
#include "real.h"

enum { ROW = 512 };

/* Bytes of an element, by the format's number in cuda.h; formats that are not
 * listed there by size are block-compressed or planar: at most 16 bytes. */
static uint64_t element(int format)
{
    switch (format) {
    case 0x01: /* unsigned and signed, 8 bits */
    case 0x08:
        return 1;
    case 0x02: /* unsigned, signed and float, 16 bits */
    case 0x09:
    case 0x10:
        return 2;
    case 0x03: /* unsigned, signed and float, 32 bits */
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 16;
    }
}

static uint64_t at_least_1(uint64_t n)
{
    return n ? n : 1;
}

static uint64_t estimate(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    uint64_t sum = 0;
    for (unsigned l = 0; l < levels && l < 32; l++) {
        uint64_t bytes = element(d->Format);
        if (__builtin_mul_overflow(bytes, at_least_1(d->Width >> l), &bytes) ||
            __builtin_mul_overflow(bytes, at_least_1(d->NumChannels), &bytes) ||
            __builtin_add_overflow(bytes, ROW - 1, &bytes) ||
            __builtin_mul_overflow(bytes / ROW * ROW, at_least_1(d->Height >> l), &bytes) ||
            __builtin_mul_overflow(bytes, at_least_1(d->Depth), &bytes) || __builtin_add_overflow(sum, bytes, &sum))
            return UINT64_MAX;
    }
    return sum;
}

static uint64_t size_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    CUDA_ARRAY3D_DESCRIPTOR twin = *d;
    CUDA_ARRAY_MEMORY_REQUIREMENTS need = {0};
    CUarray array;
    CUdevice device;
    if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0; /* what is mapped into it is charged where it is made */
    if (levels > 1 || !HAS(cuArrayGetMemoryRequirements) || REAL(cuCtxGetDevice)(&device))
        return estimate(d, levels);
    twin.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (REAL(cuArray3DCreate_v2)(&array, &twin))
        return estimate(d, levels);
    CUresult r = REAL(cuArrayGetMemoryRequirements)(&need, array, device);
    REAL(cuArrayDestroy)(array);
    return r || !need.size ? estimate(d, levels) : need.size;
}

static CUresult destroy_array(uint64_t array)
{
    return REAL(cuArrayDestroy)((CUarray)(uintptr_t)array);
}

static CUresult destroy_mipmapped(uint64_t array)
{
    return REAL(cuMipmappedArrayDestroy)((CUmipmappedArray)(uintptr_t)array);
}

/* Charges for an array that d describes; what is not there is the driver's to
 * complain of. */
static CUresult begin(struct claim *c, const void *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    CUresult r = claim_begin(c, 0); /* which card, and whether it is limited */
    if (r || !c->card || !array || !d)
        return r;
    return claim_correct(c, size_of(d, levels)) ? CUDA_SUCCESS : card_refuse(c->card);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
    struct claim c;
    CUDA_ARRAY3D_DESCRIPTOR d = {0};
    if (desc)
        d = (CUDA_ARRAY3D_DESCRIPTOR){desc->Width, desc->Height, 0, desc->Format, desc->NumChannels, 0};
    CUresult r = begin(&c, array, desc ? &d : 0, 1);
    if (r)
        return r;
    r = REAL(cuArrayCreate)(array, desc);
    return claim_end_with(&c, r, r ? 0 : (uintptr_t)*array, destroy_array);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
    struct claim c;
    CUDA_ARRAY3D_DESCRIPTOR d = {0};
    if (desc)
        d = (CUDA_ARRAY3D_DESCRIPTOR){desc->Width, desc->Height, 0, desc->Format, desc->NumChannels, 0};
    CUresult r = begin(&c, array, desc ? &d : 0, 1);
    if (r)
        return r;
    r = REAL(cuArrayCreate_v2)(array, desc);
    return claim_end_with(&c, r, r ? 0 : (uintptr_t)*array, destroy_array);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
    struct claim c;
    CUDA_ARRAY3D_DESCRIPTOR d = {0};
    if (desc)
        d = (CUDA_ARRAY3D_DESCRIPTOR){desc->Width,  desc->Height,      desc->Depth,
                                      desc->Format, desc->NumChannels, desc->Flags};
    CUresult r = begin(&c, array, desc ? &d : 0, 1);
    if (r)
        return r;
    r = REAL(cuArray3DCreate)(array, desc);
    return claim_end_with(&c, r, r ? 0 : (uintptr_t)*array, destroy_array);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    struct claim c;
    CUresult r = begin(&c, array, desc, 1);
    if (r)
        return r;
    r = REAL(cuArray3DCreate_v2)(array, desc);
    return claim_end_with(&c, r, r ? 0 : (uintptr_t)*array, destroy_array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
    struct claim c;
    CUresult r = begin(&c, array, desc, levels);
    if (r)
        return r;
    r = REAL(cuMipmappedArrayCreate)(array, desc, levels);
    return claim_end_with(&c, r, r ? 0 : (uintptr_t)*array, destroy_mipmapped);
}

static CUresult destroy(uint64_t array, CUresult (*destroy_it)(uint64_t))
{
    struct entry e;
    CUresult r = process_enter();
    if (r && r != CUDA_ERROR_NOT_INITIALIZED)
        return r;
    if (r || !map_take(&process->pointers, array, &e))
        return destroy_it(array);
    if ((r = destroy_it(array)))
        map_put(&process->pointers, &e);
    else
        card_return(&process->card[e.card], e.units);
    return r;
}

CUresult cuArrayDestroy(CUarray array)
{
    return destroy((uintptr_t)array, destroy_array);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return destroy((uintptr_t)array, destroy_mipmapped);
}
