/* The node file: which cards a simulated node has.
 *
 * A plain text file, one "key value" a line, written by the Go package from
 * its YAML types and read once a process by both libraries. Card keys follow
 * a "card N" line. Unknown keys are errors: a typing mistake must not silently
 * give a card other properties than the test believes.
 */
#ifndef FAKEGPU_NODE_H
#define FAKEGPU_NODE_H

#include <stdbool.h>
#include <stdint.h>

#define FG_MAX_CARDS 16

struct fg_card_desc {
	int minor;             /* /dev/nvidia<minor> */
	char name[96];         /* product name as NVML spells it */
	char uuid[64];         /* "GPU-8-4-4-4-12" */
	char serial[32];
	char board[32];        /* board part number */
	char pci[32];          /* "00000000:17:00.0" */
	unsigned pci_device;   /* device id << 16 | vendor id */
	unsigned pci_subsys;
	uint64_t memory;       /* bytes on the board */
	uint64_t reserved;     /* bytes the driver keeps for itself */
	int sms;
	int cores;             /* CUDA cores, all SMs together */
	int cc_major, cc_minor;
	int architecture;      /* NVML_DEVICE_ARCH_* */
	int brand;             /* NVML_BRAND_* */
	int numa;              /* -1 when unknown */
	int bus_width;         /* bits */
	int sm_clock, mem_clock; /* MHz, highest */
	int power_limit;       /* milliwatts */
	int mig;               /* enum fg_mig_family: how the card can be partitioned */
	int nvlinks;           /* links that each peer is reached by, in total */
	int pcie_gen, pcie_width;
	int peers[18];         /* card index at the far end of each link, -1: switch */
};

enum fg_arbitration { FG_FIFO, FG_TIMESLICE };

struct fg_node_desc {
	char driver[32];       /* "580.95.05" */
	int cuda;              /* 13000 */
	enum fg_arbitration arbitration;
	uint64_t slice_ns;     /* length of a time slice */
	uint64_t context_bytes; /* card memory that each context costs */
	uint64_t module_bytes;  /* card memory that each loaded module costs */
	int cards;
	struct fg_card_desc card[FG_MAX_CARDS];
};

/* Reads the file at path. On failure returns false with a message in err. */
bool fg_node_read(const char *path, struct fg_node_desc *n, char *err, int errlen);

#endif
