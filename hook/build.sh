#!/bin/sh
# Builds the limiter:  hook/build.sh OUTDIR
#
# Needs a C compiler and nothing else. What is built:
#   libsluice-cuda.so   mounted in containers over libcuda.so.<driver version>
#   libsluice-nvml.so   mounted over libnvidia-ml.so.<driver version>
#   guard.so            named in the containers' /etc/ld.so.preload
#
# Variables, all optional:
#   CC               compiler                                  gcc
#   REAL_CUDA        path of the real library in containers    /run/sluice/driver/real-cuda.so
#   REAL_NVML        the same of libnvidia-ml                  /run/sluice/driver/real-nvidia-ml.so
#   SLUICE_SHARES    folder of the shares in containers        /run/sluice/shares
#   SLUICE_DRIVER    folder of the guard's stand-ins           /run/sluice/driver
#   EXTRA_CFLAGS     more flags (sanitizers, -g)
# The paths are compiled in and can be changed by nobody in the container: the
# tenant controls the environment.
set -eu

out=${1:?usage: build.sh OUTDIR}
src=$(cd "$(dirname "$0")" && pwd)
cc=${CC:-gcc}
real=${REAL_CUDA:-/run/sluice/driver/real-cuda.so}
real_nvml=${REAL_NVML:-/run/sluice/driver/real-nvidia-ml.so}
shares=${SLUICE_SHARES:-/run/sluice/shares}
driver=${SLUICE_DRIVER:-/run/sluice/driver}
mkdir -p "$out"
tmp=$(mktemp -d "$out/.build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# What is not called all the time is made small: every process has it in memory.
fast=-O2
small=-Os
cflags="-std=c11 -fPIC -fvisibility=hidden -fno-plt -ftls-model=initial-exec
        -Wall -Wextra -Wmissing-prototypes -Wshadow -Werror"
extra=${EXTRA_CFLAGS:-}

# An empty library whose name is the real one's path in the container: linking
# against it puts that path into DT_NEEDED.
echo 'void sluice_stands_for_the_driver(void); void sluice_stands_for_the_driver(void) {}' >"$tmp/real.c"
$cc -shared -fPIC -Wl,-soname,"$real" -o "$tmp/real.so" "$tmp/real.c"
$cc -shared -fPIC -Wl,-soname,"$real_nvml" -o "$tmp/real-nvml.so" "$tmp/real.c"

compile() { # OPTIMISATION NAME...
    level=$1
    shift
    for name; do
        $cc $cflags "$level" $extra -I"$src/include" -DSLUICE_REAL_CUDA="\"$real\"" -DSLUICE_SHARES="\"$shares\"" \
            -c -o "$tmp/$name.o" "$src/src/$name.c"
    done
}
compile $fast lock ledger map claim card launch cuda_launch cuda_memory
compile $small say files elf_object real process gate gate_clock cuda_start cuda_context cuda_pool cuda_vmm cuda_array cuda_graph
$cc $extra -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,--hash-style=both \
    -o "$tmp/libsluice-cuda.so" "$tmp"/*.o \
    -Wl,--no-as-needed "$tmp/real.so" -Wl,--as-needed

$cc $cflags $small $extra -I"$src/include" -DSLUICE_SHARES="\"$shares\"" \
    -shared -Wl,-soname,libnvidia-ml.so.1 -Wl,-Bsymbolic -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,--hash-style=both \
    -o "$tmp/libsluice-nvml.so" "$src/src/nvml.c" "$src/src/elf_object.c" "$src/src/files.c" \
    -Wl,--no-as-needed "$tmp/real-nvml.so" -Wl,--as-needed

# The guard calls the real dlopen by a jump, so that its caller stays the
# caller: an optimisation that must not be switched off (a test shows that it
# is done).
$cc $cflags $fast $extra -foptimize-sibling-calls -I"$src/include" -DSLUICE_DRIVER="\"$driver\"" \
    -shared -Wl,-soname,guard.so -Wl,-Bsymbolic -Wl,-z,now -Wl,-z,relro -Wl,--hash-style=both \
    -o "$tmp/guard.so" "$src/src/guard.c" "$src/src/elf_object.c"

# Into place by name, so that a reader never sees half a file.
for file in libsluice-cuda.so libsluice-nvml.so guard.so; do
    mv "$tmp/$file" "$out/$file"
done
