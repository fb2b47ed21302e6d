#!/usr/bin/env bash
# On a machine with two GPUs, in the checkout's root: the whole 35B with each piece on and off, on one
# rank and two, on vLLM 0.25.1 and 0.33.0. README.md beside this has the calls.
#   pieces.sh first         unpack the code, make the twin and the full-size folders
#   pieces.sh part          take the part of 0.25.1's site that this call carried
#   pieces.sh start         kernels alone, then 0.25.1's servers on both cards
#   pieces.sh part33        take the part of 0.33.0's site that this call carried
#   pieces.sh start33       0.33.0's servers as soon as the second card's first ones are through
#   pieces.sh take SECONDS  wait for the end, no longer than that; what there is goes to $OUT
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
OUT_ROOT=/tmp/out
CONVERSIONS='35b-mtp3 35b-hybrid-mtp3 35b-int4-head-mtp3 35b-int4-drafts-mtp3 35b-fast'
PIECES='35b-v2-alike 35b-v2 35b-v2-vllm 35b-v2-shared 35b-v2-routing 35b-v2-two'
LATER='35b 35b-v2 35b-v2-vllm 35b-v2-two'
own33() { TWINS=nervous PARTS=/tmp/parts33 SITE=/tmp/site33 bash "$HERE/own_torch.sh" "$@"; }

first() {
  mkdir -p /tmp/parts /tmp/parts33 /tmp/m /tmp/lite /tmp/logs "$OUT_ROOT"
  cp -r .gpu/lite/. /tmp/lite/
  TWINS=nervous bash "$HERE/prepare.sh"
  PYTHONPATH=/tmp/code:/tmp/lite setsid nohup python3 /tmp/stand/full_size.py /tmp/m 35b part \
    > /tmp/logs/full_size.txt 2>&1 &
  nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv
}

part() {
  mv .gpu/site.zst.* /tmp/parts/
}

serve() { # OUT NAMES, in the plan PLAN
  local out=$OUT_ROOT/$1
  shift
  # shellcheck disable=SC2086
  LOGS=$out-logs python3 serve.py "${PLAN:-full_size}.json" "$out" $* > "$out.txt" 2>&1 || true
  touch "$out/through"
}

start() {
  bash /tmp/stand/unpack.sh
  python3 -m compileall -q -j 24 /tmp/site || true
  timeout 120 bash -c 'until [ "$(grep -c took /tmp/logs/full_size.txt)" = 2 ]; do sleep 1; done'
  cd /tmp/stand
  mkdir -p "$OUT_ROOT"
  export PYTHONPATH=/tmp/plugin:/tmp/site
  for kernel in shared_expert.py routing.py turboquant_rows.py 'turboquant_rows.py 12.1'; do
    # shellcheck disable=SC2086
    timeout 60 python3 $kernel > "$OUT_ROOT/${kernel/ /-}.jsonl" 2>> "$OUT_ROOT/kernels.err" || true
  done
  cat "$OUT_ROOT"/*.jsonl
  unset PYTHONPATH
  export -f serve
  export OUT_ROOT
  CUDA_VISIBLE_DEVICES=0 PORT=8100 setsid nohup bash -c \
    "serve conversions $CONVERSIONS; serve prompts part-v2-tq" > /tmp/logs/card0.txt 2>&1 &
  CUDA_VISIBLE_DEVICES=1 PORT=8200 setsid nohup bash -c "serve pieces $PIECES" \
    > /tmp/logs/card1.txt 2>&1 &
}

part33() {
  mv .gpu/033/site.zst.* /tmp/parts33/
}

start33() {
  mkdir -p /tmp/lib
  cp .gpu/033/first/lib/* /tmp/lib/
  cp .gpu/033/site.sha256 /tmp/parts33/
  own33 site
  export -f serve
  export OUT_ROOT
  setsid nohup bash -c "
    export CUDA_VISIBLE_DEVICES=1 SITE=/tmp/site33 PYTHONPATH=/tmp/site33 PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK=1
    until [ -e $OUT_ROOT/pieces/through ]; do sleep 1; done
    cd /tmp/stand
    python3() { /tmp/venv/bin/python \"\$@\"; }
    PLAN=own_torch_graphs PORT=8400 serve graphs33 &
    PORT=8300 serve pieces33 $LATER
    wait" > /tmp/logs/later.txt 2>&1 &
}

take() {
  local end=$(($(date +%s) + $1)) plan
  for plan in conversions pieces prompts pieces33 graphs33; do
    until [ -e "$OUT_ROOT/$plan/through" ] || [ "$(date +%s)" -ge "$end" ]; do sleep 2; done
  done
  (cd "$OUT_ROOT" && tar -czf "$OUT/out.tgz" --exclude=traces .)
  tail -qn 3 "$OUT_ROOT"/*.txt | cut -c 1-300
  nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader
  ls "$OUT_ROOT"/*
}

"$@"
