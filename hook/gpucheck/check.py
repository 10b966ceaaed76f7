#!/usr/bin/env python3
"""Checks the limiter against a real driver and a real card: `make gpu-check`.

Needs a compiler and a card; with nvcc and PyTorch it checks more. Needs no root,
no network and no container: a program is put into a "container" by its working
folder, where this build of the limiter looks for its shares, and by
LD_LIBRARY_PATH. Takes less than eight minutes. What matters most comes first,
and the report is written after every part, so that a run that is cut short
still tells.

A row's verdict is "ok" or "MISSED" against its target; rows without a target are
facts. Parts that cannot run here say so. Exit status 1 if a target was missed.
"""
import argparse
import ctypes
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOOK = os.path.dirname(HERE)
GIB, MIB = 1 << 30, 1 << 20


class CannotRun(Exception):
    """A part needs something that this machine lacks."""


class Report:
    def __init__(self, path):
        self.path, self.rows, self.part, self.facts = path, [], "", []

    def row(self, name, value, unit="", target="", ok=None):
        if isinstance(value, float):
            value = f"{value:.3g}"
        verdict = {None: "", True: "ok", False: "MISSED"}[ok]
        self.rows.append((self.part, name, value, unit, target, verdict))
        print(" ".join(str(x) for x in (f"[{self.part}]", name, value, unit, target, verdict) if x != ""), flush=True)

    def expect(self, name, value, want, unit=""):
        self.row(name, value, unit, f"= {want}", str(value) == str(want))

    def most(self, name, value, bound, unit=""):
        self.row(name, value, unit, f"<= {bound}", value <= bound)

    def near(self, name, value, want, off, unit=""):
        self.row(name, value, unit, f"{want} +- {off}", abs(value - want) <= off)

    def write(self):
        if not self.path:
            return
        lines = ["# The limiter on a real card", "", "`make gpu-check` wrote this file.", ""]
        lines += [f"- {fact}" for fact in self.facts] + [""]
        lines += ["| part | what | value | target | |", "|---|---|---|---|---|"]
        for part, name, value, unit, target, verdict in self.rows:
            cells = (part, name, f"{value} {unit}".strip(), target, verdict)
            lines.append("| " + " | ".join(str(c).replace("|", "/").replace("\n", " ") for c in cells) + " |")
        with open(self.path + ".new", "w") as f:
            f.write("\n".join(lines) + "\n")
        os.replace(self.path + ".new", self.path)

    def missed(self):
        return [r for r in self.rows if r[5] == "MISSED"]


def sh(args, timeout=60, env=None, cwd=None, text_in=None):
    """Runs a command; its output, or an error that holds what it said."""
    p = subprocess.run(args, timeout=timeout, env=env, cwd=cwd, input=text_in,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        raise RuntimeError(f"{args[0]} ended with {p.returncode}: {(p.stderr or p.stdout).strip()[-600:]}")
    return p.stdout


def first_existing(patterns):
    for pattern in patterns:
        for path in sorted(glob.glob(pattern)):
            if os.path.exists(path):
                return os.path.realpath(path)
    return None


def library_path(first):
    """LD_LIBRARY_PATH with a folder before what the caller has."""
    return ":".join([first] + [d for d in os.environ.get("LD_LIBRARY_PATH", "").split(":") if d])


def found_library(name):
    """The driver's library as the loader would find it."""
    for line in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout.splitlines():
        m = re.match(rf"\s*{re.escape(name)} \(.*x86-64.*\) => (\S+)", line)
        if m:
            return os.path.realpath(m[1])
    dirs = os.environ.get("LD_LIBRARY_PATH", "").split(":") + ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64",
                                                                 "/usr/lib/wsl/lib"]
    return first_existing([os.path.join(d, name) for d in dirs if d])


