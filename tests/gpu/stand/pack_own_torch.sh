#!/usr/bin/env bash
# Pack vLLM 0.33.0 with the torch 2.14 and triton 3.8 of the engine's lock, for a lent GPU machine
# that reaches no registry and has an older torch. Run in the repository's root; leaves
# .gpu/033/site.zst.NN (one part a call) and .gpu/033/first (the committed code, zstd, what makes the
# twins). UV names the uv to use.
#
# CUDA's libraries stay behind: those that torch 2.11 brought to that machine are the same files, or
# have every symbol that torch 2.14 asks for (`own_torch.sh start` links them, and says so if one is not there). Only
# NCCL's lacks eleven and travels.
set -euo pipefail
UV=${UV:-uv}
WORK=${WORK:-/tmp/gpu-033}
PARTS=${PARTS:-11}
LEVEL=${LEVEL:-12}
TARGET=(--python-version 3.12 --python-platform x86_64-manylinux_2_35)
LOCK=recipes/engines/locks/cuda-0.33/x86_64-py312.txt
# CUDA's own, and what no model of the sitting imports (`imports.py` on this machine proves it).
LEFT_OUT='nvidia-(cu.*|nv.*)|cuda-(core|python|tile|toolkit)|nccl4py|nccl-extensions|nvtx|flashinfer-.*|tokenspeed-.*|tilelang'
LEFT_OUT+='|z3-solver|quack-kernels|humming-kernels|torch-c-dlpack-ext|torchaudio|torchcodec'
LEFT_OUT+='|pynvvideocodec|opencv.*|ray|supervisor|ninja|hf-xet|grpcio|googleapis.*|opentelemetry-.*'
LEFT_OUT+='|sentry-sdk|fastapi-cloud-cli|rignore|fastar|pyjwt|cryptography'
here=$(cd "$(dirname "$0")" && pwd)

unlinked() { # uv's files are links into its cache
  cp "$1" "$1.own"
  mv "$1.own" "$1"
}

install() {
  grep -E '^[a-z]' "$LOCK" | sed 's/ .*//' | grep -Ev "^($LEFT_OUT)==" > "$WORK/want.txt"
  "$UV" pip install -q --target "$WORK/slim" "${TARGET[@]}" --no-deps -r "$WORK/want.txt"
}

cut() {
  (cd "$WORK/slim" && rm -rf bin vllm/vllm-rs vllm/third_party/fmha_sm100 \
    vllm/third_party/deep_gemm pycountry/locales torch/bin/protoc* triton/_C/libproton.so \
    triton/FileCheck triton/instrumentation/*.so triton/backends/nvidia/lib/cupti* \
    triton/backends/nvidia/bin/{ptxas-blackwell,nvdisasm,cuobjdump})
  find "$WORK/slim" -name tests -type d -prune -exec rm -rf {} +
  find "$WORK/slim" -name '*.a' -delete
  # The others were edited by patchelf, and break when they are stripped.
  for library in "$WORK"/slim/triton/_C/libtriton.so "$WORK"/slim/instanttensor/_C*.so; do
    unlinked "$library"
    strip --strip-unneeded "$library"
  done
  find "$WORK/slim/vllm" "$WORK/slim/torch/lib/"libtorch_cuda* "$WORK/slim/nvidia/nccl" \
    -name '*.so*' -type f | while read -r library; do
    unlinked "$library"
    python3 "$here/slim_fatbins.py" 90 "$library"
  done
}

first() {
  rm -rf .gpu/033/first
  mkdir -p .gpu/033/first/zstd
  git archive --format=tar HEAD sparkdeploy tests/gpu/stand > .gpu/033/first/code.tar
  git rev-parse HEAD > .gpu/033/first/code.commit
  cp "$(command -v zstd)" .gpu/033/first/zstd/
  ldd "$(command -v zstd)" | grep -Eo "/[^ ]*lib(z|zstd|lzma|lz4)[.][^ ]*" |
    xargs -I{} cp -L {} .gpu/033/first/zstd/
  "$UV" pip install -q --target .gpu/033/first/lite "${TARGET[@]}" \
    filelock jinja2 platformdirs pydantic pyyaml requests
  # fastsafetensors opens it, and a bare machine may lack it.
  mkdir -p .gpu/033/first/lib
  cp -L /usr/lib/x86_64-linux-gnu/libnuma.so.1 .gpu/033/first/lib/
}

mkdir -p "$WORK" .gpu/033
if [ ! -e "$WORK/site.zst" ]; then
  rm -rf "$WORK/slim"
  install
  cut
  tar --sort=name -C "$WORK/slim" -cf - . | zstd -T2 "-$LEVEL" -q -f -o "$WORK/site.zst.whole"
  mv "$WORK/site.zst.whole" "$WORK/site.zst"
fi
rm -f .gpu/033/site.zst.*
split -n "$PARTS" -d "$WORK/site.zst" .gpu/033/site.zst.
(cd .gpu/033 && sha256sum site.zst.* > site.sha256)
first
ls -l .gpu/033 .gpu/033/first
