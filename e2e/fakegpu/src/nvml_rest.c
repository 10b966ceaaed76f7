/* libnvidia-ml: the functions that a driver of this version has and that this
 * one supports on no card: vGPU, clocks that can be set, and so
 * on. Programs find them and are told so. Arguments do not matter. */
#include "nvml.h"

#define REST(name)                                                          \
	ML_API nvmlReturn_t name(void);                                     \
	ML_API nvmlReturn_t name(void)                                      \
	{                                                                   \
		nvmlReturn_t r = ml_ready();                                \
		return r ? r : NVML_ERROR_NOT_SUPPORTED;                    \
	}

#include "nvml_rest.h"
