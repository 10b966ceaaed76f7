/* libcuda: graphs.
 *
 * A graph is a list in the order of creation; a launch queues its kernels one
 * after another. Graph memory belongs to no pool: a card's share of it grows
 * at launch by what is used at once, in steps of 2 MiB, and goes back only by
 * cuDeviceGraphMemTrim. Addresses of graph memory are never reused.
 */
#include "cuda_graph.h"

#include <stdlib.h>
#include <string.h>

#define STEP (2ull << 20)

struct CUgraphExec_st {
	uint32_t magic;
	unsigned long long flags;
	size_t n;
	struct { CUgraphNodeType type; uint64_t ns; struct alloc *mem; } item[];
};

/* ---- building ---- */

struct CUgraph_st *cu_graph_new(void)
{
	struct CUgraph_st *g = calloc(1, sizeof *g);

	if (g) {
		g->magic = M_GRAPH;
		g->last = &g->first;
	}
	return g;
}

static bool graph_ok(CUgraph g)
{
	return g && g->magic == M_GRAPH;
}

CUresult cu_graph_add(CUgraph g, CUgraphNodeType type, uint64_t ns, struct alloc *mem, CUgraphNode *out)
{
	struct CUgraphNode_st *n = calloc(1, sizeof *n);

	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	n->magic = M_NODE;
	n->type = type;
	n->ns = ns;
	n->mem = mem;
	cu_lock();
	*g->last = n;
	g->last = &n->next;
	cu_unlock();
	if (out)
		*out = n;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGraphCreate(CUgraph *g, unsigned int flags)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!g || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*g = cu_graph_new();
	return *g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuGraphDestroy(CUgraph g)
{
	if (!graph_ok(g))
		return CUDA_ERROR_INVALID_VALUE;
	while (g->first) {
		struct CUgraphNode_st *n = g->first;
		g->first = n->next;
		free(n);
	}
	g->magic = M_DEAD;
	free(g);
	return CUDA_SUCCESS;
}

static CUresult deps_ok(CUgraph g, const CUgraphNode *deps, size_t n)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	return graph_ok(g) && (deps || !n) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph g, const CUgraphNode *deps, size_t n, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	uint64_t ns;
	CUresult r = deps_ok(g, deps, n);

	if (r)
		return r;
	if (!node || !p)
		return CUDA_ERROR_INVALID_VALUE;
	r = cu_kernel_ns(p->func, p->gridDimX, p->gridDimY, p->gridDimZ, p->kernelParams, p->extra, &ns);
	return r ? r : cu_graph_add(g, CU_GRAPH_NODE_TYPE_KERNEL, ns, NULL, node);
}

CU_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph g, const CUgraphNode *deps, size_t n, const CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
	CUDA_KERNEL_NODE_PARAMS_v1 old;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&old, p, sizeof old);
	if (!old.func)
		old.func = (CUfunction)p->kern;
	return cuGraphAddKernelNode(node, g, deps, n, &old);
}

CU_API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph g, const CUgraphNode *deps, size_t n)
{
	CUresult r = deps_ok(g, deps, n);

	return r ? r : cu_graph_add(g, CU_GRAPH_NODE_TYPE_EMPTY, 0, NULL, node);
}

CUresult cu_graph_address(int card, size_t size, struct alloc **out)
{
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	*out = cu_map_add(A_GRAPH, card, NULL, size, 0);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph g, const CUgraphNode *deps, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	struct alloc *a;
	int card;
	CUresult r = deps_ok(g, deps, n);

	if (r)
		return r;
	if (!node || !p)
		return CUDA_ERROR_INVALID_VALUE;
	r = cu_device_card(p->poolProps.location.id, &card);
	if (!r)
		r = cu_graph_address(card, p->bytesize, &a);
	if (r)
		return r;
	p->dptr = a->ptr;
	r = cu_graph_add(g, CU_GRAPH_NODE_TYPE_MEM_ALLOC, 0, a, node);
	if (!r)
		(*node)->place = p->poolProps;
	return r;
}

