/*
 * Prints every value and layout of CUDA's interface that the limiter relies on,
 * one a line: compiled with -DREAL as the toolkit's cuda.h has it, without as
 * our own header. The two outputs must be the same.
 */
#ifdef REAL
#include <cuda.h>
#else
#include "cuda_abi.h"
#endif
#include <stdio.h>

#define VALUE(name)       printf("%s %lld\n", #name, (long long)(name));
#define SIZE(type)        printf("sizeof(%s) %zu\n", #type, sizeof(type));
#define FIELD(type, name) printf("%s.%s %zu+%zu\n", #type, #name, __builtin_offsetof(type, name), sizeof(((type *)0)->name));

int main(void)
{
    VALUE(CUDA_SUCCESS)
    VALUE(CUDA_ERROR_INVALID_VALUE)
    VALUE(CUDA_ERROR_OUT_OF_MEMORY)
    VALUE(CUDA_ERROR_NOT_INITIALIZED)
    VALUE(CUDA_ERROR_INVALID_CONTEXT)
    VALUE(CUDA_ERROR_NOT_FOUND)
    VALUE(CUDA_ERROR_NOT_PERMITTED)
    VALUE(CUDA_ERROR_NOT_SUPPORTED)
    VALUE(CU_STREAM_LEGACY)
    VALUE(CU_STREAM_PER_THREAD)
    VALUE(CU_STREAM_CAPTURE_STATUS_NONE)
    VALUE(CU_GET_PROC_ADDRESS_LEGACY_STREAM)
    VALUE(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
    VALUE(CU_LIMIT_PRINTF_FIFO_SIZE)
    VALUE(CU_LIMIT_MALLOC_HEAP_SIZE)
    VALUE(CU_MEM_LOCATION_TYPE_DEVICE)
    VALUE(CU_MEM_LOCATION_TYPE_HOST)
    VALUE(CU_MEM_LOCATION_TYPE_HOST_NUMA)
    VALUE(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
    VALUE(CU_MEM_ALLOCATION_TYPE_PINNED)
    VALUE(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    VALUE(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    VALUE(CUDA_ARRAY3D_SPARSE)
    VALUE(CUDA_ARRAY3D_DEFERRED_MAPPING)
    VALUE(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)
    VALUE(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
    VALUE(CU_GRAPH_NODE_TYPE_GRAPH)
    VALUE(CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    SIZE(CUdevice)
    SIZE(CUdeviceptr)
    SIZE(CUdeviceptr_v1)
    SIZE(CUmemGenericAllocationHandle)
    SIZE(CUuuid)
    SIZE(CUlimit)
    SIZE(CUdriverProcAddressQueryResult)
    SIZE(CUmemAllocationHandleType)
    SIZE(CUmemPool_attribute)
    SIZE(CUstreamCaptureStatus)
    SIZE(CUgraphNodeType)
    SIZE(CUgraphMem_attribute)
    SIZE(CUmemLocation)
    FIELD(CUmemLocation, type)
    FIELD(CUmemLocation, id)
    SIZE(CUmemAllocationProp)
    FIELD(CUmemAllocationProp, type)
    FIELD(CUmemAllocationProp, location)
    FIELD(CUmemAllocationProp, allocFlags)
    SIZE(CUmemPoolProps)
    FIELD(CUmemPoolProps, allocType)
    FIELD(CUmemPoolProps, location)
    FIELD(CUmemPoolProps, maxSize)
    SIZE(CUDA_ARRAY_DESCRIPTOR)
    FIELD(CUDA_ARRAY_DESCRIPTOR, Height)
    FIELD(CUDA_ARRAY_DESCRIPTOR, Format)
    FIELD(CUDA_ARRAY_DESCRIPTOR, NumChannels)
    SIZE(CUDA_ARRAY3D_DESCRIPTOR)
    FIELD(CUDA_ARRAY3D_DESCRIPTOR, Depth)
    FIELD(CUDA_ARRAY3D_DESCRIPTOR, Flags)
    SIZE(CUDA_ARRAY_DESCRIPTOR_v1)
    SIZE(CUDA_ARRAY3D_DESCRIPTOR_v1)
    FIELD(CUDA_ARRAY3D_DESCRIPTOR_v1, Flags)
    SIZE(CUDA_ARRAY_MEMORY_REQUIREMENTS)
    FIELD(CUDA_ARRAY_MEMORY_REQUIREMENTS, size)
    SIZE(CUDA_MEM_ALLOC_NODE_PARAMS)
    FIELD(CUDA_MEM_ALLOC_NODE_PARAMS, poolProps)
    FIELD(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize)
    FIELD(CUDA_MEM_ALLOC_NODE_PARAMS, dptr)
    return 0;
}
