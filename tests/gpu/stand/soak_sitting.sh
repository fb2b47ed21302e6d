#!/usr/bin/env bash
# On the GPU machine, in the checkout's root: the soak alone, on vLLM 0.25.1 as pack.sh has packed it.
# README.md beside this has the calls.
#   soak_sitting.sh first           unpack the code, make the twin in the background
#   soak_sitting.sh part            take the part of the site that this call carried
#   soak_sitting.sh start           join the parts, start the server and its load
#   soak_sitting.sh soaked SECONDS  wait for the end, no longer than that; what there is goes to $OUT
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)

first() {
  mkdir -p /tmp/parts /tmp/m /tmp/lite /tmp/logs /tmp/out
  cp -r .gpu/lite/. /tmp/lite/
  TWINS=wide bash "$HERE/prepare.sh"
  nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv
  python3 -c 'import sys, torch; print(sys.version, torch.__version__)'
}

part() {
  mv .gpu/site.zst.* /tmp/parts/
  find /tmp/parts -name 'site.zst.*' | wc -l
}

start() {
  bash "$HERE/unpack.sh"
  timeout 200 bash -c "until grep -q took /tmp/m/wide.log; do sleep 1; done"
  tail -n 1 /tmp/m/wide.log
  STAND_PYTHON=python3 SITE=/tmp/site bash /tmp/stand/soak_server.sh
}

soaked() {
  local end=$(($(date +%s) + $1))
  until [ -e /tmp/out/soak/verdict.json ] || [ "$(date +%s)" -ge "$end" ]; do sleep 2; done
  cp /tmp/out/soak/*.json* "$OUT/" 2> /dev/null || true
  tar -czf "$OUT/logs.tgz" -C /tmp logs
  tail -c 600 /tmp/logs/soak.txt
  tail -n 1 /tmp/logs/soak-server.log | cut -c 1-200
  tail -n 1 /tmp/out/soak/soak.jsonl 2> /dev/null | cut -c 1-400 || true
}

"$@"
