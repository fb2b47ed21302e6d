#!/usr/bin/env bash
# On the GPU machine, in the background: the recipe `v2` as a user starts it, with CUDA graphs and
# prefix caching, and the soak's load beside it. STAND_PYTHON and SITE say which vLLM, SOAK_S how
# long, SOAK and PORT what is its own where two are soaked on one machine.
set -euo pipefail
PORT=${PORT:-8500}
SOAK=${SOAK:-soak}
cd /tmp/stand
mkdir -p /tmp/logs /tmp/out
VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_USE_DEEP_GEMM=0 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 \
  OMP_NUM_THREADS=2 PYTHONPATH=/tmp/stand/smallest:$SITE:/tmp/plugin \
  setsid nohup "$STAND_PYTHON" -m vllm.entrypoints.openai.api_server \
  --model /tmp/m/m/ck/v2 --host 127.0.0.1 --port "$PORT" --served-model-name twin --seed 0 \
  --max-model-len 32768 --max-num-batched-tokens 4096 --max-num-seqs 8 \
  --limit-mm-per-prompt '{"image":0,"video":0}' --gdn-prefill-backend triton \
  --enable-prefix-caching --enable-auto-tool-choice --tool-call-parser qwen3_coder \
  --gpu-memory-utilization 0.05 --kv-cache-memory-bytes 3221225472 \
  --speculative-config '{"method":"mtp","num_speculative_tokens":2}' \
  --compilation-config '{"cudagraph_capture_sizes":[1,2,3,4,6,8,12,18,24]}' \
  > "/tmp/logs/$SOAK-server.log" 2>&1 &
server=$!
echo "$server" > "/tmp/out/$SOAK.pid"
setsid nohup "$STAND_PYTHON" soak.py run "http://127.0.0.1:$PORT" "/tmp/out/$SOAK" \
  --seconds "${SOAK_S:-900}" --wait-s 560 --pid "$server" > "/tmp/logs/$SOAK.txt" 2>&1 &