CU_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	CUdevice dev = 0;
	int card;

	if (!node || node->magic != M_NODE || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !p)
		return CUDA_ERROR_INVALID_VALUE;
	while (!cu_device_card(dev, &card) && card != node->mem->card)
		dev++;
	*p = (CUDA_MEM_ALLOC_NODE_PARAMS){ .bytesize = node->mem->size, .dptr = node->mem->ptr };
	p->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	p->poolProps.location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_DEVICE, dev };
	if (node->place.allocType)
		p->poolProps = node->place;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph g, const CUgraphNode *deps, size_t n, CUdeviceptr ptr)
{
	CUresult r = deps_ok(g, deps, n);

	if (r)
		return r;
	cu_lock();
	struct alloc *a = cu_map_find(ptr);
	cu_unlock();
	if (!node || !a || a->kind != A_GRAPH || a->ptr != ptr)
		return CUDA_ERROR_INVALID_VALUE;
	return cu_graph_add(g, CU_GRAPH_NODE_TYPE_MEM_FREE, 0, a, node);
}

CU_API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph g, const CUgraphNode *deps, size_t n, CUgraphNodeParams *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphAddKernelNode_v2(node, g, deps, n, (const CUDA_KERNEL_NODE_PARAMS_v2 *)(const void *)&p->kernel);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return cuGraphAddMemAllocNode(node, g, deps, n, &p->alloc);
	case CU_GRAPH_NODE_TYPE_MEM_FREE: return cuGraphAddMemFreeNode(node, g, deps, n, p->free.dptr);
	case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(node, g, deps, n);
	default: return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CU_API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph g, const CUgraphNode *deps, const void *edges, size_t n, CUgraphNodeParams *p)
{
	(void)edges;
	return cuGraphAddNode(node, g, deps, n, p);
}

CU_API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	if (!node || node->magic != M_NODE || !type)
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->type;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *n)
{
	size_t have = 0;

	if (!graph_ok(g) || !n)
		return CUDA_ERROR_INVALID_VALUE;
	for (struct CUgraphNode_st *i = g->first; i; i = i->next, have++)
		if (nodes && have < *n)
			nodes[have] = i;
	if (!nodes || have < *n)
		*n = have;
	return CUDA_SUCCESS;
}

/* ---- running ---- */

CU_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
	size_t n = 0;
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!out || !graph_ok(g))
		return CUDA_ERROR_INVALID_VALUE;
	for (struct CUgraphNode_st *i = g->first; i; i = i->next)
		n++;
	struct CUgraphExec_st *e = calloc(1, sizeof *e + n * sizeof e->item[0]);
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->magic = M_EXEC;
	e->flags = flags;
	for (struct CUgraphNode_st *i = g->first; i; i = i->next, e->n++) {
		e->item[e->n].type = i->type;
		e->item[e->n].ns = i->ns;
		e->item[e->n].mem = i->mem;
	}
	*out = e;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, CUgraphNode *bad, char *log, size_t len)
{
	if (bad)
		*bad = NULL;
	if (log && len)
		*log = '\0';
	return cuGraphInstantiateWithFlags(out, g, 0);
}

CU_API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *bad, char *log, size_t len)
{
	return cuGraphInstantiate(out, g, bad, log, len);
}

static bool exec_ok(CUgraphExec e)
{
	return e && e->magic == M_EXEC;
}

CU_API CUresult cuGraphExecDestroy(CUgraphExec e)
{
	CUresult r = cu_ready();

	if (r)
		return r;
	if (!exec_ok(e))
		return CUDA_ERROR_INVALID_VALUE;
	e->magic = M_DEAD;
	free(e);
	return CUDA_SUCCESS;
}

/* Memory is live while exec is set. Under the process lock, as all below. */
void cu_graph_freed(struct alloc *a)
{
	a->exec = NULL;
	fg_p->graph_used[a->card] -= cu_round(a->size);
}

