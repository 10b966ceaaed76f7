/* The table of entry points; see cuda_entry.h. A file of its own, because it
 * declares the functions without their types: only addresses matter here. */
#include "cuda_proc.h"

#include <stddef.h>

/* A hidden declaration here would hide the function from everybody. */
#pragma GCC visibility push(default)
#define NONE cu_no_form
#define ENTRY(name, version, function, per_thread) extern cu_entry function, per_thread;
#include "cuda_entry.h"
#undef ENTRY
#pragma GCC visibility pop
#undef NONE

#define NONE NULL
const struct cu_row cu_rows[] = {
#define ENTRY(name, version, function, per_thread) { #name, version, function, per_thread },
#include "cuda_entry.h"
#undef ENTRY
};

const unsigned cu_rows_n = sizeof cu_rows / sizeof cu_rows[0];
