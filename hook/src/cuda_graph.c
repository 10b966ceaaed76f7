/*
 * Memory that graphs allocate. The driver takes it for a graph when it is
 * launched or uploaded and keeps it for the next one, outside any pool that has
 * a handle, so a card's graph memory is charged as a whole, with what is
 * reserved for it.
 *
 * What a graph may take is the sum of its allocation nodes; it is charged
 * before a launch as far as what is reserved and not used does not cover it,
 * and corrected after the launch. A launch cannot be undone: if the driver took
 * more than could be foreseen, one of its growth steps at most, that is charged
 * above the cap, and the next allocation is refused.
 */
#include <stdlib.h>

#include "claim.h"
#include "launch.h"
#include "pool.h"
#include "real.h"

enum { MIN_STEP = 2 << 20, MAX_DEPTH = 8 };

static bool attribute(const struct card *c, int which, uint64_t *value)
{
    *value = 0;
    return REAL(cuDeviceGetGraphMemAttribute)(c->device, which, value) == CUDA_SUCCESS;
}

void graphs_settle(struct card *c, bool trim)
{
    uint64_t reserved;
    if (trim)
        REAL(cuDeviceGraphMemTrim)(c->device);
    if (!attribute(c, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved))
        return;
    uint64_t now = to_units(reserved);
    if (now > c->graph_units)
        card_force(c, now - c->graph_units);
    else
        card_return(c, c->graph_units - now);
    c->graph_units = now;
}

/* Bytes by card that the nodes of a graph may take. Not SUCCESS: nobody knows
 * of which card. */
static CUresult sum_nodes(CUgraph graph, uint64_t *bytes, int depth)
{
    CUresult r = CUDA_SUCCESS;
    size_t n = 0;
    if (depth > MAX_DEPTH || REAL(cuGraphGetNodes)(graph, 0, &n) || !n)
        return CUDA_SUCCESS;
    CUgraphNode *nodes = calloc(n, sizeof *nodes);
    if (nodes && !REAL(cuGraphGetNodes)(graph, nodes, &n)) {
        for (size_t i = 0; !r && i < n; i++) {
            CUDA_MEM_ALLOC_NODE_PARAMS p;
            CUgraph child;
            int type = -1;
            REAL(cuGraphNodeGetType)(nodes[i], &type);
            if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &p)) {
                struct card *c;
                r = claim_location(p.poolProps.allocType, &p.poolProps.location, &c);
                if (c && __builtin_add_overflow(bytes[c - process->card], p.bytesize, &bytes[c - process->card]))
                    bytes[c - process->card] = SLUICE_MAX_BYTES;
            } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && !REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child)) {
                r = sum_nodes(child, bytes, depth + 1);
            }
        }
    }
    free(nodes);
    return r;
}

/* After the driver has instantiated: remembers what the graph may take. The
 * entry's tag points to the bytes by card. */
