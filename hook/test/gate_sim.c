/*
 * Tenants on a card in virtual time: the gate as it is, a card that is a queue,
 * and programs that are coroutines. Nothing here depends on how busy the
 * machine is.
 *
 *     gate_sim timeslice|fifo SECONDS TICK_MS SHARES TENANT...
 *
 * A tenant is one process of a share:
 *
 *     SHARE:START_MS:STOP_MS:KERNEL_US[,KERNEL_US...][:OPTION...]
 *
 * It launches the kernels in turn, as fast as it may, from START to STOP. The
 * options are sync=N (it waits for the card after every N launches), rest=US
 * (and then does nothing for so long), streams=N (it takes turns between them),
 * fail (events cannot be recorded), and
 * same (all are one kernel with one grid, and how long it takes cannot be told
 * from that).
 *
 * Every TICK_MS it prints `tick NOW_NS` and for each share the line
 * `BUSY CHARGED THROTTLED ASKED REAL`, and reads for each share what the grant
 * is to say: `RATE FALLBACK GATED FACTOR`, or `-` to leave it as it is. REAL
 * is what the card did for the share. At the end it prints `end`, and for each
 * tenant `LAUNCHES WORST_STALL_NS MOST_QUEUED_NS`.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "gate.h"
#include "real.h"

enum { TENANTS = 16, KERNELS = 16, QUEUE = 1024, SLICE = 2000000, LAUNCH_NS = 8000, STACK = 128 << 10 };

struct CUevent_st {
    uint64_t stamp;
    bool done;
};

struct work {
    uint64_t ns;
    struct CUevent_st *event;
};

struct tenant {
    unsigned share;
    uint64_t start, stop, kernel[KERNELS], rest;
    unsigned kernels, sync, streams;
    bool fails, same, ended;
    struct gate gate;
    struct work queue[QUEUE];
    uint64_t head, tail, spent, wake, arrived[QUEUE];
    uint64_t launches, stall, queued, most_queued;
    ucontext_t self;
    char *stack;
};

static struct tenant *tenants[TENANTS], *current;
static unsigned tenant_count, share_count;
static struct sluice_account *accounts[TENANTS];
static struct sluice_grant grants[TENANTS];
static uint64_t real[TENANTS], now = 1000000000, ticket, slice_left;
static int turn = -1;
static bool fifo;
static ucontext_t scheduler;
static char contexts[1];

/* ---- the gate's surroundings ---- */

uint64_t gate_now(void)
{
    return now;
}

void gate_sleep(uint64_t ns)
{
    current->wake = now + ns;
    swapcontext(&current->self, &scheduler);
}

void *real_functions[FUNCTIONS];

void real_resolve(void)
{
}

static void wait_for_room(void)
{
    while (current->tail - current->head >= QUEUE)
        gate_sleep(20000);
}

static void submit(uint64_t ns, struct CUevent_st *event)
{
    struct tenant *t = current;
    wait_for_room();
    t->queue[t->tail % QUEUE] = (struct work){ns, event};
    t->arrived[t->tail % QUEUE] = ticket++;
    t->tail++;
    t->queued += ns;
    if (t->queued > t->most_queued)
        t->most_queued = t->queued;
}

