#define _GNU_SOURCE
#include "gate.h"

#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "real.h"

enum {
    MILLION = 1000000,
    LEAST_RATE = MILLION / 100, /* nobody waits for ever */
    BLIND_FOR_MS = 1000,
    /* With nothing done for so long, what is with the card may wait for what is
     * not let out: a kernel that spins until another one has run. */
    STUCK_MS = 500,
    FORGET_EVERY_MS = 1000,
    LEAD = 16, /* launches */
};

#define US 1000ull

__thread char gate_thread;

static inline uint64_t min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t clamp64(uint64_t v, uint64_t low, uint64_t high)
{
    return v < low ? low : v > high ? high : v;
}

static inline uint64_t parts(uint64_t v, uint64_t millionths)
{
    return (uint64_t)((double)v * (double)millionths / MILLION);
}

static inline struct sluice_account *account(const struct gate *g)
{
    return g->share[0].account;
}

static inline void grow(uint64_t *counter, uint64_t by)
{
    __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

/* ---- what is granted ---- */

/* The rates of all shares of the card. A grant that cannot be had now: what it
 * said last holds, until its heartbeat is old. */
static void read_grants(struct gate *g, uint64_t now)
{
    uint64_t rate = 0, factor = 0;
    for (unsigned i = 0; i < g->shares; i++) {
        struct gate_share *s = &g->share[i];
        uint32_t sequence = __atomic_load_n(&s->grant->sequence, __ATOMIC_ACQUIRE);
        struct sluice_grant grant;
        if ((sequence != s->sequence || !s->heartbeat) && grant_get(s->grant, &grant)) {
            s->sequence = sequence;
            s->rate = grant.core_rate_ppm;
            s->fallback = grant.core_fallback_ppm;
            s->heartbeat = grant.heartbeat_ns;
            factor = grant.busy_factor_ppm;
            if (i == 0)
                g->factor = factor && factor < MILLION ? factor : MILLION;
        }
        rate += now < s->heartbeat + GATE_STALE ? s->rate : s->fallback;
    }
    g->rate = clamp64(rate, LEAST_RATE, MILLION);
}

/* Of several processes that come at once, the one that moves the clock gives.
 * If it is killed in between, what it should have given is lost, which is at
 * most a window's. A long kernel is charged at its end: what is granted while it
 * runs, for `busy`, is for it, and does not run over. */
static void fill(struct gate *g, uint64_t now, uint64_t busy)
{
    struct sluice_account *a = account(g);
    uint64_t filled = __atomic_load_n(&a->core_filled_ns, __ATOMIC_RELAXED), to = now;
    uint64_t window = GATE_WINDOW + min64(busy, GATE_DEBT);
    uint64_t most = parts(window, g->rate), owed = parts(GATE_DEBT, g->rate), give;
    if (g->windows)
        to = now / GATE_WINDOW * GATE_WINDOW;
    if (filled == to)
        return;
    if (filled > now || !filled) /* new, or written by somebody who should not */
        give = parts(GATE_WINDOW / 5, g->rate);
    else
        give = parts(min64(to > filled ? to - filled : 0, window), g->rate);
    if (!give || !__atomic_compare_exchange_n(&a->core_filled_ns, &filled, to, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    int64_t has = __atomic_load_n(&a->core_tokens_ns, __ATOMIC_RELAXED), next;
    do {
        next = has < -(int64_t)owed ? -(int64_t)owed : has;
        next += (int64_t)give;
        if (next > (int64_t)most)
            next = (int64_t)most;
    } while (!__atomic_compare_exchange_n(&a->core_tokens_ns, &has, next, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

static inline int64_t tokens(const struct gate *g)
{
    return __atomic_load_n(&account(g)->core_tokens_ns, __ATOMIC_RELAXED);
}

/* The whole card is granted: nobody else wants it. */
static inline bool unlimited(const struct gate *g)
{
    return g->rate >= MILLION;
}

static void charge(struct gate *g, uint64_t busy)
{
    struct sluice_account *a = account(g);
    uint64_t charged = parts(busy, g->factor);
    __atomic_fetch_sub(&a->core_tokens_ns, (int64_t)charged, __ATOMIC_RELAXED);
    grow(&a->core_busy_ns, busy);
    grow(&a->core_charged_ns, charged);
    grow(&a->slot[g->share[0].slot].busy_ns, busy);
}

/* ---- what launches cost ---- */

static void forget_kernels(struct gate *g, uint64_t now)
{
    if (now - g->forgot < FORGET_EVERY_MS * GATE_MS)
        return;
    g->forgot = now;
    __atomic_store_n(&g->generation, g->generation + 0x9e3779b97f4a7c15ull, __ATOMIC_RELAXED);
}

static void learn(struct gate *g, const struct gate_sample *s, uint64_t busy, uint64_t now)
{
    if (s->key) {
        struct gate_kernel *k = gate_kernel(g, s->key);
        uint64_t cost = parts(busy, MILLION * (uint64_t)MILLION / g->scale) + 1;
        g->mean = g->mean ? (15 * g->mean + cost) / 16 : cost;
        /* One that was short may be the next time what launches of this program
         * are on the average. */
        if (k->key == s->key)
            cost = (3 * k->cost + cost) / 4;
        if (cost < g->mean / 4)
            cost = g->mean / 4;
        __atomic_store_n(&k->cost, cost, __ATOMIC_RELAXED);
        __atomic_store_n(&k->key, s->key, __ATOMIC_RELAXED);
        return;
    }
    uint64_t expected = parts(s->cost, g->scale) + 1;
    uint64_t ratio = clamp64((uint64_t)((double)busy * MILLION / (double)expected), MILLION / 8, MILLION * 8);
    if (ratio > 4 * MILLION)
        forget_kernels(g, now);
    /* Others' turns make work longer than it is; nothing makes it shorter. */
    g->scale = clamp64((3 * g->scale + parts(g->scale, ratio)) / 4, MILLION, MILLION * 16);
}

static inline uint64_t expected(const struct gate *g, uint64_t cost)
{
    return parts(cost, g->scale);
}

static uint64_t outstanding(const struct gate *g)
{
    uint64_t sum = g->open;
    for (const struct gate_lane *lane = g->lanes; lane; lane = lane->next)
        for (unsigned i = 0; i < lane->samples; i++)
            sum += lane->sample[i].cost;
    return expected(g, sum);
}

/* How much may be with the card before a launch waits. It is no more than some
 * launches: a kernel whose time is in its arguments may take a thousand times
 * what is known of it, and nobody can see that before one has ended. Where
 * others want the card, too, it is the less the less is granted, for all of it
 * will be owed. */
static uint64_t bound(const struct gate *g)
{
    int64_t has = tokens(g);
    if (unlimited(g))
        return clamp64(2 * LEAD * expected(g, g->mean), GATE_SAMPLE, GATE_OUTSTANDING);
    return min64(clamp64(LEAD * expected(g, g->mean), GATE_SAMPLE, GATE_OUTSTANDING),
                 (has > 0 ? (uint64_t)has : 0) + parts(GATE_OUTSTANDING, g->rate));
}

/* ---- streams that cannot be sampled ---- */

static bool is_blind(const struct gate *g, CUstream stream, uint64_t now)
{
    for (unsigned i = 0; i < GATE_BLIND; i++)
        if (g->blind[i].stream == stream && now < g->blind[i].until)
            return true;
    return false;
}

static void make_blind(struct gate *g, CUstream stream, uint64_t now)
{
    unsigned at = 0;
    for (unsigned i = 0; i < GATE_BLIND; i++)
        if (g->blind[i].until < g->blind[at].until)
            at = i;
    g->blind[at].stream = stream;
    g->blind[at].until = now + BLIND_FOR_MS * GATE_MS;
}

/* ---- events ---- */

static CUevent take_event(struct gate_lane *lane)
{
    CUevent e = 0;
    if (lane->spares)
        return lane->spare[--lane->spares];
    return REAL(cuEventCreate)(&e, 0) ? 0 : e;
}

static void put_event(struct gate_lane *lane, CUevent e)
{
    if (e && lane->spares < sizeof lane->spare / sizeof lane->spare[0])
        lane->spare[lane->spares++] = e;
}

static CUevent record(struct gate *g, struct gate_lane *lane, CUstream stream, uint64_t now)
{
    CUevent e = take_event(lane);
    if (e && REAL(cuEventRecord)(e, stream) == CUDA_SUCCESS)
        return e;
    put_event(lane, e);
    make_blind(g, stream, now);
    return 0;
}

static bool elapsed(CUevent from, CUevent to, int64_t *ns)
{
    float ms;
    if (!from || REAL(cuEventElapsedTime)(&ms, from, to))
        return false;
    *ns = (int64_t)((double)ms * 1e6);
    return true;
}

static uint64_t complete(struct gate *g, struct gate_lane *lane, struct gate_sample *s, uint64_t now)
{
    int64_t since_last = 0, since_begin = 0, busy;
    bool by_last = elapsed(lane->last, s->end, &since_last);
    bool by_begin = elapsed(s->begin, s->end, &since_begin);
    if (by_last && by_begin)
        busy = since_last < since_begin ? since_last : since_begin;
    else if (by_last || by_begin)
        busy = by_last ? since_last : since_begin;
    else
        busy = (int64_t)(now - (s->launched > g->charged_at ? s->launched : g->charged_at));
    if (busy < 0) /* it ended before what was seen to end last */
        busy = 0;
    uint64_t ns = (uint64_t)busy;
    if (s->exact)
        learn(g, s, ns, now);
    else
        ns = min64(ns, expected(g, s->cost) * 5 / 4 + 100 * US);
    charge(g, ns);
    g->charged_at = now;
    put_event(lane, s->begin);
    if (!by_last || since_last > 0) {
        put_event(lane, lane->last);
        lane->last = s->end;
    } else {
        put_event(lane, s->end);
    }
    return ns;
}

/* Charges what is done, and tells how much; or for how long what is not done
 * has been with the card, if that is more. Streams keep their order: behind one that is not done
 * nothing of its stream is. */
static uint64_t harvest(struct gate *g, struct gate_lane *lane, uint64_t now)
{
    CUstream waits = 0;
    unsigned left = 0;
    uint64_t busy = 0;
    for (unsigned i = 0; i < lane->samples; i++) {
        struct gate_sample s = lane->sample[i];
        if (left && s.stream == waits) {
            lane->sample[left++] = s;
            continue;
        }
        CUresult r = REAL(cuEventQuery)(s.end);
        if (r == CUDA_ERROR_NOT_READY) {
            waits = s.stream;
            lane->sample[left++] = s;
        } else if (r == CUDA_SUCCESS) {
            busy += complete(g, lane, &s, now);
        } else {
            charge(g, expected(g, s.cost));
            make_blind(g, s.stream, now);
        }
    }
    lane->samples = left;
    if (left && now - lane->sample[0].launched > busy)
        busy = now - lane->sample[0].launched;
    return busy;
}

static uint64_t harvest_all(struct gate *g, uint64_t now)
{
    uint64_t busy = 0;
    for (struct gate_lane *lane = g->lanes; lane; lane = lane->next)
        busy += harvest(g, lane, now);
    return busy;
}

static struct gate_lane *lane_of(struct gate *g, CUcontext context)
{
    struct gate_lane *lane = g->lanes;
    while (lane && lane->context != context)
        lane = lane->next;
    if (lane || !context || !(lane = calloc(1, sizeof *lane)))
        return lane;
    lane->context = context;
    lane->next = g->lanes;
    return g->lanes = lane;
}

static void push(struct gate *g, struct gate_lane *lane, struct gate_sample s)
{
    if (lane->samples < GATE_SAMPLES) {
        lane->sample[lane->samples++] = s;
        return;
    }
    charge(g, expected(g, s.cost)); /* threads that came together */
    put_event(lane, s.begin);
    put_event(lane, s.end);
}

/* An event behind what is open, so that its end is seen; where that cannot be,
 * it is charged as expected. */
static void close_open(struct gate *g, struct gate_lane *lane, CUstream stream, uint64_t now)
{
    uint64_t open = __atomic_exchange_n(&g->open, 0, __ATOMIC_RELAXED);
    if (!open)
        return;
    bool mine = g->tag == gate_tag(stream) && lane->samples < GATE_SAMPLES && !is_blind(g, stream, now);
    CUevent end = mine ? record(g, lane, stream, now) : 0;
    if (end)
        push(g, lane, (struct gate_sample){.end = end, .stream = stream, .cost = open, .launched = now, .exact = lane->samples > 0});
    else
        charge(g, expected(g, open));
}

/* ---- a launch ---- */

static int relaxed(void)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return REAL(cuThreadExchangeStreamCaptureMode)(&mode) ? -1 : mode;
}

static void as_before(int mode)
{
    if (mode >= 0)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

/* For how long to wait before looking again; 0: not at all. */
static uint64_t must_wait(const struct gate *g, const struct gate_lane *lane, const struct gate_launch *l, bool *throttled)
{
    int64_t has = tokens(g);
    *throttled = !unlimited(g) && has <= 0;
    if (*throttled)
        return clamp64((uint64_t)((double)(1 - has) * MILLION / (double)g->rate), 20 * US, 2 * GATE_MS);
    if (!lane->samples)
        return 0;
    uint64_t first = expected(g, lane->sample[0].cost);
    uint64_t look = clamp64(first / 8, 30 * US, GATE_MS / 2);
    if (lane->samples >= GATE_SAMPLES - 1)
        return look;
    if (outstanding(g) > bound(g) && !(unlimited(g) && lane->samples < 2))
        return look;
    /* Of a kernel that was never seen to end there is one at a time. */
    for (unsigned i = 0; l->single && i < lane->samples; i++)
        if (lane->sample[i].key == l->key)
            return look;
    return 0;
}

static void count_throttled(struct gate *g, uint64_t since, uint64_t now)
{
    if (since < g->throttled_to) /* another thread waited, too */
        since = g->throttled_to;
    if (now > since)
        grow(&account(g)->core_throttled_ns, now - since);
    g->throttled_to = now;
}

static bool is_known(struct gate *g, uint64_t key, uint64_t *cost)
{
    const struct gate_kernel *k = gate_kernel(g, key);
    /* Until something was seen, a kernel is taken for a long one. */
    *cost = k->key == key ? k->cost : g->mean ? g->mean : GATE_OUTSTANDING + GATE_OUTSTANDING / 2;
    return k->key == key;
}

void gate_enter(struct gate *g, struct gate_launch *l, uint64_t key, CUstream stream)
{
    CUcontext context = 0;
    uint64_t begun = gate_now();
    int mode = relaxed();
    memset(l, 0, sizeof *l);
    l->key = key;
    l->stream = stream;
    REAL(cuCtxGetCurrent)(&context);
    lock_take(&g->lock);
    for (;;) {
        uint64_t now = gate_now();
        bool throttled;
        if (!(l->lane = lane_of(g, context)))
            break; /* the driver will say that there is no context */
        grow(&account(g)->core_asked, 1);
        read_grants(g, now);
        fill(g, now, harvest_all(g, now));
        l->blind = is_blind(g, stream, now);
        l->single = !is_known(g, key, &l->cost) && !l->blind;
        uint64_t ns = must_wait(g, l->lane, l, &throttled);
        if (!throttled && now - (begun > g->charged_at ? begun : g->charged_at) > STUCK_MS * GATE_MS)
            ns = 0;
        if (ns || l->single || l->blind || g->tag != gate_tag(stream))
            close_open(g, l->lane, stream, now);
        if (!ns) {
            l->exact = l->lane->samples > 0;
            if (!l->blind && !l->exact && !g->open) {
                l->begin = record(g, l->lane, stream, now);
                l->blind = !l->begin;
                l->exact = true;
            }
            break;
        }
        lock_drop(&g->lock);
        as_before(mode);
        gate_sleep(ns);
        mode = relaxed();
        lock_take(&g->lock);
        if (throttled) {
            begun = gate_now();
            count_throttled(g, now, begun);
        }
    }
    lock_drop(&g->lock);
    as_before(mode);
}

/* How much may be launched before the next look. */
static uint64_t room(const struct gate *g, const struct gate_lane *lane, const struct gate_launch *l)
{
    uint64_t out = outstanding(g), may = GATE_SAMPLE;
    /* Between two contexts, or where a kernel must be alone to be learnt. */
    if (g->lanes->next || l->blind || !l->exact || lane->samples >= GATE_SAMPLES - 1 || out >= bound(g))
        return 0;
    may = min64(may, bound(g) - out);
    if (!unlimited(g)) {
        int64_t has = tokens(g);
        may = min64(may, has > 0 ? (uint64_t)has : 0);
    }
    return parts(may, MILLION * (uint64_t)MILLION / g->scale);
}

void gate_leave(struct gate *g, struct gate_launch *l, CUresult r)
{
    if (!l->lane)
        return;
    int mode = relaxed();
    lock_take(&g->lock);
    uint64_t now = gate_now();
    struct gate_lane *lane = l->lane;
    CUevent end = r || l->blind ? 0 : record(g, lane, l->stream, now);
    if (end) {
        uint64_t open = __atomic_exchange_n(&g->open, 0, __ATOMIC_RELAXED);
        push(g, lane, (struct gate_sample){.begin = l->begin, .end = end, .stream = l->stream, .key = open ? 0 : l->key,
                                           .cost = open + l->cost, .launched = now, .exact = l->exact});
    } else {
        put_event(lane, l->begin);
        l->blind = true;
        if (!r)
            charge(g, expected(g, l->cost));
    }
    __atomic_store_n(&g->tag, gate_tag(l->stream), __ATOMIC_RELAXED);
    __atomic_store_n(&g->room, room(g, lane, l), __ATOMIC_RELAXED);
    lock_drop(&g->lock);
    as_before(mode);
}

void gate_forget(struct gate *g, CUcontext context)
{
    lock_take(&g->lock);
    for (struct gate_lane **at = &g->lanes; *at; at = &(*at)->next) {
        struct gate_lane *lane = *at;
        if (lane->context != context)
            continue;
        for (unsigned i = 0; i < lane->samples; i++)
            charge(g, expected(g, lane->sample[i].cost));
        *at = lane->next;
        free(lane);
        __atomic_store_n(&g->tag, 0, __ATOMIC_RELAXED);
        break;
    }
    lock_drop(&g->lock);
}

void gate_begin(struct gate *g)
{
    g->scale = g->factor = MILLION;
    g->rate = LEAST_RATE;
}
