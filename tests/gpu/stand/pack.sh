#!/usr/bin/env bash
# Pack vLLM 0.25.1 for a lent GPU machine that reaches no registry and has torch 2.11, triton and
# numpy already. Run in the repository's root; leaves .gpu/site.zst.NN (one part a call) and
# .gpu/code.tar (the committed code), .gpu/lite. UV names the uv to use.
set -euo pipefail
UV=${UV:-uv}
WORK=${WORK:-/tmp/gpu}
PART_BYTES=${PART_BYTES:-53000000}
TARGET=(--python-version 3.12 --python-platform x86_64-manylinux_2_35)
# Already on that machine, or not needed by this model there.
LEFT_OUT='torch|torchvision|torchaudio|torchcodec|triton|numba|llvmlite|numpy|opencv.*|tokenspeed-.*'
LEFT_OUT+='|pynvvideocodec|tilelang|flashinfer-.*|z3-solver|cuda-.*|nvidia-.*|quack-kernels'
LEFT_OUT+='|humming-kernels|torch-c-dlpack-ext|networkx|sympy|mpmath|ml-dtypes|supervisor|ninja'
LEFT_OUT+='|pillow|grpcio|regex|pyyaml|setuptools|uvloop|hf-xet|psutil|aiohttp|sentencepiece'
here=$(cd "$(dirname "$0")" && pwd)

mkdir -p "$WORK" .gpu
if [ ! -d "$WORK/slim" ]; then
  echo 'vllm==0.25.1' > "$WORK/in.txt"
  "$UV" pip compile -q --no-annotate --no-header --exclude-newer 2026-08-01 "${TARGET[@]}" \
    "$WORK/in.txt" -o "$WORK/all.txt"
  grep -Ev "^($LEFT_OUT)==" "$WORK/all.txt" > "$WORK/want.txt"
  "$UV" pip install -q --target "$WORK/slim" "${TARGET[@]}" --no-deps -r "$WORK/want.txt"
  (cd "$WORK/slim" && rm -rf bin vllm/vllm-rs vllm/third_party/fmha_sm100 \
    vllm/third_party/deep_gemm xgrammar/lib/*.a pycountry/locales)
  find "$WORK/slim" -name tests -type d -prune -exec rm -rf {} +
  # Copies, since uv's are links into its cache.
  find "$WORK/slim/vllm" -name '*.so' -exec cp {} {}.own \; -exec mv {}.own {} \;
  find "$WORK/slim/vllm" -name "*.so" -exec python3 "$here/slim_fatbins.py" 90 {} +
fi
tar --sort=name -C "$WORK/slim" -cf - . | zstd -T2 -12 -q | split -b "$PART_BYTES" -d - .gpu/site.zst.
git archive --format=tar HEAD sparkdeploy tests/gpu/stand > .gpu/code.tar
# What makes the twins, before the site is there.
rm -rf .gpu/lite
"$UV" pip install -q --target .gpu/lite "${TARGET[@]}" \
  filelock jinja2 platformdirs pydantic pyyaml requests
mkdir -p .gpu/zstd
cp "$(command -v zstd)" .gpu/zstd/
ldd "$(command -v zstd)" | grep -Eo "/[^ ]*lib(z|zstd|lzma|lz4)[.][^ ]*" | xargs -I{} cp -L {} .gpu/zstd/
git rev-parse HEAD > .gpu/code.commit
ls -l .gpu
