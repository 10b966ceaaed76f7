/* libnvidia-ml: where a card sits: PCI, NUMA, NVLink, peers. */
#include "nvml.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* What sits at the far end of a link that goes to a switch. */
#define SWITCH_PCI "00000000:C1:00.0"
#define SWITCH_ID 0x1af110deu

static void fill(nvmlPciInfo_t *out, const char *id, unsigned device, unsigned subsystem)
{
	memset(out, 0, sizeof *out);
	sscanf(id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
	snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
	snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
	out->pciDeviceId = device;
	out->pciSubSystemId = subsystem;
}

void ml_pci(const struct fg_card_desc *d, nvmlPciInfo_t *out)
{
	fill(out, d->pci, d->pci_device, d->pci_subsys);
}

ML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	ml_pci(desc, pci);
	return NVML_SUCCESS;
}

/* The older forms end before busId and before the subsystem. */
ML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t d, void *pci)
{
	nvmlPciInfo_t full;
	nvmlReturn_t r = nvmlDeviceGetPciInfo_v3(d, pci ? &full : NULL);

	if (!r)
		memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
	return r;
}

ML_API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t d, void *pci)
{
	nvmlPciInfo_t full;
	nvmlReturn_t r = nvmlDeviceGetPciInfo_v3(d, pci ? &full : NULL);

	if (!r)
		memcpy(pci, &full, offsetof(nvmlPciInfo_t, pciSubSystemId));
	return r;
}

ML_API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t d, unsigned *node)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!node)
		return NVML_ERROR_INVALID_ARGUMENT;
	return NVML_ERROR_NOT_SUPPORTED; /* only where the card's memory is a NUMA node */
}

ML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t d, unsigned size, unsigned long *set, int scope)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = ml_device(d, &desc);

	if (r)
		return r;
	if (!set || !size || scope < 0 || scope > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(set, 0, size * sizeof *set);
	if (desc->numa < 0 || (unsigned)desc->numa >= size * 8 * sizeof *set)
		return NVML_ERROR_NOT_SUPPORTED;
	set[(unsigned)desc->numa / (8 * sizeof *set)] |= 1ul << ((unsigned)desc->numa % (8 * sizeof *set));
	return NVML_SUCCESS;
}

/* Near cards share their bus's upper digit, then their NUMA node. */
ML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, int *level)
{
	const struct fg_card_desc *da, *db;
	unsigned domain_a, domain_b, bus_a = 0, bus_b = 0;
	nvmlReturn_t r = ml_device(a, &da);

	if (!r)
		r = ml_device(b, &db);
	if (r)
		return r;
	if (!level)
		return NVML_ERROR_INVALID_ARGUMENT;
	sscanf(da->pci, "%x:%x", &domain_a, &bus_a);
	sscanf(db->pci, "%x:%x", &domain_b, &bus_b);
	*level = a == b ? NVML_TOPOLOGY_INTERNAL :
		 bus_a >> 4 == bus_b >> 4 ? NVML_TOPOLOGY_MULTIPLE :
		 da->numa == db->numa ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int *same)
{
	const struct fg_card_desc *da, *db;
	nvmlReturn_t r = ml_device(a, &da);

	if (!r)
		r = ml_device(b, &db);
	if (r)
		return r;
	if (!same)
		return NVML_ERROR_INVALID_ARGUMENT;
	*same = a == b;
	return NVML_SUCCESS;
}

static bool linked(const struct fg_card_desc *a, int b)
{
	for (int i = 0; i < a->nvlinks; i++)
		if (a->peers[i] == b || a->peers[i] < 0)
			return true;
	return false;
}

/* index 2 asks for NVLink; read, write, atomics and PCI also go over PCIe. */
ML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int index, int *status)
{
	const struct fg_card_desc *da, *db;
	nvmlReturn_t r = ml_device(a, &da);

	if (!r)
		r = ml_device(b, &db);
	if (r)
		return r;
	if (!status || index < 0 || index > 5)
		return NVML_ERROR_INVALID_ARGUMENT;
	*status = index == 2 && !linked(da, b->card) ? 5 /* NOT_SUPPORTED */ : 0;
	return NVML_SUCCESS;
}

static nvmlReturn_t link_of(nvmlDevice_t d, unsigned link, const struct fg_card_desc **desc)
{
	nvmlReturn_t r = ml_device(d, desc);

	if (r)
		return r;
	if (link >= sizeof (*desc)->peers / sizeof (*desc)->peers[0])
		return NVML_ERROR_INVALID_ARGUMENT;
	return (*desc)->nvlinks ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

ML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, unsigned *active)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = link_of(d, link, &desc);

	if (r)
		return r;
	if (!active)
		return NVML_ERROR_INVALID_ARGUMENT;
	*active = link < (unsigned)desc->nvlinks;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t d, unsigned link, unsigned *version)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = link_of(d, link, &desc);

	if (r)
		return r;
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = desc->cc_major >= 9 ? 6 : 5; /* NVLink 4 and 3 in NVML's count */
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t d, unsigned link, int capability, unsigned *result)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = link_of(d, link, &desc);

	if (r)
		return r;
	if (!result || capability < 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	*result = 1;
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned link, nvmlPciInfo_t *pci)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = link_of(d, link, &desc);

	if (r)
		return r;
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (link >= (unsigned)desc->nvlinks)
		return NVML_ERROR_NOT_SUPPORTED;
	const int peer = desc->peers[link];
	if (peer < 0 || peer >= ml_fg.node.cards)
		fill(pci, SWITCH_PCI, SWITCH_ID, 0);
	else
		ml_pci(&ml_fg.node.card[peer], pci);
	return NVML_SUCCESS;
}

ML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t d, unsigned link, void *pci)
{
	nvmlPciInfo_t full;
	nvmlReturn_t r = nvmlDeviceGetNvLinkRemotePciInfo_v2(d, link, pci ? &full : NULL);

	if (!r)
		memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
	return r;
}

/* 0 a card, 2 a switch. */
ML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, unsigned link, unsigned *type)
{
	const struct fg_card_desc *desc;
	nvmlReturn_t r = link_of(d, link, &desc);

	if (r)
		return r;
	if (!type || link >= (unsigned)desc->nvlinks)
		return NVML_ERROR_INVALID_ARGUMENT;
	*type = desc->peers[link] < 0 ? 2 : 0;
	return NVML_SUCCESS;
}
