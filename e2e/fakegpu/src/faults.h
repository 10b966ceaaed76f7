/* Faults that a test writes to the node's "faults" file, one a line:
 *
 *   unload                 the kernel module is gone: nothing initialises
 *   lost CARD              the card fell off the bus
 *   xid CARD CODE [GI]     an XID event, of the card or of a GPU instance of it;
 *                          each line is delivered once
 *   ecc CARD KIND N        N memory errors, KIND corrected or uncorrected
 *   temp CARD C            temperature, degrees
 *
 * The file is read again whenever it changed.
 */
#ifndef FAKEGPU_FAULTS_H
#define FAKEGPU_FAULTS_H

#include "node.h"

#define FG_XIDS 256

struct fg_faults {
	bool unloaded;
	bool lost[FG_MAX_CARDS];
	uint64_t ecc_corrected[FG_MAX_CARDS], ecc_uncorrected[FG_MAX_CARDS];
	int temperature[FG_MAX_CARDS];   /* 0: none told */
	int xids;                        /* of the lines told, the first FG_XIDS */
	struct { int card; uint64_t code; int gi; } xid[FG_XIDS]; /* gi < 0: the card */
};

void fg_faults_read(const char *dir, struct fg_faults *out);

#endif
