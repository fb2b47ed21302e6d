#!/usr/bin/env bash
# On the GPU machine, in the checkout's root: the sitting of vLLM 0.33.0 with its own torch, packed by
# pack_own_torch.sh. README.md beside this has the calls, one line each.
#   own_torch.sh first          unpack the code, make twins in the background
#   own_torch.sh part           take the part of the site that this call carried
#   own_torch.sh start          join the parts, link CUDA's libraries, start the servers and the soak
#   own_torch.sh take SECONDS   wait for the checks, no longer than that; what there is goes to $OUT
#   own_torch.sh soaked SECONDS wait for the end of every soak, no longer than that; all results go to $OUT
# The folders are those of the other sittings; FIRST, PARTS, SITE and VENV are for trying it elsewhere.
# TWINS says which twins are made, PLAN what is asked of them, CARD on which GPU; SOAK_S=0 soaks nothing.
set -euo pipefail
FIRST=${FIRST:-.gpu/033/first}
PARTS=${PARTS:-/tmp/parts}
SITE=${SITE:-/tmp/site}
VENV=${VENV:-/tmp/venv}
TWINS=${TWINS:-wide nervous small}
PLAN=${PLAN:-own_torch}
export CARD=${CARD:-0}
CUDA_FOLDERS=(cu13 cudnn cusparselt nvshmem)
STAND_PYTHON="$VENV/bin/python"
# The machine's cuDNN is older than the one torch was built with; it has every function it asks for.
export PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK=1

first() {
  mkdir -p "$PARTS" /tmp/m /tmp/lite /tmp/lib /tmp/logs /tmp/out
  cp -r "$FIRST"/lite/. /tmp/lite/
  cp "$FIRST"/lib/* /tmp/lib/
  cp .gpu/033/site.sha256 "$PARTS/"
  TWINS=$TWINS PACKED="$FIRST" bash <(tar -xOf "$FIRST/code.tar" tests/gpu/stand/prepare.sh)
  nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv
  python3 -c 'import sys, torch; print(sys.version, torch.__version__)'
  ls "$(nvidia_folder)"
  df -h /tmp /dev/shm | cat
}

part() {
  mkdir -p "$PARTS"
  mv .gpu/033/site.zst.* "$PARTS/"
  find "$PARTS" -name 'site.zst.*' | wc -l
}

# Where that machine's own torch has CUDA's libraries.
nvidia_folder() {
  python3 -c '
import nvidia, pathlib
print(next(one for one in nvidia.__path__ if (pathlib.Path(one) / "cu13/lib/libcublas.so.13").exists()))'
}

site() {
  (cd "$PARTS" && sha256sum --quiet -c site.sha256)
  mkdir -p "$SITE" "$VENV/bin" /tmp/lib
  cat "$PARTS"/site.zst.* | LD_LIBRARY_PATH=/tmp/zstd /tmp/zstd/zstd -dc | tar -x -C "$SITE"
  local cuda folder base release
  cuda=$(nvidia_folder)
  for folder in "${CUDA_FOLDERS[@]}"; do
    if [ ! -d "$cuda/$folder/lib" ]; then
      echo "$cuda/$folder/lib: not there, carry it (own_torch.sh names what is shared)" >&2
      return 1
    fi
    ln -sfn "$cuda/$folder" "$SITE/nvidia/$folder"
  done
  # fastsafetensors opens these by names that the packages do not have.
  ln -sfn "$cuda/cu13/lib/libcudart.so.13" /tmp/lib/libcudart.so
  ln -sfn "$cuda/cu13/lib/libcufile.so.0" /tmp/lib/libcufile.so.0
  # A Python that sees none of that machine's own packages.
  base=$(python3 -c 'import sys; print(sys._base_executable)')
  release=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  ln -sfn "$base" "$VENV/bin/python"
  printf 'home = %s\ninclude-system-site-packages = false\n' "$(dirname "$base")" > "$VENV/pyvenv.cfg"
  # CUDA's bindings look for NVRTC in a Python's own packages, not on PYTHONPATH.
  mkdir -p "$VENV/lib/$release"
  ln -sfn "$SITE" "$VENV/lib/$release/site-packages"
}

start() {
  date +%s > /tmp/out/started_at
  site
  PYTHONPATH=$SITE "$STAND_PYTHON" - << 'P' | tee "$OUT/site.json"
import json, torch, triton
one = torch.ones(512, 512, device="cuda", dtype=torch.bfloat16)
print(json.dumps({"torch": torch.__version__, "triton": triton.__version__, "cudnn":
  torch.backends.cudnn.version(), "nccl": torch.cuda.nccl.version(), "product": float((one @ one)[0, 0]),
  "gpu": torch.cuda.get_device_name()}))
P
  local twin
  for twin in $TWINS; do
    timeout 200 bash -c "until grep -q took /tmp/m/$twin.log; do sleep 1; done" ||
      tail -n 5 "/tmp/m/$twin.log"
    tail -n 1 "/tmp/m/$twin.log"
  done
  cp "$OUT/site.json" /tmp/out/
  cd /tmp/stand
  CUDA_VISIBLE_DEVICES=$CARD PYTHONPATH=$SITE setsid nohup "$STAND_PYTHON" serve.py "$PLAN.json" \
    /tmp/out/checks > /tmp/logs/checks.txt 2>&1 &
  if [ "${SOAK_S:-900}" -gt 0 ]; then
    CUDA_VISIBLE_DEVICES=0 STAND_PYTHON=$STAND_PYTHON SITE=$SITE bash soak_server.sh
  fi
}

results() {
  mkdir -p "$OUT"
  local made
  (cd /tmp/out && tar -czf "$OUT/out.tgz" .)
  tar -czf "$OUT/logs.tgz" --exclude=traces -C /tmp logs
  nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader
  echo "$(($(date +%s) - $(cat /tmp/out/started_at))) s since the servers were started; $(uptime)"
  for made in /tmp/logs/*.log; do echo "$made $(tail -n 1 "$made" | cut -c 1-150)"; done
  tail -c 600 /tmp/logs/soak*.txt || true
  tail -q -n 1 /tmp/out/soak*/soak.jsonl 2> /dev/null | cut -c 1-400 || true
}

until_there() { # FILE SECONDS
  local end=$(($(date +%s) + $2))
  until [ -e "$1" ] || [ "$(date +%s)" -ge "$end" ]; do sleep 2; done
}

take() {
  until_there /tmp/out/checks/done "$1"
  tail -c 4000 /tmp/logs/checks.txt
  results
}

soaked() {
  local end=$(($(date +%s) + $1)) server
  for server in /tmp/out/soak*.pid; do
    until_there "${server%.pid}/verdict.json" $((end - $(date +%s)))
  done
  cat /tmp/out/soak*/verdict.json 2> /dev/null || true
  results
}

"$@"
