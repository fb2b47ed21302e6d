#!/bin/sh
# Makes the CUDA compiler's wheels look like the toolkit that FlashInfer expects, in /opt/venv/cuda.
# FlashInfer compiles at first start; a kernel for SM121 that links here, the way FlashInfer links,
# shows that compiler, headers and libraries agree.
set -eu
toolkit=$(echo /opt/venv/lib/python3.*/site-packages/nvidia/cu13)
ln -s lib "$toolkit/lib64"
ln -s libcudart.so.13 "$toolkit/lib/libcudart.so"
ln -s "$toolkit" /opt/venv/cuda
# FlashInfer links with -lcuda, and no build has the driver's library. What stands in for it has the
# driver's name and an empty function for each of the driver's, so that a linker keeps the name.
mkdir "$toolkit/lib/stubs"
grep -ohE '\bcu[A-Z][A-Za-z0-9_]+' "$toolkit/include/cuda.h" | sort -u | sed 's/.*/void &(void) {}/' \
  | gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$toolkit/lib/stubs/libcuda.so" -x c -

cat >/tmp/probe.cu <<'PROBE'
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda/std/type_traits>
__global__ void probe(float *x) { x[0] += __half2float(__float2half(1.f)); }
extern "C" int count(int *devices) { return cuDeviceGetCount(devices); }
PROBE
/opt/venv/cuda/bin/nvcc --generate-code arch=compute_121a,code=sm_121a \
  --compiler-options -fPIC --compile --output-file /tmp/probe.o /tmp/probe.cu
c++ -shared -Wl,--as-needed -Wl,--no-undefined -o /tmp/probe.so /tmp/probe.o \
  -L/opt/venv/cuda/lib64 -L/opt/venv/cuda/lib64/stubs -lcudart -lcuda
