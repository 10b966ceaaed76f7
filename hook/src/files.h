/* The files of a share as this process reads them. */
#ifndef SLUICE_FILES_H
#define SLUICE_FILES_H

#include <stdbool.h>

#include "sluice_layout.h"

/* The size of an open regular file; -1 if it is none. */
int64_t regular_size(int fd);

/* Reads and verifies a limit file. Returns 0, or what is wrong with it. */
const char *limit_read(const char *path, struct sluice_limit *out);

/* Verifies the bytes of a limit file. Returns 0, or what is wrong with them. */
const char *limit_check(const void *bytes, size_t n, struct sluice_limit *out);

/* Maps a grant file, read-only, not inherited by children. Returns 0, or what
 * is wrong with it. */
const char *grant_map(const char *path, const struct sluice_grant **out);

/* Takes a whole copy of a grant while the node may rewrite it. False: none to
 * be had now. */
bool grant_get(const struct sluice_grant *g, struct sluice_grant *out);

#endif
