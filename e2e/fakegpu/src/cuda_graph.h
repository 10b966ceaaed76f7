/* Graphs, inside the simulated libcuda. */
#ifndef FAKEGPU_CUDA_GRAPH_H
#define FAKEGPU_CUDA_GRAPH_H

#include "cuda.h"

struct CUgraphNode_st {
	uint32_t magic;
	CUgraphNodeType type;
	uint64_t ns;
	struct alloc *mem;       /* of an alloc node, or what a free node frees */
	CUmemPoolProps place;    /* of an alloc node, as it was asked for */
	struct CUgraphNode_st *next;
};

struct CUgraph_st {
	uint32_t magic;
	bool spoilt;
	struct CUgraphNode_st *first, **last;
	CUstreamCaptureMode mode;
	const void *thread;      /* that captures */
};

struct CUgraph_st *cu_graph_new(void);
CUresult cu_graph_add(CUgraph g, CUgraphNodeType type, uint64_t ns, struct alloc *mem, CUgraphNode *out);
/* The address of memory that a launch will give. */
CUresult cu_graph_address(int card, size_t size, struct alloc **out);
CUresult cuGraphDestroy(CUgraph g);

#endif