static CUresult instantiated(CUresult r, CUgraphExec *exec, CUgraph graph)
{
    if (r || !process->ready || !HAS(cuGraphMemAllocNodeGetParams))
        return r;
    uint64_t *bytes = calloc(process->cards, sizeof *bytes), all = 0;
    r = bytes ? sum_nodes(graph, bytes, 0) : CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; bytes && i < process->cards; i++)
        if (!process->card[i].whole)
            all |= bytes[i];
    struct entry e = {.key = (uintptr_t)*exec, .tag = (uintptr_t)bytes};
    if (!r && (!all || map_put(&process->execs, &e))) {
        if (!all)
            free(bytes);
        return CUDA_SUCCESS;
    }
    free(bytes);
    REAL(cuGraphExecDestroy)(*exec);
    *exec = 0;
    return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult refused(void)
{
    CUresult r = process_enter();
    return r == CUDA_ERROR_NOT_INITIALIZED ? CUDA_SUCCESS : r;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
    CUresult r = refused();
    return r ? r : instantiated(REAL(cuGraphInstantiate)(exec, graph, node, log, size), exec, graph);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
    CUresult r = refused();
    return r ? r : instantiated(REAL(cuGraphInstantiate_v2)(exec, graph, node, log, size), exec, graph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CUresult r = refused();
    return r ? r : instantiated(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CUresult r = refused();
    return r ? r : instantiated(REAL(cuGraphInstantiateWithParams)(exec, graph, params), exec, graph);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CUresult r = refused();
    return r ? r : instantiated(REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, params), exec, graph);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct entry e;
    CUresult r = refused();
    if (r)
        return r;
    bool known = map_take(&process->execs, (uintptr_t)exec, &e);
    r = REAL(cuGraphExecDestroy)(exec);
    if (known && r)
        map_put(&process->execs, &e);
    else if (known)
        free((void *)(uintptr_t)e.tag);
    return r;
}

/* The least that must be reserved on the card for bytes more. */
static uint64_t growth(const struct card *c, uint64_t bytes)
{
    uint64_t used, need;
    if (!attribute(c, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used) || __builtin_add_overflow(used, bytes, &need) ||
        need > SLUICE_MAX_BYTES)
        return SLUICE_MAX_UNITS;
    need = to_units((need + MIN_STEP - 1) / MIN_STEP * MIN_STEP);
    return need > c->graph_units ? need - c->graph_units : 0;
}

/* Under the card's pool lock: charges what the card may have to give. */
static bool make_room(struct card *c, uint64_t bytes)
{
    __atomic_store_n(&c->has_graphs, 1, __ATOMIC_RELAXED);
    for (int trimmed = 0; trimmed < 2; trimmed++) {
        graphs_settle(c, trimmed);
        uint64_t grows = growth(c, bytes);
        if (!grows)
            return true;
        if (card_charge(c, grows)) {
            c->graph_units += grows;
            return true;
        }
    }
    return false;
}

/* Cards are locked in their order, so two launches cannot wait for each other. */
static CUresult run(CUgraphExec exec, CUstream stream, bool per_thread, CUresult (*run_it)(CUgraphExec, CUstream))
{
    struct entry e;
    CUresult r = refused();
    if (r)
        return r;
    if (!map_get(&process->execs, (uintptr_t)exec, &e) || stream_capturing(stream_named(stream, per_thread)))
        return run_it(exec, stream);
    const uint64_t *bytes = (const uint64_t *)(uintptr_t)e.tag;
    uint32_t locked = 0;
    for (; !r && locked < process->cards; locked++) {
        struct card *c = &process->card[locked];
        lock_take(&c->pools);
        if (bytes[locked] && !c->whole && !make_room(c, bytes[locked]))
            r = card_refuse(c);
    }
    if (!r)
        r = run_it(exec, stream);
    for (uint32_t i = 0; i < locked; i++) {
        struct card *c = &process->card[i];
        if (bytes[i] && !c->whole)
            graphs_settle(c, false);
        lock_drop(&c->pools);
    }
    return r;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return run(exec, stream, false, REAL(cuGraphUpload));
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return run(exec, stream, true, REAL(cuGraphUpload_ptsz));
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    struct launch l;
    if (launch_free())
        return run(exec, stream, false, REAL(cuGraphLaunch));
    CUresult r = launch_begin(&l, exec, 1, 1, 1, stream_named(stream, false));
    return r ? r : launch_end(&l, run(exec, stream, false, REAL(cuGraphLaunch)));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    struct launch l;
    if (launch_free())
        return run(exec, stream, true, REAL(cuGraphLaunch_ptsz));
    CUresult r = launch_begin(&l, exec, 1, 1, 1, stream_named(stream, true));
    return r ? r : launch_end(&l, run(exec, stream, true, REAL(cuGraphLaunch_ptsz)));
}

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
    CUresult r = refused();
    if (r)
        return r;
    r = REAL(cuDeviceGraphMemTrim)(dev);
    struct card *c = process->ready ? process_card(dev) : 0;
    if (!r && c && !c->whole)
        pools_settle(c);
    return r;
}
