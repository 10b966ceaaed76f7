/* Reader of the node file; see node.h. */
#include "node.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { K_INT, K_U32, K_U64, K_STR };

struct key {
	const char *name;
	enum kind kind;
	size_t off, len;
};

#define NODE_KEY(n, k, f) { n, k, offsetof(struct fg_node_desc, f), sizeof(((struct fg_node_desc *)0)->f) }
#define CARD_KEY(n, k, f) { n, k, offsetof(struct fg_card_desc, f), sizeof(((struct fg_card_desc *)0)->f) }

static const struct key node_keys[] = {
	NODE_KEY("driver", K_STR, driver),
	NODE_KEY("cuda", K_INT, cuda),
	NODE_KEY("slice_ns", K_U64, slice_ns),
	NODE_KEY("context_bytes", K_U64, context_bytes),
	NODE_KEY("module_bytes", K_U64, module_bytes),
};

static const struct key card_keys[] = {
	CARD_KEY("minor", K_INT, minor),
	CARD_KEY("name", K_STR, name),
	CARD_KEY("uuid", K_STR, uuid),
	CARD_KEY("serial", K_STR, serial),
	CARD_KEY("board", K_STR, board),
	CARD_KEY("pci", K_STR, pci),
	CARD_KEY("pci_device", K_U32, pci_device),
	CARD_KEY("pci_subsys", K_U32, pci_subsys),
	CARD_KEY("memory", K_U64, memory),
	CARD_KEY("reserved", K_U64, reserved),
	CARD_KEY("sms", K_INT, sms),
	CARD_KEY("cores", K_INT, cores),
	CARD_KEY("cc_major", K_INT, cc_major),
	CARD_KEY("cc_minor", K_INT, cc_minor),
	CARD_KEY("architecture", K_INT, architecture),
	CARD_KEY("brand", K_INT, brand),
	CARD_KEY("numa", K_INT, numa),
	CARD_KEY("bus_width", K_INT, bus_width),
	CARD_KEY("sm_clock", K_INT, sm_clock),
	CARD_KEY("mem_clock", K_INT, mem_clock),
	CARD_KEY("power_limit", K_INT, power_limit),
	CARD_KEY("mig", K_INT, mig),
	CARD_KEY("pcie_gen", K_INT, pcie_gen),
	CARD_KEY("pcie_width", K_INT, pcie_width),
};

static bool set(const struct key *keys, size_t n, void *base, const char *name, const char *value)
{
	for (size_t i = 0; i < n; i++) {
		if (strcmp(keys[i].name, name))
			continue;
		char *at = (char *)base + keys[i].off, *end = NULL;
		switch (keys[i].kind) {
		case K_STR:
			if (strlen(value) >= keys[i].len)
				return false;
			memset(at, 0, keys[i].len);
			memcpy(at, value, strlen(value));
			return true;
		case K_INT:
			*(int *)(void *)at = (int)strtol(value, &end, 0);
			break;
		case K_U32:
			*(unsigned *)(void *)at = (unsigned)strtoul(value, &end, 0);
			break;
		case K_U64:
			*(uint64_t *)(void *)at = strtoull(value, &end, 0);
			break;
		}
		return end != value && *end == '\0';
	}
	return false;
}

/* "peers 1 1 2 -1": one number a link. */
static bool set_peers(struct fg_card_desc *c, const char *value)
{
	const int max = (int)(sizeof c->peers / sizeof c->peers[0]);
	char *end;

	for (c->nvlinks = 0;; c->nvlinks++) {
		while (*value == ' ')
			value++;
		if (!*value)
			return true;
		if (c->nvlinks == max)
			return false;
		c->peers[c->nvlinks] = (int)strtol(value, &end, 10);
		if (end == value)
			return false;
		value = end;
	}
}

static bool apply(struct fg_node_desc *n, const char *name, const char *value)
{
	struct fg_card_desc *c = n->cards ? &n->card[n->cards - 1] : NULL;

	if (!strcmp(name, "card")) {
		if (n->cards == FG_MAX_CARDS || atoi(value) != n->cards)
			return false;
		n->cards++;
		return true;
	}
	if (!strcmp(name, "arbitration")) {
		if (!strcmp(value, "fifo"))
			n->arbitration = FG_FIFO;
		else if (!strcmp(value, "timeslice"))
			n->arbitration = FG_TIMESLICE;
		else
			return false;
		return true;
	}
	if (c && !strcmp(name, "peers"))
		return set_peers(c, value);
	if (c)
		return set(card_keys, sizeof card_keys / sizeof card_keys[0], c, name, value);
	return set(node_keys, sizeof node_keys / sizeof node_keys[0], n, name, value);
}

bool fg_node_read(const char *path, struct fg_node_desc *n, char *err, int errlen)
{
	char line[512];
	int no = 0;
	FILE *f = fopen(path, "re");

	if (!f) {
		snprintf(err, (size_t)errlen, "no node file at %s", path);
		return false;
	}
	memset(n, 0, sizeof *n);
	n->slice_ns = 2000000;
	while (fgets(line, sizeof line, f)) {
		no++;
		line[strcspn(line, "\n")] = '\0';
		if (!line[0] || line[0] == '#')
			continue;
		char *value = strchr(line, ' ');
		if (value)
			*value++ = '\0';
		if (!value || !apply(n, line, value)) {
			snprintf(err, (size_t)errlen, "%s:%d: cannot use \"%s\"", path, no, line);
			fclose(f);
			return false;
		}
	}
	fclose(f);
	if (!n->driver[0] || !n->cuda || !n->slice_ns) {
		snprintf(err, (size_t)errlen, "%s: needs driver, cuda and a slice_ns above 0", path);
		return false;
	}
	return true;
}