static CUresult event_create(CUevent *e, unsigned flags)
{
    (void)flags;
    return (*e = calloc(1, sizeof **e)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult event_record(CUevent e, CUstream stream)
{
    (void)stream;
    if (current->fails)
        return CUDA_ERROR_INVALID_VALUE;
    e->done = false;
    submit(0, e);
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent e)
{
    return e->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult event_elapsed(float *ms, CUevent from, CUevent to)
{
    *ms = (float)((double)(int64_t)(to->stamp - from->stamp) / 1e6);
    return CUDA_SUCCESS;
}

static CUresult exchange_mode(int *mode)
{
    *mode = 0;
    return CUDA_SUCCESS;
}

static CUresult get_current(CUcontext *ctx)
{
    *ctx = (CUcontext)contexts;
    return CUDA_SUCCESS;
}

/* ---- the card ---- */

static struct tenant *running(void)
{
    struct tenant *best = 0;
    if (turn >= 0 && tenants[turn]->head < tenants[turn]->tail && (fifo ? tenants[turn]->spent > 0 : slice_left > 0))
        return tenants[turn];
    for (unsigned i = 1; i <= tenant_count; i++) {
        struct tenant *t = tenants[(unsigned)(turn + (int)i) % tenant_count];
        if (t->head == t->tail)
            continue;
        if (!best || (fifo && t->arrived[t->head % QUEUE] < best->arrived[best->head % QUEUE]))
            best = t;
        if (!fifo)
            break;
    }
    if (best) {
        for (unsigned i = 0; i < tenant_count; i++)
            if (tenants[i] == best)
                turn = (int)i;
        slice_left = SLICE;
    }
    return best;
}

/* Runs the card up to a time. */
static void advance(uint64_t to)
{
    while (now < to) {
        struct tenant *t = running();
        if (!t) {
            now = to;
            return;
        }
        struct work *w = &t->queue[t->head % QUEUE];
        uint64_t run = w->ns - t->spent;
        if (run > to - now)
            run = to - now;
        if (!fifo && run > slice_left)
            run = slice_left;
        now += run;
        t->spent += run;
        t->queued -= run;
        real[t->share] += run;
        slice_left -= fifo ? 0 : run;
        if (t->spent == w->ns) {
            if (w->event) {
                w->event->stamp = now;
                w->event->done = true;
            }
            t->spent = 0;
            t->head++;
        }
    }
    /* What takes no time is done as soon as it is reached. */
    for (unsigned i = 0; i < tenant_count; i++) {
        struct tenant *t = tenants[i];
        while (t->head < t->tail && t->queue[t->head % QUEUE].ns == 0) {
            if (t->queue[t->head % QUEUE].event) {
                t->queue[t->head % QUEUE].event->stamp = now;
                t->queue[t->head % QUEUE].event->done = true;
            }
            t->head++;
        }
    }
}

/* ---- tenants ---- */

static void launch(uint64_t ns, uint64_t n)
{
    struct tenant *t = current;
    struct gate *g = &t->gate;
    CUstream stream = (CUstream)(uintptr_t)(1 + (t->streams ? n % t->streams : 0));
    uint64_t begun = now;
    if (grants[t->share].core_gated) {
        unsigned kernel = t->same ? 1 : (unsigned)ns;
        uint64_t key = gate_key(g, (void *)((uintptr_t)kernel << 4), kernel, 1, 1);
        if (!gate_pass(g, key, stream)) {
            struct gate_launch l;
            gate_enter(g, &l, key, stream);
            submit(ns, 0);
            gate_leave(g, &l, CUDA_SUCCESS);
        } else {
            submit(ns, 0);
        }
    } else {
        submit(ns, 0);
    }
    if (now - begun > t->stall)
        t->stall = now - begun;
    t->launches++;
    gate_sleep(LAUNCH_NS);
}

static void live(void)
{
    struct tenant *t = current;
    gate_sleep(t->start);
    for (uint64_t n = 0; now < t->stop; n++) {
        launch(t->kernel[n % t->kernels], n);
        if (t->sync && (n + 1) % t->sync == 0) {
            while (t->head < t->tail)
                gate_sleep(20000);
            if (t->rest)
                gate_sleep(t->rest);
        }
    }
    t->ended = true;
    t->wake = UINT64_MAX;
    swapcontext(&t->self, &scheduler);
}

static void write_grant(struct sluice_grant *g, uint32_t rate, uint32_t fallback, uint32_t gated, uint32_t factor)
{
    uint32_t sequence = g->sequence;
    memset(g, 0, sizeof *g);
    g->magic = SLUICE_GRANT_MAGIC;
    g->version = SLUICE_VERSION;
    g->size = sizeof *g;
    g->heartbeat_ns = now;
    g->core_rate_ppm = rate;
    g->core_fallback_ppm = fallback;
    g->core_gated = gated;
    g->busy_factor_ppm = factor;
    g->checksum = sluice_checksum(g, offsetof(struct sluice_grant, checksum));
    g->sequence = sequence + 2;
}

static void tick(void)
{
    char line[128];
    printf("tick %llu\n", (unsigned long long)now);
    for (unsigned i = 0; i < share_count; i++)
        printf("%llu %llu %llu %llu %llu\n", (unsigned long long)accounts[i]->core_busy_ns,
               (unsigned long long)accounts[i]->core_charged_ns, (unsigned long long)accounts[i]->core_throttled_ns,
               (unsigned long long)accounts[i]->core_asked, (unsigned long long)real[i]);
    fflush(stdout);
    for (unsigned i = 0; i < share_count; i++) {
        unsigned rate, fallback, gated, factor;
        if (!fgets(line, sizeof line, stdin))
            exit(3);
        if (sscanf(line, "%u %u %u %u", &rate, &fallback, &gated, &factor) == 4)
            write_grant(&grants[i], rate, fallback, gated, factor);
    }
}

static struct tenant *parse(char *text)
{
    struct tenant *t = calloc(1, sizeof *t);
    char *colon = 0, *comma = 0;
    t->share = (unsigned)atoi(strtok_r(text, ":", &colon));
    t->start = (uint64_t)atoll(strtok_r(0, ":", &colon)) * GATE_MS;
    t->stop = now + (uint64_t)atoll(strtok_r(0, ":", &colon)) * GATE_MS;
    char *kernels = strtok_r(0, ":", &colon), *option;
    for (char *k = strtok_r(kernels, ",", &comma); k && t->kernels < KERNELS; k = strtok_r(0, ",", &comma))
        t->kernel[t->kernels++] = (uint64_t)(atof(k) * 1000);
    while ((option = strtok_r(0, ":", &colon))) {
        if (!strncmp(option, "sync=", 5))
            t->sync = (unsigned)atoi(option + 5);
        else if (!strncmp(option, "rest=", 5))
            t->rest = (uint64_t)atoll(option + 5) * 1000;
        else if (!strncmp(option, "streams=", 8))
            t->streams = (unsigned)atoi(option + 8);
        else if (!strcmp(option, "fail"))
            t->fails = true;
        else if (!strcmp(option, "same"))
            t->same = true;
    }
    return t;
}

static void simulate(uint64_t end, uint64_t every)
{
    uint64_t next = now;
    for (;;) {
        if (now >= next) {
            tick();
            next += every;
        }
        if (now >= end)
            break;
        uint64_t first = next < end ? next : end;
        for (unsigned i = 0; i < tenant_count; i++)
            if (tenants[i]->wake < first)
                first = tenants[i]->wake;
        advance(first);
        for (unsigned i = 0; i < tenant_count; i++)
            if (tenants[i]->wake <= now && !tenants[i]->ended) {
                current = tenants[i];
                swapcontext(&scheduler, &current->self);
            }
    }
}

static void settle(int argc, char **argv)
{
    share_count = (unsigned)atoi(argv[4]);
    for (unsigned i = 0; i < share_count; i++)
        accounts[i] = calloc(1, sizeof *accounts[i]);
    for (int i = 5; i < argc && tenant_count < TENANTS; i++) {
        struct tenant *t = tenants[tenant_count] = parse(argv[i]);
        t->gate.share[0] = (struct gate_share){.account = accounts[t->share], .grant = &grants[t->share], .slot = tenant_count};
        t->gate.shares = 1;
        gate_begin(&t->gate);
        getcontext(&t->self);
        t->stack = malloc(STACK);
        t->self.uc_stack.ss_sp = t->stack;
        t->self.uc_stack.ss_size = STACK;
        t->self.uc_link = &scheduler;
        makecontext(&t->self, live, 0);
        tenant_count++;
    }
}

static void report(void)
{
    printf("end\n");
    for (unsigned i = 0; i < tenant_count; i++)
        printf("%llu %llu %llu\n", (unsigned long long)tenants[i]->launches, (unsigned long long)tenants[i]->stall,
               (unsigned long long)tenants[i]->most_queued);
}

int main(int argc, char **argv)
{
    real_functions[FN_cuEventCreate] = (void *)event_create;
    real_functions[FN_cuEventRecord] = (void *)event_record;
    real_functions[FN_cuEventQuery] = (void *)event_query;
    real_functions[FN_cuEventElapsedTime] = (void *)event_elapsed;
    real_functions[FN_cuThreadExchangeStreamCaptureMode] = (void *)exchange_mode;
    real_functions[FN_cuCtxGetCurrent] = (void *)get_current;
    if (argc < 6)
        return 2;
    fifo = !strcmp(argv[1], "fifo");
    settle(argc, argv);
    simulate(now + (uint64_t)(atof(argv[2]) * 1e9), (uint64_t)(atof(argv[3]) * 1e6));
    report();
    return 0;
}