static CUresult make_live(struct alloc *a, CUgraphExec e)
{
	const int card = a->card;
	const uint64_t used = fg_p->graph_used[card] + cu_round(a->size);

	if (used > fg_p->graph_reserved[card]) {
		const uint64_t want = (used + STEP - 1) / STEP * STEP;
		if (!fg_mem_take(&fg_p->fg, card, want - fg_p->graph_reserved[card]))
			return CUDA_ERROR_OUT_OF_MEMORY;
		fg_p->graph_reserved[card] = want;
		if (want > fg_p->graph_reserved_high[card])
			fg_p->graph_reserved_high[card] = want;
	}
	a->exec = e;
	fg_p->graph_used[card] = used;
	if (used > fg_p->graph_used_high[card])
		fg_p->graph_used_high[card] = used;
	return CUDA_SUCCESS;
}

/* Makes the graph's memory live, in order; all or nothing. */
static CUresult bring_memory(CUgraphExec e)
{
	CUresult r = CUDA_SUCCESS;
	size_t i;

	cu_lock();
	for (i = 0; i < e->n && !r; i++) {
		struct alloc *a = e->item[i].mem;
		if (e->item[i].type == CU_GRAPH_NODE_TYPE_MEM_FREE && a->exec)
			cu_graph_freed(a);
		if (e->item[i].type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			continue;
		if (a->exec && (e->flags & 1))
			cu_graph_freed(a); /* auto free on launch */
		r = a->exec ? CUDA_ERROR_INVALID_VALUE : make_live(a, e);
	}
	/* What failed is item i - 1; those before it were made live just now. */
	for (i = r ? i - 1 : 0; i-- > 0; )
		if (e->item[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && e->item[i].mem->exec == e)
			cu_graph_freed(e->item[i].mem);
	cu_unlock();
	return r;
}

CU_API CUresult cuGraphLaunch(CUgraphExec e, CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	if (r)
		return r;
	if (!exec_ok(e))
		return CUDA_ERROR_INVALID_VALUE;
	if (real && real->capture)
		return cu_capture_kernel(real, 0);
	r = bring_memory(e);
	for (size_t i = 0; !r && i < e->n; i++)
		if (e->item[i].type == CU_GRAPH_NODE_TYPE_KERNEL && e->item[i].ns)
			cu_stream_submitted(c, real, fg_submit(&fg_p->fg, c->card, e->item[i].ns, 0));
	return r;
}

CU_API CUresult cuGraphLaunch_ptsz(CUgraphExec e, CUstream s)
{
	return cuGraphLaunch(e, s ? s : CU_STREAM_PER_THREAD);
}

CU_API CUresult cuGraphUpload(CUgraphExec e, CUstream s)
{
	CUcontext c;
	CUstream real;
	CUresult r = cu_stream(s, &c, &real);

	return r ? r : exec_ok(e) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuGraphUpload_ptsz(CUgraphExec e, CUstream s)
{
	return cuGraphUpload(e, s);
}

CU_API CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attribute, void *value)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	cuuint64_t *v = value;
	cu_lock();
	switch (attribute) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *v = fg_p->graph_used[card]; break;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *v = fg_p->graph_used_high[card]; break;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *v = fg_p->graph_reserved[card]; break;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *v = fg_p->graph_reserved_high[card]; break;
	default: r = CUDA_ERROR_INVALID_VALUE;
	}
	cu_unlock();
	return r;
}

CU_API CUresult cuDeviceSetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attribute, void *value)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	if (!value || *(cuuint64_t *)value)
		return CUDA_ERROR_INVALID_VALUE;
	cu_lock();
	if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		fg_p->graph_used_high[card] = fg_p->graph_used[card];
	else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		fg_p->graph_reserved_high[card] = fg_p->graph_reserved[card];
	else
		r = CUDA_ERROR_INVALID_VALUE;
	cu_unlock();
	return r;
}

CU_API CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	int card;
	CUresult r = cu_device_card(dev, &card);

	if (r)
		return r;
	cu_lock();
	const uint64_t keep = (fg_p->graph_used[card] + STEP - 1) / STEP * STEP;
	if (keep < fg_p->graph_reserved[card]) {
		fg_mem_give(&fg_p->fg, card, fg_p->graph_reserved[card] - keep);
		fg_p->graph_reserved[card] = keep;
	}
	cu_unlock();
	return CUDA_SUCCESS;
}
