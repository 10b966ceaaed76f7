/*
 * A load of kernels of fixed work, by the runtime's API:
 *
 *     load SECONDS MICROSECONDS [launch|graph|cooperative|ex|flood|sleepy] [STREAMS]
 *
 * Kernels fill the card and take MICROSECONDS each when alone. Work, not time,
 * is what a kernel has: on a card that takes turns it is the only measure of a
 * share that cannot lie. Prints a line every half second, and the sum:
 *
 *     window SECOND WORK_PER_SECOND WORST_STALL_MS     work in units of one kernel
 *     total WORK_PER_SECOND
 */
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define DO(call)                                                                             \
    do {                                                                                     \
        cudaError_t e_ = (call);                                                             \
        if (e_ != cudaSuccess) {                                                             \
            fprintf(stderr, "load: %s: %s\n", #call, cudaGetErrorString(e_));                \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

__global__ void work(long rounds, float *out)
{
    float x = threadIdx.x;
    for (long i = 0; i < rounds; i++)
        x = x * 1.000001f + 0.5f;
    if (x < 0)
        *out = x;
}

using steady = std::chrono::steady_clock;

static double since(steady::time_point t) { return std::chrono::duration<double>(steady::now() - t).count(); }

static dim3 grid, block(256);
static float *out;

static double timed(long rounds, int kernels)
{
    cudaEvent_t a, b;
    float ms;
    DO(cudaEventCreate(&a));
    DO(cudaEventCreate(&b));
    DO(cudaEventRecord(a));
    for (int i = 0; i < kernels; i++)
        work<<<grid, block>>>(rounds, out);
    DO(cudaEventRecord(b));
    DO(cudaEventSynchronize(b));
    DO(cudaEventElapsedTime(&ms, a, b));
    return ms * 1e3 / kernels;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    double seconds = atof(argv[1]), us = atof(argv[2]);
    const char *how = argc > 3 ? argv[3] : "launch";
    int streams = argc > 4 ? atoi(argv[4]) : 1;
    cudaDeviceProp p;
    DO(cudaGetDeviceProperties(&p, 0));
    grid = dim3((unsigned)p.multiProcessorCount * 4);
    DO(cudaMalloc(&out, 4));
    /* ROUNDS is the work of a microsecond, found alone on the card and handed to
     * the runs that are compared, so that all have the same unit. */
    const char *known = getenv("ROUNDS");
    double rounds_per_us = known ? atof(known) : 0;
    if (!known) {
        timed(1000, 10);
        rounds_per_us = 20000 / timed(20000, 20);
        printf("rounds %.3f\n", rounds_per_us);
    }
    long rounds = (long)(rounds_per_us * us);
    std::vector<cudaStream_t> stream(streams);
    for (auto &s : stream)
        DO(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    cudaGraphExec_t exec = nullptr;
    const int in_graph = 10;
    if (!strcmp(how, "graph")) {
        cudaGraph_t g;
        DO(cudaStreamBeginCapture(stream[0], cudaStreamCaptureModeGlobal));
        for (int i = 0; i < in_graph; i++)
            work<<<grid, block, 0, stream[0]>>>(rounds, out);
        DO(cudaStreamEndCapture(stream[0], &g));
        DO(cudaGraphInstantiate(&exec, g, 0));
    }
    if (!strcmp(how, "flood")) { /* as many as the queue takes, then wait */
        auto t = steady::now();
        int n = (int)seconds;
        for (int i = 0; i < n; i++)
            work<<<grid, block, 0, stream[0]>>>(rounds, out);
        double queued = since(t);
        DO(cudaDeviceSynchronize());
        printf("queued %.3f\ntotal %.3f\n", queued, n / since(t));
        return 0;
    }
    auto begun = steady::now(), window = begun;
    double stall = 0;
    long done = 0, all = 0;
    /* At most 8 launches unfinished a stream, so that the windows are true. */
    std::vector<std::vector<cudaEvent_t>> ring(streams, std::vector<cudaEvent_t>(8));
    for (auto &r : ring)
        for (auto &e : r)
            DO(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    for (long i = 0; since(begun) < seconds; i++) {
        int s = (int)(i % streams);
        auto &event = ring[s][(i / streams) % 8];
        auto t = steady::now();
        DO(cudaEventSynchronize(event));
        int n = 1;
        if (exec) {
            DO(cudaGraphLaunch(exec, stream[s]));
            n = in_graph;
        } else if (!strcmp(how, "cooperative")) {
            void *args[] = {&rounds, &out};
            DO(cudaLaunchCooperativeKernel((void *)work, grid, block, args, 0, stream[s]));
        } else if (!strcmp(how, "ex")) {
            cudaLaunchConfig_t c = {};
            c.gridDim = grid;
            c.blockDim = block;
            c.stream = stream[s];
            DO(cudaLaunchKernelEx(&c, work, rounds, out));
        } else
            work<<<grid, block, 0, stream[s]>>>(rounds, out);
        DO(cudaEventRecord(event, stream[s]));
        double took = since(t);
        stall = took > stall ? took : stall;
        done += n;
        if (since(window) >= 0.5) {
            printf("window %.2f %.3f %.1f\n", since(begun), done / since(window), stall * 1e3);
            fflush(stdout);
            all += done;
            done = 0;
            stall = 0;
            window = steady::now();
            if (!strcmp(how, "sleepy") && since(begun) > seconds / 3 && since(begun) < seconds / 3 + 0.6) {
                DO(cudaDeviceSynchronize());
                std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 3));
                window = steady::now();
            }
        }
    }
    DO(cudaDeviceSynchronize());
    printf("total %.3f\n", (all + done) / since(begun));
    return 0;
}
