#!/usr/bin/env bash
# On a machine with two GPUs, in the folder that .gpu was carried to:
#   two.sh first          unpack the code and Ray, make the twins in the background
#   two.sh start SITTING  unpack the joined parts, wait for the twins, start the sitting's servers
#   two.sh take SECONDS   wait for the sitting, no longer than that; what there is goes to $OUT
# Between the first two the parts of .gpu/site.zst go to /tmp/parts, as many a call as may travel.
set -euo pipefail

first() {
  mkdir -p /tmp/parts /tmp/m /tmp/lite /tmp/packed-ray
  cp -r .gpu/lite/. /tmp/lite/
  # What makes the twins, there already: prepare.sh then leaves them to this script, which knows
  # where pydantic is before the parts have come.
  tar -xOf .gpu/code.tar tests/gpu/stand/twins.py > /tmp/m/twins.py
  bash <(tar -xOf .gpu/code.tar tests/gpu/stand/prepare.sh)
  cp .gpu/two.json /tmp/stand/
  for twin in ${TWINS:-wide nervous narrow}; do
    PYTHONPATH=/tmp/code:/tmp/lite setsid nohup python3 /tmp/m/twins.py "$twin" /tmp/m \
      > "/tmp/m/$twin.log" 2>&1 &
  done
  LD_LIBRARY_PATH=/tmp/zstd /tmp/zstd/zstd -dc .gpu/ray.zst | tar -x -C /tmp/packed-ray
  nvidia-smi --query-gpu=index,name,driver_version --format=csv
  unshare --mount --ipc --pid --fork --kill-child --mount-proc -- mount -t tmpfs none /dev/shm
  nproc
}

start() {
  bash /tmp/stand/unpack.sh
  PYTHONPATH=/tmp/packed-ray:/tmp/site python3 -m ray.scripts.scripts --version
  for twin in ${TWINS:-wide nervous narrow}; do
    timeout 150 bash -c "while pgrep -f 'twins.py $twin ' > /dev/null; do sleep 1; done" || true
    tail -n 1 "/tmp/m/$twin.log"
  done
  cd /tmp/stand
  PYTHONPATH=/tmp/site setsid nohup python3 two.py two.json /tmp/out "$1" > /tmp/two.log 2>&1 &
}

take() {
  local end=$(($(date +%s) + $1))
  until [ -e /tmp/out/done ] || [ "$(date +%s)" -ge "$end" ]; do sleep 2; done
  ls -l /tmp/out
  tail -c 1500 /tmp/two.log
  for log in /tmp/logs/*.log; do echo "$log $(tail -n 1 "$log" | cut -c 1-150)"; done
  cp /tmp/out/*.json "$OUT/" || true
  tar -czf "$OUT/logs.tgz" -C /tmp logs two.log
}

"$@"
