/* Inside the simulated libnvidia-ml. */
#ifndef FAKEGPU_NVML_H
#define FAKEGPU_NVML_H

#include <pthread.h>

#include "../abi/nvml_abi.h"
#include "faults.h"
#include "mig.h"
#include "sim.h"

#define ML_API __attribute__((visibility("default")))

struct nvmlDevice_st {
	int card;   /* in the node file */
	int index;  /* among those visible; a MIG device's among its card's */
	int gi, ci; /* 1 + the instances that are a MIG device; 0: a card */
};

extern struct fg ml_fg;
extern struct nvmlDevice_st ml_devices[FG_MAX_CARDS];
extern int ml_devices_n;

/* NVML_SUCCESS, or why no call can work. */
nvmlReturn_t ml_ready(void);
/* The same for a call on a device, which must be one of ours and on the bus. */
nvmlReturn_t ml_device(nvmlDevice_t d, const struct fg_card_desc **desc);
/* The same for a call that also answers for MIG devices. */
nvmlReturn_t ml_any(nvmlDevice_t d, const struct fg_card_desc **desc);
/* The handle of a MIG device by its UUID. */
nvmlReturn_t ml_mig_by_uuid(const char *uuid, nvmlDevice_t *device);
/* Takes a process slot, which reading the shared state needs. */
nvmlReturn_t ml_attach(void);
/* Copies a text into the caller's buffer. */
nvmlReturn_t ml_text(char *out, unsigned length, const char *text);
void ml_pci(const struct fg_card_desc *d, nvmlPciInfo_t *out);

#endif
