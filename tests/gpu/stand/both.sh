#!/usr/bin/env bash
# On the GPU machine, once everything is unpacked: wait for the twins, then run both plans in the
# background, the second one's servers starting while the first one's are asked. Each plan leaves
# /tmp/out/PLAN/done when it is through.
set -euo pipefail
for twin in wide nervous; do
  timeout 240 bash -c "until grep -q took /tmp/m/$twin.log; do sleep 1; done"
  cat "/tmp/m/$twin.log"
done
cd /tmp/stand
for plan in turboquant wide; do
  setsid nohup python3 serve.py $plan.json /tmp/out/$plan > /tmp/out-$plan.txt 2>&1 &
done
