/* libcuda: arrays. They are opaque: only their memory is simulated. Sparse
 * and deferred-mapping arrays have none until memory is mapped into them. */
#include "cuda.h"

#include <stdlib.h>

struct CUarray_st {
	uint32_t magic;
	CUcontext ctx;
	uint64_t taken;
	unsigned levels;             /* 0: a plain array */
	CUDA_ARRAY3D_DESCRIPTOR desc;
	struct CUarray_st *parent;   /* of a mipmapped array's level */
	struct CUarray_st *next;
};

static uint64_t element(CUarray_format f)
{
	switch (f) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8: return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF: return 2;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT: return 4;
	default: return 0;
	}
}

/* Bytes of one level; rows are a multiple of 512 as the card lays them out. */
static CUresult bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level, uint64_t *out)
{
	const uint64_t e = element(d->Format) * d->NumChannels;
	const uint64_t w = d->Width >> level ? d->Width >> level : 1;
	const uint64_t h = d->Height >> level ? d->Height >> level : 1;
	const uint64_t z = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) ? d->Depth : d->Depth >> level;
	uint64_t n;

	if (!e || !d->Width || (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_mul_overflow(w, e, &n) || n > UINT64_MAX - 511 ||
	    __builtin_mul_overflow(cu_round(n), h, &n) || __builtin_mul_overflow(n, z ? z : 1, &n))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = n;
	return CUDA_SUCCESS;
}

static CUresult create(struct CUarray_st **out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	CUcontext c;
	uint64_t sum = 0, n;
	CUresult r = cu_current(&c);

	if (r)
		return r;
	if (!out || !d)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned l = 0; l < (levels ? levels : 1); l++) {
		r = bytes_of(d, l, &n);
		if (r)
			return r;
		sum += n;
	}
	if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		sum = 0;
	struct CUarray_st *a = calloc(1, sizeof *a);
	if (!a || (sum && !fg_mem_take(&fg_p->fg, c->card, sum))) {
		free(a);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	a->magic = levels ? M_MIPMAP : M_ARRAY;
	a->ctx = c;
	a->taken = sum;
	a->levels = levels;
	a->desc = *d;
	cu_lock();
	a->next = c->arrays;
	c->arrays = a;
	cu_unlock();
	*out = a;
	return CUDA_SUCCESS;
}

/* Under the process lock. */
static void end_array(struct CUarray_st *a)
{
	if (a->taken)
		fg_mem_give(&fg_p->fg, a->ctx->card, a->taken);
	a->magic = M_DEAD;
	free(a);
}

static CUresult destroy(struct CUarray_st *a, enum magic kind)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!a || a->magic != (uint32_t)kind)
		return CUDA_ERROR_INVALID_HANDLE;
	cu_lock();
	for (struct CUarray_st **at = &a->ctx->arrays; *at; )
		if (*at == a || (*at)->parent == a) {
			struct CUarray_st *gone = *at;
			*at = gone->next;
			if (gone != a)
				end_array(gone);
		} else {
			at = &(*at)->next;
		}
	end_array(a);
	cu_unlock();
	return CUDA_SUCCESS;
}

void cu_arrays_end(CUcontext ctx)
{
	while (ctx->arrays) {
		struct CUarray_st *a = ctx->arrays;
		ctx->arrays = a->next;
		end_array(a);
	}
}

CU_API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	return create(array, d, 0);
}

CU_API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d)
{
	CUDA_ARRAY3D_DESCRIPTOR full = { 0 };

	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	full.Width = d->Width;
	full.Height = d->Height;
	full.Format = d->Format;
	full.NumChannels = d->NumChannels;
	return create(array, &full, 0);
}

/* The descriptors of 2008 have 32-bit extents. */
struct old_descriptor { unsigned int Width, Height; CUarray_format Format; unsigned int NumChannels; };
struct old_descriptor3 { unsigned int Width, Height, Depth; CUarray_format Format; unsigned int NumChannels, Flags; };

CU_API CUresult cuArrayCreate(CUarray *array, const struct old_descriptor *d)
{
	CUDA_ARRAY_DESCRIPTOR now;

	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	now = (CUDA_ARRAY_DESCRIPTOR){ d->Width, d->Height, d->Format, d->NumChannels };
	return cuArrayCreate_v2(array, &now);
}

CU_API CUresult cuArray3DCreate(CUarray *array, const struct old_descriptor3 *d)
{
	CUDA_ARRAY3D_DESCRIPTOR now;

	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	now = (CUDA_ARRAY3D_DESCRIPTOR){ d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags };
	return create(array, &now, 0);
}

CU_API CUresult cuArrayDestroy(CUarray array)
{
	return destroy(array, M_ARRAY);
}

CU_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray array)
{
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	if (!array || array->magic != M_ARRAY)
		return CUDA_ERROR_INVALID_HANDLE;
	*d = array->desc;
	return CUDA_SUCCESS;
}

CU_API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice dev)
{
	uint64_t n;
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!array || array->magic != M_ARRAY)
		return CUDA_ERROR_INVALID_HANDLE;
	r = bytes_of(&array->desc, 0, &n);
	*out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){ .size = n, .alignment = 512 };
	return r;
}

CU_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	if (!levels || levels > 32)
		return CUDA_ERROR_INVALID_VALUE;
	return create((struct CUarray_st **)array, d, levels);
}

CU_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	return destroy((struct CUarray_st *)array, M_MIPMAP);
}

CU_API CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray array, unsigned int level)
{
	struct CUarray_st *m = (struct CUarray_st *)array;
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!m || m->magic != M_MIPMAP)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || level >= m->levels)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUarray_st *a = calloc(1, sizeof *a);
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*a = (struct CUarray_st){ .magic = M_ARRAY, .ctx = m->ctx, .desc = m->desc, .parent = m };
	cu_lock();
	a->next = m->ctx->arrays;
	m->ctx->arrays = a;
	cu_unlock();
	*out = a;
	return CUDA_SUCCESS;
}
