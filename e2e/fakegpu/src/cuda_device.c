/* libcuda: devices and what they are. */
#include "cuda.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

CUresult cu_device_card(CUdevice dev, int *card)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (dev < 0 || dev >= fg_p->devices)
		return CUDA_ERROR_INVALID_DEVICE;
	*card = fg_p->card_of[dev];
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetCount(int *count)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = fg_p->devices;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
	int card;
	CUresult r = cu_device_card(ordinal, &card);

	if (r)
		return r;
	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	*dev = ordinal;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	const struct fg *f = &fg_p->fg;
	char profile[32];
	if (f->gi[card]) {
		fg_mig_name(f, card, f->gi[card] - 1, f->ci[card] - 1, profile);
		snprintf(name, (size_t)len, "%s MIG %s", f->node.card[card].name, profile);
	} else {
		snprintf(name, (size_t)len, "%s", f->node.card[card].name);
	}
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = fg_room(&fg_p->fg, card);
	return CUDA_SUCCESS;
}

/* The 32-bit form of 2008 says at most 4 GiB. */
CU_API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	size_t full;
	CUresult r = cuDeviceTotalMem_v2(&full, dev);

	if (r)
		return r;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = full > UINT32_MAX ? UINT32_MAX : (unsigned)full;
	return CUDA_SUCCESS;
}

static int hex(char c)
{
	return isdigit((unsigned char)c) ? c - '0' : (tolower((unsigned char)c) - 'a' + 10) & 15;
}

int cu_sms(int card)
{
	const struct fg *f = &fg_p->fg;

	return f->gi[card] ? (int)fg_mig_sms(f, card, f->gi[card] - 1, f->ci[card] - 1) : f->node.card[card].sms;
}

/* What follows "GPU-" or "MIG-". */
static void uuid_bytes(CUuuid *uuid, const char *text)
{
	int at = 0;

	memset(uuid, 0, sizeof *uuid);
	for (const char *c = text + 4; *c && at < 32; c++)
		if (isxdigit((unsigned char)*c)) {
			uuid->bytes[at / 2] = (char)(uuid->bytes[at / 2] << 4 | hex(*c));
			at++;
		}
}

CU_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	int card;
	char mig[48];
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	const struct fg *f = &fg_p->fg;
	if (f->gi[card])
		fg_mig_uuid(f, card, f->gi[card] - 1, f->ci[card] - 1, mig);
	uuid_bytes(uuid, f->gi[card] ? mig : f->node.card[card].uuid);
	return CUDA_SUCCESS;
}

/* The older form names the card also where it is partitioned. */
CU_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	uuid_bytes(uuid, fg_p->fg.node.card[card].uuid);
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!id || len < 13)
		return CUDA_ERROR_INVALID_VALUE;
	/* CUDA spells the domain with four digits, NVML with eight. */
	snprintf(id, (size_t)len, "%s", fg_p->fg.node.card[card].pci + 4);
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!dev || !id)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < fg_p->devices; i++) {
		const char *pci = fg_p->fg.node.card[fg_p->card_of[i]].pci;
		if (!strcasecmp(pci, id) || !strcasecmp(pci + 4, id)) {
			*dev = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CU_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = fg_p->fg.node.card[card].cc_major;
	*minor = fg_p->fg.node.card[card].cc_minor;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
	int card;
	unsigned domain = 0, bus = 0, device = 0;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	const struct fg_card_desc *d = &fg_p->fg.node.card[card];
	sscanf(d->pci, "%x:%x:%x", &domain, &bus, &device);
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: *value = 1024; break;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 2147483647; break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: *value = 65535; break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 49152; break;
	case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: *value = 65536; break;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
	case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = d->sm_clock * 1000; break;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = cu_sms(card); break;
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = (int)bus; break;
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: *value = (int)device; break;
	case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = (int)domain; break;
	case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = d->mem_clock * 1000; break;
	case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = d->bus_width; break;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 40 << 20; break;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = d->cc_major == 7 ? 1024 : d->cc_major == 8 && d->cc_minor ? 1536 : 2048; break;
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 3; break;
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = d->cc_major; break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = d->cc_minor; break;
	case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 167936; break;
	case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
	default:
		if ((int)attribute < 1 || (int)attribute > 150)
			return CUDA_ERROR_INVALID_VALUE;
		*value = 0; /* a feature that the card does not have */
	}
	return CUDA_SUCCESS;
}
