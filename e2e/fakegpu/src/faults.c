/* Reader of the faults file; see faults.h. */
#include "faults.h"

#include <stdio.h>
#include <string.h>

static bool on_card(int card)
{
	return card >= 0 && card < FG_MAX_CARDS;
}

void fg_faults_read(const char *dir, struct fg_faults *out)
{
	char path[300], line[128], kind[16];
	unsigned long long n;
	int card;
	FILE *f;

	memset(out, 0, sizeof *out);
	snprintf(path, sizeof path, "%s/faults", dir);
	f = fopen(path, "re");
	if (!f)
		return;
	while (fgets(line, sizeof line, f)) {
		if (!strncmp(line, "unload", 6)) {
			out->unloaded = true;
		} else if (sscanf(line, "lost %d", &card) == 1 && on_card(card)) {
			out->lost[card] = true;
		} else if (sscanf(line, "xid %d %llu", &card, &n) == 2 && on_card(card) && out->xids < FG_XIDS) {
			if (sscanf(line, "xid %*d %*u %d", &out->xid[out->xids].gi) != 1)
				out->xid[out->xids].gi = -1;
			out->xid[out->xids].card = card;
			out->xid[out->xids++].code = n;
		} else if (sscanf(line, "ecc %d %15s %llu", &card, kind, &n) == 3 && on_card(card)) {
			if (!strcmp(kind, "uncorrected"))
				out->ecc_uncorrected[card] += n;
			else
				out->ecc_corrected[card] += n;
		} else if (sscanf(line, "temp %d %llu", &card, &n) == 2 && on_card(card)) {
			out->temperature[card] = (int)n;
		}
	}
	fclose(f);
}
