#!/usr/bin/env bash
# On the GPU machine, in the checkout's root: the soak alone, on vLLM 0.25.1 as pack.sh has packed it.
# README.md beside this has the calls.
#   soak_sitting.sh first           unpack the code, make the twin in the background
#   soak_sitting.sh part            take the part of the site that this call carried
#   soak_sitting.sh start           join the parts, start the server and its load
#   soak_sitting.sh soaked SECONDS  wait for the end, no longer than that; what there is goes to $OUT
# PARTS, SITE, SOAK and PORT are its own where 0.33.0 is soaked beside it.
set -euo pipefail
PARTS=${PARTS:-/tmp/parts}
export SITE=${SITE:-/tmp/site}
SOAK=${SOAK:-soak}
HERE=$(cd "$(dirname "$0")" && pwd)

first() {
  mkdir -p "$PARTS" /tmp/m /tmp/lite /tmp/logs /tmp/out
  cp -r .gpu/lite/. /tmp/lite/
  TWINS=wide bash "$HERE/prepare.sh"
  nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv
  python3 -c 'import sys, torch; print(sys.version, torch.__version__)'
}

part() {
  mkdir -p "$PARTS"
  mv .gpu/site.zst.* "$PARTS/"
  find "$PARTS" -name 'site.zst.*' | wc -l
}

start() {
  PARTS=$PARTS bash "$HERE/unpack.sh"
  timeout 200 bash -c "until grep -q took /tmp/m/wide.log; do sleep 1; done"
  tail -n 1 /tmp/m/wide.log
  SOAK=$SOAK STAND_PYTHON=python3 bash /tmp/stand/soak_server.sh
}

soaked() {
  local end=$(($(date +%s) + $1))
  until [ -e "/tmp/out/$SOAK/verdict.json" ] || [ "$(date +%s)" -ge "$end" ]; do sleep 2; done
  cp "/tmp/out/$SOAK"/*.json* "$OUT/" 2> /dev/null || true
  tar -czf "$OUT/logs.tgz" -C /tmp logs
  tail -c 600 "/tmp/logs/$SOAK.txt"
  tail -n 1 "/tmp/logs/$SOAK-server.log" | cut -c 1-200
  tail -n 1 "/tmp/out/$SOAK/soak.jsonl" 2> /dev/null | cut -c 1-400 || true
}

"$@"
