/* One form of one entry point, as cuGetProcAddress knows it. */
#ifndef FAKEGPU_CUDA_PROC_H
#define FAKEGPU_CUDA_PROC_H

typedef void cu_entry(void);

struct cu_row {
	const char *name;
	int version;
	cu_entry *function, *per_thread;
};

extern const struct cu_row cu_rows[];
extern const unsigned cu_rows_n;

#endif
