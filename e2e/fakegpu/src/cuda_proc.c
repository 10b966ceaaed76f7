/* libcuda: how programs find entry points: cuGetProcAddress and the private
 * export tables.
 *
 * Of the forms of a function the newest is returned that is not newer than the
 * version asked for; the per-thread form when the flag asks for it. A name
 * that is unknown is no error: the pointer is NULL and the status tells why.
 * A version above the driver's is an error.
 */
#include "cuda.h"
#include "cuda_proc.h"

#include <string.h>

static const struct cu_row *newest(const char *name, int version, bool *known)
{
	const struct cu_row *best = NULL;

	*known = false;
	for (unsigned i = 0; i < cu_rows_n; i++) {
		if (strcmp(cu_rows[i].name, name))
			continue;
		*known = true;
		if (cu_rows[i].version <= version && (!best || cu_rows[i].version > best->version))
			best = &cu_rows[i];
	}
	return best;
}

CU_API CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	bool known;
	int driver;

	if (!symbol || !*symbol || !out || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	if (cu_driver_version(&driver) || version > driver)
		return CUDA_ERROR_INVALID_VALUE;
	const struct cu_row *r = newest(symbol, version, &known);
	cu_entry *f = r ? r->function : NULL;
	if (r && flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && version >= 7000 && r->per_thread)
		f = r->per_thread;
	memcpy(out, &f, sizeof f);
	if (status)
		*status = f ? CU_GET_PROC_ADDRESS_SUCCESS :
			  known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}

/* The form of 11.3 has no status and says NOT_FOUND by its result. */
CU_API CUresult cuGetProcAddress(const char *symbol, void **out, int version, cuuint64_t flags)
{
	CUresult r = cuGetProcAddress_v2(symbol, out, version, flags, NULL);

	return r ? r : *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- a private table ---- */

/* The real driver hands its runtime tables of internal functions, found by
 * uuid. This one has the card's memory behind no name at all: a call through
 * it is what no interceptor of names can see. */
struct export_table {
	size_t size;
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*free)(CUdeviceptr);
};

CUresult cu_private_alloc(CUdeviceptr *ptr, size_t size);

static const struct export_table direct = { sizeof direct, cu_private_alloc, cu_free };
static const CUuuid direct_id = { "fakegpu-direct!" };

CU_API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	if (memcmp(id, &direct_id, sizeof direct_id)) {
		*table = NULL;
		return CUDA_ERROR_INVALID_VALUE;
	}
	*table = &direct;
	return CUDA_SUCCESS;
}
