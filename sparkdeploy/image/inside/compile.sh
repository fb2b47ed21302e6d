#!/bin/sh
# shellcheck disable=SC1091 # both files are written for one build
# Compiles vLLM's wheel inside a container of the base image: /compile holds the context of the stage, /ccache keeps
# what was compiled before, and the finished wheel appears in /wheels and never a half one.
set -eu
. /network/environment
. /compile/compile/source
export HOME=/work CCACHE_DIR=/ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
export SETUPTOOLS_SCM_PRETEND_VERSION="$VLLM_VERSION" CUDA_HOME=/usr/local/cuda
python3 -m venv /work/uv && /work/uv/bin/pip install --quiet --require-hashes --requirement /compile/lock/uv.txt
python3 -m venv --without-pip /work/venv
uv() { /work/uv/bin/uv "$@" --python /work/venv/bin/python; }
# shellcheck disable=SC2086 # TORCH_SOURCE is two words
uv pip install $TORCH_SOURCE --requirement /compile/lock/torch.txt
uv pip install --constraint /compile/lock/torch.txt cmake ninja packaging 'setuptools>=77,<81' 'setuptools-scm>=8' wheel jinja2 pip
[ "$VLLM_TARGET_DEVICE" = cpu ] || /work/venv/bin/python -c 'import torch, sys; sys.exit(not torch.version.cuda and "sparkdeploy-refused: torch came as a CPU build")'
if [ -n "$VLLM_REF" ]; then
  git clone --quiet "$SOURCE_FORGE/vllm-project/vllm" /work/vllm
  git -C /work/vllm checkout --quiet "$VLLM_REF"
else
  printf 'vllm==%s --hash=sha256:%s\n' "$VLLM_VERSION" "$SDIST_SHA256" >/work/sdist.txt
  # Its metadata would add the device to the version (+cu130), and pip throws away what it did not ask for.
  VLLM_VERSION_OVERRIDE="$VLLM_VERSION" /work/venv/bin/python -m pip download --quiet --no-deps --no-build-isolation \
    --no-binary :all: --require-hashes --requirement /work/sdist.txt --dest /work
  mkdir /work/vllm
  tar -C /work/vllm --strip-components 1 --no-same-owner -xf /work/vllm-*.tar.gz
fi
cd /work/vllm
PATH="/work/venv/bin:$PATH" /work/venv/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /work/made .
name=$(basename /work/made/vllm-*.whl)
cp "/work/made/$name" "/wheels/.$name.part"
mv "/wheels/.$name.part" "/wheels/$name"
