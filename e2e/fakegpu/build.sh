#!/bin/sh
# Builds the simulated NVIDIA libraries and programs with gcc alone:
#   build.sh OUTDIR [DRIVER_VERSION]
# leaves in OUTDIR lib{cuda,nvidia-ml}.so.VERSION with their SONAME links,
# the other driver libraries (empty), nvidia-smi, nvidia-cuda-mps-control, fakegpuctl and cudaprobe.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
version=${2:-580.95.05}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cc=${CC:-gcc}
flags="-std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -fvisibility=hidden -fno-strict-aliasing -I$here/abi"
cd "$here/src"

lib() { # NAME SONAME SOURCES...
	name=$1 soname=$2
	shift 2
	# shellcheck disable=SC2086
	$cc $flags -fPIC -shared -Wl,-Bsymbolic -Wl,-z,nodelete -Wl,-soname,"$soname" -o "$out/$name.so.$version" "$@" -lpthread
	ln -sf "$name.so.$version" "$out/$soname"
	ln -sf "$soname" "$out/$name.so"
}

common="node.c shm.c mig.c sim.c faults.c"
# shellcheck disable=SC2086,SC2046
lib libcuda libcuda.so.1 $common $(ls cuda_*.c)
# shellcheck disable=SC2086,SC2046
lib libnvidia-ml libnvidia-ml.so.1 $common $(ls nvml_*.c)

cd "$here/probe"
# shellcheck disable=SC2086
$cc $flags -fPIC -shared -o "$out/libcudaprobe-plugin.so" plugin.c -L"$out" -lcuda -Wl,-z,now
# shellcheck disable=SC2086
$cc $flags -o "$out/cudaprobe" probe.c memory.c kernels.c work.c resolve.c -ldl
# shellcheck disable=SC2086
$cc $flags -DPROBE_LINK -o "$out/cudaprobe-link" probe.c memory.c kernels.c work.c resolve.c -L"$out" -lcuda -ldl

cd "$here/src"
# shellcheck disable=SC2086
$cc $flags -o "$out/fakegpuctl" ctl.c $common
# shellcheck disable=SC2086
$cc $flags -o "$out/nvidia-smi" smi.c -ldl
# It runs in the driver's root alone, which has no C library.
# shellcheck disable=SC2086
$cc $flags -static -o "$out/nvidia-cuda-mps-control" mps.c

# The libraries that come with a driver and that only have to be there.
for name in libnvidia-ptxjitcompiler libcudadebugger; do
	lib $name $name.so.1 empty.c
done
lib libnvidia-nvvm libnvidia-nvvm.so.4 empty.c
