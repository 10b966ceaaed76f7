/* libcuda: names and texts of result codes. */
#include "cuda.h"

static const struct {
	CUresult code;
	const char *name, *text;
} results[] = {
#define R(name, text) { name, #name, text }
	R(CUDA_SUCCESS, "no error"),
	R(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
	R(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
	R(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
	R(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
	R(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
	R(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
	R(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
	R(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
	R(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
	R(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
	R(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
	R(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
	R(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
	R(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
	R(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
	R(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
	R(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
	R(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
	R(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
	R(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
	R(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
	R(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
	R(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
	R(CUDA_ERROR_NOT_READY, "device not ready"),
	R(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
	R(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
	R(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
	R(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
	R(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
	R(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
	R(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
	R(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
	R(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
	R(CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect to the MPS control daemon or the MPS server"),
	R(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
	R(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
	R(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not initiated in this stream"),
	R(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
	R(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream"),
	R(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
	R(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread"),
	R(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef R
};

static int row(CUresult code)
{
	for (unsigned i = 0; i < sizeof results / sizeof results[0]; i++)
		if (results[i].code == code)
			return (int)i;
	return -1;
}

CU_API CUresult cuGetErrorName(CUresult code, const char **name)
{
	const int i = row(code);

	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = i < 0 ? NULL : results[i].name;
	return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CU_API CUresult cuGetErrorString(CUresult code, const char **text)
{
	const int i = row(code);

	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = i < 0 ? NULL : results[i].text;
	return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
