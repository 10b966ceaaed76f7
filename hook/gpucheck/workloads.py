"""PyTorch workloads for check.py: `workloads.py NAME`, one JSON object on stdout.

Each is what users run, small: a training step, an inference loop, and the ways
of PyTorch that reach the driver by unusual doors.
"""
import json
import os
import statistics
import sys
import time


def model(torch, width=2048, layers=6):
    import torch.nn as nn
    parts = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)]
    return nn.Sequential(*parts).cuda().to(torch.bfloat16)


def median_ms(torch, step, steps=60, warm=15):
    times = []
    for i in range(steps + warm):
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if i >= warm:
            times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times)


def training(torch):
    net = model(torch)
    best = torch.optim.AdamW(net.parameters(), lr=1e-4)
    x = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)

    def step():
        best.zero_grad(set_to_none=True)
        net(x).float().pow(2).mean().backward()
        best.step()
    return {"ms": median_ms(torch, step)}


def inference(torch):
    net, x = model(torch).eval(), torch.randn(8, 2048, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        def loop():
            for _ in range(20):
                net(x)
        return {"ms": median_ms(torch, loop)}


def graphs(torch):
    """CUDA graphs: capture once, replay."""
    net, x = model(torch).eval(), torch.randn(8, 2048, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                net(x)
        torch.cuda.current_stream().wait_stream(side)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            net(x)

        def loop():
            for _ in range(50):
                g.replay()
        return {"ms": median_ms(torch, loop)}


def allocations(torch):
    """Allocation by the caching allocator, emptied every time, so that the driver is asked."""
    def step():
        held = [torch.empty(n << 20, device="cuda", dtype=torch.uint8) for n in (3, 30, 300)]
        del held
        torch.cuda.empty_cache()
    return {"ms": median_ms(torch, step)}


def compiled(torch):
    """torch.compile: Triton builds and links a launcher with the host's compiler."""
    net = torch.compile(model(torch, 512, 2).eval())
    x = torch.randn(8, 512, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        net(x)
        torch.cuda.synchronize()
    return {"ok": True}


def captures(torch):
    """A capture in each mode while other work runs on another stream."""
    x = torch.randn(512, 512, device="cuda")
    other = torch.cuda.Stream()
    for mode in ("global", "thread_local", "relaxed"):
        for _ in range(5):
            torch.cuda.synchronize()
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g, capture_error_mode=mode):
                y = x @ x
            with torch.cuda.stream(other):
                for _ in range(50):
                    x @ x
            for _ in range(50):
                g.replay()
            torch.cuda.synchronize()
            assert torch.allclose(y, x @ x, rtol=1e-2, atol=1e-1)
    return {"ok": True}


def until_refused(torch):
    """How much PyTorch gets before its OutOfMemoryError, and what it is told."""
    free, total = torch.cuda.mem_get_info()
    held, got = [], 0
    try:
        while True:
            held.append(torch.empty(64 << 20, device="cuda", dtype=torch.uint8))
            got += 64 << 20
    except torch.OutOfMemoryError as e:
        text = str(e).splitlines()[0]
    del held
    torch.cuda.empty_cache()
    again = torch.empty(64 << 20, device="cuda", dtype=torch.uint8)
    return {"free": free, "total": total, "got": got, "error": text, "again": again.numel() == 64 << 20}


class numbers:
    """A data set that uses no CUDA."""
    def __len__(self):
        return 64

    def __getitem__(self, i):
        import torch
        return torch.full((16,), float(i))


def workers(torch):
    """DataLoader workers are forked after CUDA was started."""
    torch.zeros(1, device="cuda")
    from torch.utils.data import DataLoader
    seen = sum(len(b.cuda()) for b in DataLoader(numbers(), batch_size=8, num_workers=4))
    return {"ok": seen == 64}


def forked(torch):
    """A child that is forked after CUDA was started exits cleanly, and the parent goes on."""
    x = torch.ones(1 << 20, device="cuda")
    child = os.fork()
    if child == 0:
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return {"ok": status == 0 and x.sum().item() == 1 << 20}


def libraries(torch):
    """cuBLAS, cuDNN and a NCCL ring of one."""
    x = torch.randn(1024, 1024, device="cuda", dtype=torch.float16)
    assert torch.isfinite(x @ x).all()
    conv = torch.nn.Conv2d(16, 32, 3).cuda()
    assert torch.isfinite(conv(torch.randn(4, 16, 64, 64, device="cuda"))).all()
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("PORT", "29511"))
    dist.init_process_group("nccl", rank=0, world_size=1)
    y = torch.ones(8, device="cuda")
    dist.all_reduce(y)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return {"ok": y.sum().item() == 8}


def main():
    import torch
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[1]](torch)))


if __name__ == "__main__":
    main()