class NVML:
    """The node's view: libnvidia-ml itself, never the limiter's."""

    class Memory(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("reserved", ctypes.c_ulonglong),
                    ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    class Utilization(ctypes.Structure):
        _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.do("nvmlInit_v2")
        self.card = ctypes.c_void_p()
        self.do("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self.card))

    def do(self, name, *args):
        r = getattr(self.lib, name)(*args)
        if r:
            raise RuntimeError(f"{name} gave NVML error {r}")

    def text(self, name, *args):
        out = ctypes.create_string_buffer(96)
        self.do(name, *args, out, 96)
        return out.value.decode()

    def uuid(self):
        return self.text("nvmlDeviceGetUUID", self.card)

    def memory(self):
        m = self.Memory()
        m.version = ctypes.sizeof(m) | 2 << 24
        self.do("nvmlDeviceGetMemoryInfo_v2", self.card, ctypes.byref(m))
        return m

    def utilization(self):
        u = self.Utilization()
        self.do("nvmlDeviceGetUtilizationRates", self.card, ctypes.byref(u))
        return u.gpu


class Lab:
    """The limiter built for this machine, and the containers of the checks."""

    def __init__(self, args):
        self.dir = tempfile.mkdtemp(prefix="sluice-gpu-check-")
        self.cuda = args.driver_lib or found_library("libcuda.so.1")
        self.nvml_path = args.nvml_lib or found_library("libnvidia-ml.so.1")
        if not self.cuda or not self.nvml_path:
            raise SystemExit("gpu-check: no libcuda.so.1 and libnvidia-ml.so.1 are found: this needs a machine with an NVIDIA driver")
        self.nvml = NVML(self.nvml_path)
        self.uuid = self.nvml.uuid()
        self.nvcc = shutil.which("nvcc") or first_existing(["/usr/local/cuda*/bin/nvcc"])
        self.cuda_h = os.path.join(os.path.dirname(os.path.dirname(self.nvcc)), "include") if self.nvcc else None
        self.cuda_h = args.cuda_include or self.cuda_h
        self.out = os.path.join(self.dir, "out")
        self.driver = os.path.join(self.dir, "driver")
        self.lib = os.path.join(self.dir, "lib")
        self.native_lib = os.path.join(self.dir, "native")
        for d in (self.driver, self.lib, self.native_lib):
            os.mkdir(d)
        for real, name in ((self.cuda, "libcuda.so.1"), (self.nvml_path, "libnvidia-ml.so.1")):
            os.symlink(real, os.path.join(self.native_lib, name))
        # The real libraries under private names, as the container has them.
        self.real = os.path.join(self.driver, "real-cuda.so")
        shutil.copyfile(self.cuda, self.real)
        shutil.copyfile(self.nvml_path, os.path.join(self.driver, "real-nvidia-ml.so"))
        env = dict(os.environ, REAL_CUDA=self.real, REAL_NVML=os.path.join(self.driver, "real-nvidia-ml.so"),
                   SLUICE_SHARES="shares", SLUICE_DRIVER=self.driver)
        sh([os.path.join(HOOK, "build.sh"), self.out], env=env)
        for name, at in (("libsluice-cuda.so", "libcuda.so.1"), ("libsluice-nvml.so", "libnvidia-ml.so.1")):
            os.link(os.path.join(self.out, name), os.path.join(self.lib, at))
            os.link(os.path.join(self.out, name), os.path.join(self.driver, at.replace("lib", "limiter-").replace(".1", "")))
        self.guard = os.path.join(self.out, "guard.so")
        include = "-I" + os.path.join(HOOK, "include")
        self.share_tool, self.play = os.path.join(self.dir, "share"), os.path.join(self.dir, "play")
        sh(["gcc", "-std=c11", "-O1", include, "-o", self.share_tool, os.path.join(HERE, "share.c")])
        sh(["gcc", "-std=c11", "-O1", include, "-o", self.play, os.path.join(HOOK, "test/play.c"), "-ldl", "-lpthread"])
        self.boxes = 0
        self.overhead = 0
        self.load = None
        self.rounds = None
        self.python = args.python

    def box(self, memory, cores=0, policy="none", overhead=None):
        self.boxes += 1
        return Box(self, f"box{self.boxes}", memory, cores, policy, self.overhead if overhead is None else overhead)

    def native(self):
        return Native(self)

    def loader(self):
        """The compiled load, and what a microsecond of its work is."""
        if not self.nvcc:
            raise CannotRun("no nvcc")
        if not self.load:
            at = os.path.join(self.dir, "load")
            sh([self.nvcc, "-O2", "-arch=native", "-std=c++17", "-o", at, os.path.join(HERE, "load.cu")], timeout=120)
            self.load = at
            self.rounds = re.search(r"rounds (\S+)", self.native().run([at, "0.2", "1000"]))[1]
        return self.load

    def torch(self):
        try:
            return sh([self.python, "-c", "import torch; assert torch.cuda.is_available(); print(torch.__version__)"], timeout=60).strip()
        except (RuntimeError, OSError) as e:
            raise CannotRun(f"no PyTorch with CUDA: {str(e).splitlines()[-1][:120]}")


class Native:
    """Programs without the limiter."""
    name = "native"

    def __init__(self, lab):
        self.lab, self.dir = lab, lab.dir

    def env(self, more):
        return dict(os.environ, LD_LIBRARY_PATH=library_path(self.lab.native_lib), **more)

    def popen(self, args, **more):
        env = self.env({k: str(v) for k, v in more.items()})
        if self.lab.rounds:
            env["ROUNDS"] = self.lab.rounds
        return subprocess.Popen(args, cwd=self.dir, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def run(self, args, timeout=90, text_in=None, **more):
        p = self.popen(args, **more)
        try:
            out, err = p.communicate(text_in, timeout=timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            raise RuntimeError(f"{os.path.basename(args[0])} did not end within {timeout} s")
        if p.returncode:
            raise RuntimeError(f"{os.path.basename(args[0])} ended with {p.returncode}: {(err or out).strip()[-400:]}")
        self.said = err
        return out

    def tell(self, *commands, how=(), **more):
        """Play's answers to commands."""
        return self.run([self.lab.play, *how], text_in="\n".join(commands) + "\n", **more).splitlines()

    def work(self, name, timeout=120, **more):
        out = self.run([self.lab.python, os.path.join(HERE, "workloads.py"), name], timeout=timeout, **more)
        return json.loads(out.strip().splitlines()[-1])


class Box(Native):
    """Programs that hold one share."""

    def __init__(self, lab, name, memory, cores, policy, overhead):
        super().__init__(lab)
        self.name, self.dir = name, os.path.join(lab.dir, name)
        self.share = os.path.join(self.dir, "shares", "s")
        os.makedirs(os.path.dirname(self.share))
        sh([lab.share_tool, "make", self.share, lab.uuid, str(memory), str(cores), policy, str(overhead)])

    def env(self, more):
        return dict(os.environ, LD_LIBRARY_PATH=library_path(self.lab.lib), LD_PRELOAD=self.lab.guard, **more)

    def account(self):
        return {k: int(v) for k, v in (line.split() for line in sh([self.lab.share_tool, "read", self.share]).splitlines())}

    def grant(self, rate_percent, factor=1.0):
        sh([self.lab.share_tool, "grant", self.share, str(self.lab.overhead), str(int(rate_percent * 10000)), str(int(factor * 1e6))])


# ---------------------------------------------------------------- the parts

def host(lab, r):
    version = lab.nvml.text("nvmlSystemGetDriverVersion")
    name = lab.nvml.text("nvmlDeviceGetName", lab.nvml.card)
    r.facts.append(f"{name}, driver {version}, {lab.nvml.memory().total >> 20} MiB; "
                   f"{os.uname().sysname} {os.uname().release}, glibc {os.confstr('CS_GNU_LIBC_VERSION').split()[-1]}, {os.cpu_count()} CPUs")
    for what, args in (("nvcc", [lab.nvcc, "--version"]),):
        if lab.nvcc:
            r.facts.append(f"{what}: {sh(args).strip().splitlines()[-1]}")
    r.row("card", name)
    r.row("driver", version)
    before = lab.nvml.memory().used
    p = lab.native().popen([lab.play])
    for command in ("init", "retain 0"):
        p.stdin.write(command + "\n")
        p.stdin.flush()
        p.stdout.readline()
    lab.overhead = max(0, lab.nvml.memory().used - before)
    p.kill()
    p.communicate()
    r.row("memory of a first context", lab.overhead / MIB, "MiB")


def library(lab, r):
    """What the real library's own linking means for a library before it."""
    dynamic = sh(["readelf", "-dW", lab.cuda])
    flags = " ".join(sorted(set(re.findall(r"(?:SYMBOLIC|NODELETE|BIND_NOW|NOW)", dynamic)))) or "none"
    r.row("SONAME", (re.findall(r"soname: \[(.*?)\]", dynamic) or ["none"])[0])
    r.row("flags of libcuda", flags)
    r.row("libraries that libcuda needs", ", ".join(re.findall(r"NEEDED.*\[(.*?)\]", dynamic)))
    ours = set(re.findall(r" (cu\w+)$", sh(["nm", "-D", "--defined-only", os.path.join(lab.out, "libsluice-cuda.so")]), re.M))
    theirs = set(re.findall(r" (cu\w+)(?:@|$)", sh(["nm", "-D", "--defined-only", lab.cuda]), re.M))
    r.row("functions of libcuda", len(theirs))
    r.row("functions of ours that this driver lacks", ", ".join(sorted(ours - theirs)) or "none")
    bound = set(re.findall(r" (cu\w+)(?:@\S+)? \+ 0$", sh(["readelf", "-rW", lab.cuda]), re.M)) & ours
    r.row("calls inside libcuda that would come to the limiter", ", ".join(sorted(bound)) or "none")
    answers = lab.box(GIB).tell("init", "retain 0", "sync")
    r.expect("works under a private name", answers, ["0", "0", "0"])


def abi(lab, r):
    """Our header against the toolkit's."""
    if not lab.cuda_h or not os.path.exists(os.path.join(lab.cuda_h, "cuda.h")):
        raise CannotRun("no cuda.h")
    ours, real = os.path.join(lab.dir, "abi-ours"), os.path.join(lab.dir, "abi-real")
    source = os.path.join(HERE, "abi.c")
    sh(["gcc", "-std=c11", "-I" + os.path.join(HOOK, "include"), "-o", ours, source])
    sh(["gcc", "-std=c11", "-w", "-DREAL", "-D__CUDA_API_VERSION_INTERNAL", "-I" + lab.cuda_h, "-o", real, source])
    a, b = sh([ours]).splitlines(), sh([real]).splitlines()
    r.expect("values and layouts that differ from cuda.h", "; ".join(f"{x} / {y}" for x, y in zip(a, b) if x != y) or "none", "none")
    p = subprocess.run(["gcc", "-std=c11", "-fsyntax-only", "-I" + lab.cuda_h, "-I" + os.path.join(HOOK, "src"),
                        os.path.join(HERE, "prototypes.c")], capture_output=True, text=True)
    wrong = re.findall(r'static assertion failed: "prototype of (\w+)"', p.stderr)
    unknown = re.findall(r"[‘'](cu\w+)[’'] undeclared", p.stderr)
    r.expect("prototypes that differ from cuda.h", ", ".join(wrong) or "none", "none")
    r.row("functions that this cuda.h does not declare", ", ".join(unknown) or "none")


FAMILIES = [  # name, commands before, chunk, kind of memory, how far from the cap it may stop
    ("linear", [], 64 * MIB), ("pitch", [], 64 * MIB), ("managed", [], 64 * MIB), ("vmm", [], 64 * MIB),
    ("async", [], 64 * MIB), ("pool", ["pool 0"], 64 * MIB), ("array", [], 64 * MIB), ("array3d", [], 64 * MIB),
    ("mipmap", [], 64 * MIB),
]


def families(lab, r):
    """Every family to the cap: what fits is given, what does not is refused, all comes back."""
    cap = 4 * GIB
    for how in ((), ("proc", "13000", "0"), ("proc", "12000", "2")):
        for family, before, chunk in FAMILIES:
            box = lab.box(cap + lab.overhead)
            answers = box.tell("init", "retain 0", *before, f"fill {family} {chunk}", "info", how=how)
            fill = re.match(r"(\d+) after (\d+)", answers[-2])
            got = int(fill[2]) * chunk
            label = family + (" by cuGetProcAddress " + " ".join(how[1:]) if how else "")
            # A step of the driver's: the last one may not fit although the chunk would.
            r.row(f"{label}: given, then refused with", f"{got >> 20} MiB, {fill[1]}", "", "4096 -64 MiB, 2",
                  fill[1] == "2" and cap - 2 * chunk <= got <= cap)
            account = box.account()
            r.expect(f"{label}: above the cap at the peak", max(0, account["peak"] - cap - lab.overhead), 0, "bytes")
    box = lab.box(4 * GIB + lab.overhead)
    answers = box.tell("init", "retain 0", "alloc graph 1Gi 0", "alloc graph 5Gi 0", "launch 0", "launch 1", "sync", "info")
    r.row("graph memory: 1 GiB launches, 5 GiB of 4 does not", " ".join(answers[4:6]), "", "0 2", answers[4:6] == ["0", "2"])
    box = lab.box(2 * GIB + lab.overhead)
    answers = box.tell("init", "retain 0", "info", "alloc linear 1Gi", "info", "free 0", "info")
    r.row("a freed allocation comes back", answers[-1], "", answers[2], answers[-1] == answers[2])


def nvml_charges(lab, r):
    """What the driver takes of the card against what we charge."""
    for family, size in (("linear", 512), ("linear", 64 << 10), ("linear", MIB + 1), ("linear", 2 * MIB + 1), ("linear", 100 * MIB + 1),
                         ("vmm", 2 * MIB), ("array", 16 * MIB), ("array3d", 16 * MIB), ("async", MIB), ("pitch", 16 * MIB)):
        box, count = lab.box(60 * GIB if lab.nvml.memory().total > 70 * GIB else lab.nvml.memory().total // 2), 64
        p = box.popen([lab.play])

        def tell(command):
            p.stdin.write(command + "\n")
            p.stdin.flush()
            return p.stdout.readline().strip()
        for command in ("init", "retain 0", "sync"):
            tell(command)
        used, charged = lab.nvml.memory().used, box.account()["total"]
        wrong = [a for a in (tell(f"alloc {family} {size}") for _ in range(count)) if not a.startswith("0 ")]
        tell("sync")
        took, charge = lab.nvml.memory().used - used, box.account()["total"] - charged
        p.kill()
        p.communicate()
        if wrong:
            r.row(f"{count} x {size} {family}", wrong[0], "", "", False)
            continue
        # The driver takes steps of 2 MiB: one step may be begun and one be left over.
        r.row(f"{count} x {size} {family}: taken, charged", f"{took} {charge}", "bytes", "charged >= taken - 2 MiB", charge >= took - 2 * MIB)


def overhead(lab, r):
    """PyTorch with and without the limiter, turn by turn."""
    r.facts.append(f"PyTorch {lab.torch()}")
    free = lab.nvml.memory().free
    big = lab.box(int(free * 0.9))
    capped = lab.box(int(free * 0.9), 100, "hard")
    for name, env in (("training", {}), ("inference", {}), ("graphs", {}), ("allocations", {}),
                      ("training", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
                      ("training", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})):
        times = {"native": [], "slice": [], "cores": []}
        for _ in range(2):
            times["native"].append(lab.native().work(name, **env)["ms"])
            times["slice"].append(big.work(name, **env)["ms"])
            if name != "allocations":
                capped.grant(100)
                times["cores"].append(capped.work(name, **env)["ms"])
        base = statistics.median(times["native"])
        label = name + (" " + list(env.values())[0] if env else "")
        r.row(f"{label}: native", base, "ms")
        bound = 1 if name != "allocations" else None
        added = 100 * (statistics.median(times["slice"]) / base - 1)
        if bound:
            r.most(f"{label}: added by the memory limit", added, bound, "%")
        else:
            r.row(f"{label}: added by the memory limit", added, "%")
        if times["cores"]:
            r.most(f"{label}: added with a core limit of 100", 100 * (statistics.median(times["cores"]) / base - 1), 2, "%")


def rate(output):
    """The work a second after the first two seconds."""
    windows = [float(w[1]) for w in re.findall(r"window (\S+) (\S+)", output) if float(w[0]) > 2]
    return statistics.mean(windows) if windows else 0.0


def stalls(output):
    return max((float(w) for w in re.findall(r"window \S+ \S+ (\S+)", output)), default=0.0)


def together(lab, boxes, jobs, grants=None):
    """Runs a load in each box at once; the node's grants are kept fresh."""
    running = [b.popen([lab.load, *map(str, job)]) for b, job in zip(boxes, jobs)]
    while any(p.poll() is None for p in running):
        for b, share in zip(boxes, grants or []):
            b.grant(share)
        time.sleep(0.1)
    outs = []
    for p in running:
        out, err = p.communicate()
        if p.returncode:
            raise RuntimeError(f"load ended with {p.returncode}: {err.strip()[-300:]}")
        outs.append(out)
    return outs


def cores(lab, r):
    """Shares of a card's time by the work that was done."""
    lab.loader()
    alone = {}
    for us in (50, 500, 5000, 20000):
        out = lab.native().run([lab.load, "3.5", str(us)])
        alone[us] = rate(out) * us
        r.row(f"alone, kernels of {us} us", alone[us] / 1e4, "% of a card's nominal work")
    for us in (500, 5000):
        box = lab.box(2 * GIB, 50, "hard")
        out = together(lab, [box], [(5, us)], [50])[0]
        r.near(f"50 hard alone, kernels of {us} us", 100 * rate(out) * us / alone[us], 50, 5, "%")
        r.row(f"50 hard alone, {us} us: longest wait for a launch", stalls(out), "ms")
    for a, b, us_a, us_b in ((30, 70, 500, 500), (30, 70, 5000, 200), (10, 90, 500, 500)):
        boxes = [lab.box(2 * GIB, a, "hard"), lab.box(2 * GIB, b, "hard")]
        outs = together(lab, boxes, [(6, us_a), (6, us_b)], [a, b])
        got = [rate(outs[0]) * us_a, rate(outs[1]) * us_b]
        r.near(f"{a}/{b} with kernels of {us_a} and {us_b} us: the first's share", 100 * got[0] / max(1e-9, sum(got)), a, 5, "%")
        r.row(f"{a}/{b} with kernels of {us_a} and {us_b} us: both together", 100 * sum(got) / alone[500], "% of one alone")
    for how in ("graph", "cooperative", "ex"):
        box = lab.box(2 * GIB, 50, "hard")
        out = together(lab, [box], [(4, 500, how)], [50])[0]
        r.near(f"50 hard alone by {how}", 100 * rate(out) * 500 / alone[500], 50, 5, "%")
    flood = lab.box(2 * GIB, 30, "hard")
    steady = lab.box(2 * GIB, 70, "hard")
    outs = together(lab, [steady, flood], [(7, 500), (150, 20000, "flood")], [70, 30])
    r.near("30 floods with kernels of 20 ms: the share of 70", 100 * rate(outs[0]) * 500 / alone[500], 70, 5, "%")


def reports(lab, r):
    box = lab.box(8 * GIB)
    smi = shutil.which("nvidia-smi")
    if smi:
        out = box.run([smi, "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]).strip()
        r.row("nvidia-smi inside: total, used", out, "MiB", "8192, 0", out.split(",")[0].strip() == "8192")
    out = box.tell("init", "retain 0", "info", "total 0")
    r.row("cuMemGetInfo inside", out[2])
    r.expect("cuDeviceTotalMem inside", out[3], "0 total 8192Mi")


def pytorch_doors(lab, r):
    """The ways of PyTorch that reach the driver by unusual doors."""
    lab.torch()
    box = lab.box(8 * GIB + lab.overhead)
    told = box.work("until_refused")
    r.row("PyTorch until OutOfMemoryError", told["got"] / MIB, "MiB", "<= 8192, then usable again",
          told["got"] <= 8 * GIB and told["got"] > 7 * GIB and told["again"])
    r.row("its error", told["error"][:120])
    for name in ("captures", "forked", "workers", "libraries", "compiled"):
        try:
            r.expect(name, lab.box(16 * GIB, 50, "hard").work(name)["ok"], True)
        except RuntimeError as e:
            r.row(name, str(e)[-200:], "", "= True", False)


def processes(lab, r):
    """Killed while allocating: nothing is lost."""
    box = lab.box(4 * GIB)
    for _ in range(5):
        p = box.popen([lab.play])
        p.stdin.write("init\nretain 0\nhammer 4 1000000 3\n")
        p.stdin.flush()
        time.sleep(1.0)
        p.send_signal(signal.SIGKILL)
        p.communicate()
    whole = f"alloc linear {4 * GIB - lab.overhead}"
    answers = box.tell("init", "retain 0", whole, "alloc linear 1", "free 0")
    r.expect("the whole share is to be had after five were killed while allocating", answers[2:], ["0 #0", "2", "0"])


def facts(lab, r):
    """What only a card can tell."""
    lab.loader()
    for us in (500, 5000):
        ps = [lab.native().popen([lab.load, "4", str(us)]) for _ in range(2)]
        time.sleep(2)
        seen = [lab.nvml.utilization() for _ in range(8) if not time.sleep(0.2)]
        outs = [p.communicate()[0] for p in ps]
        r.row(f"two native loads of {us} us: utilisation by NVML", statistics.median(seen), "%")
        r.row(f"two native loads of {us} us: work", " ".join(f"{rate(o) * us / 1e4:.1f}" for o in outs), "% of a card")
    box = lab.box(20 * GIB)
    out = box.tell("init", "retain 0", "info", "pool 0", "alloc pool 1 0", "info", "alloc pool 33Mi 0", "info")
    r.row("free before a pool's first byte, after it, after 33 MiB more", "; ".join(a for a in out if "free" in a))


PARTS = [  # name, seconds that it may begin with at least
    (host, 0), (library, 0), (abi, 0), (families, 0), (nvml_charges, 0), (reports, 0), (overhead, 90), (cores, 75), (pytorch_doors, 60),
    (processes, 15), (facts, 15),
]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", help="write the table as Markdown to this file")
    p.add_argument("--budget", type=float, default=460, help="seconds after which no further part is begun (default 460)")
    p.add_argument("--only", help="run these parts alone, by name: " + ", ".join(f.__name__ for f, _ in PARTS))
    p.add_argument("--driver-lib", help="libcuda to check against; default: as the loader finds it")
    p.add_argument("--nvml-lib", help="libnvidia-ml; default: as the loader finds it")
    p.add_argument("--cuda-include", help="folder of cuda.h; default: beside nvcc")
    p.add_argument("--python", default=sys.executable, help="Python with PyTorch (default: this one)")
    args = p.parse_args()
    begun = time.monotonic()
    report = Report(args.out)
    lab = Lab(args)
    only = args.only.split(",") if args.only else [f.__name__ for f, _ in PARTS]
    wrong = [o for o in only if o not in [f.__name__ for f, _ in PARTS]]
    if wrong:
        raise SystemExit(f"gpu-check: no part is named {', '.join(wrong)}; see --help")
    try:
        for part, needs in PARTS:
            report.part = part.__name__
            if part.__name__ not in only:
                continue
            left = args.budget - (time.monotonic() - begun)
            if left < needs:
                report.row("not run", f"{left:.0f} s are left of {args.budget:.0f}", "", "", False)
            else:
                try:
                    part(lab, report)
                except CannotRun as why:
                    report.row("not run", why)
                except (RuntimeError, OSError, subprocess.TimeoutExpired, IndexError, KeyError, TypeError, ValueError) as e:
                    report.row("failed", f"{type(e).__name__}: {str(e)[-300:]}", "", "", False)
            report.write()
    finally:
        shutil.rmtree(lab.dir, ignore_errors=True)
    missed = report.missed()
    print(f"{len(report.rows)} rows, {len(missed)} targets missed, {time.monotonic() - begun:.0f} s")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
