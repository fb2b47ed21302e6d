"""Recipes in the formats of others, written for these tests: every key that the field uses."""

from __future__ import annotations

from sparkdeploy.recipe.load import Library, Resolved
from tests.unit.conftest import REPOSITORY

V1 = """\
# A recipe of eugr's format.
recipe_version: "1"
name: Parrot 35B (FP8)
description: Parrot on one machine, or two
model: bird/Parrot-35B-FP8
container: vllm-node
build_args:
  - --tf5
mods: []
cluster_only: false
defaults:
  port: 8001
  host: 0.0.0.0
  tensor_parallel: 2
  gpu_memory_utilization: 0.8
  max_model_len: 64K
  num_speculative_tokens: 2
  unused: 1
env:
  VLLM_MARLIN_USE_ATOMIC_ADD: 1
  HF_TOKEN: "${HF_TOKEN}"
command: |
  vllm serve bird/Parrot-35B-FP8 \\
    --host {host} --port {port} \\
    --max-model-len {max_model_len} \\
    --gpu-memory-utilization {gpu_memory_utilization} \\
    --enable-prefix-caching \\
    --reasoning-parser qwen3 \\
    --default-chat-template-kwargs '{{"enable_thinking":true}}' \\
    --default-chat-template-kwargs.thinking_budget 4096 \\
    --compilation-config '{{"pass_config":{{"fuse_act_quant":true}}}}' \\
    --speculative-config '{{"method":"mtp","num_speculative_tokens":{num_speculative_tokens},
      "moe_backend":"triton"}}' \\
    --async-scheduling \\
    -tp {tensor_parallel} --distributed-executor-backend ray
"""

V2 = """\
recipe_version: "2"
model: bird/Crow-8B
model_revision: 1234567890abcdef1234567890abcdef12345678
runtime: vllm-ray
container: vllm/vllm-openai:v0.32.0
min_nodes: 2
max_nodes: 4
metadata:
  description: Crow on several machines
  maintainer: nobody
defaults:
  port: 8000
  tensor_parallel: 2
  served_model_name: crow bird/Crow-8B
  trust_remote_code: true
  enable_prefix_caching: false
  kv_cache_dtype: fp8
  no_flag_of_vllm: 3
env:
  NCCL_IB_HCA: mlx5_0
executor_config: {user: root}
post_exec:
  - curl http://127.0.0.1:{port}/v1/models
variants:
  long:
    max_model_len: 131072
    env: {VLLM_LOGGING_LEVEL: DEBUG}
"""
"""Without a command: it is made from the defaults."""

WITH_WORDS = """\
recipe_version: "2"
model: bird/Owl-1B
container: example.org/owl@sha256:{digest}
volumes:
  - ~/models/owl:/model:ro
pre_exec:
  - pip install owl-kernels
command: |
  export CUDA_HOME="${{CUDA_HOME:-/usr/local/cuda}}";
  pip install more;
  OMP_NUM_THREADS=4 exec /usr/local/bin/vllm serve /model \\
    --served-model-name owl \\{blank}
    --max-num-seqs 4  # a word of the author's
""".format(digest="a" * 64, blank="  ")
"""Words before vLLM, a blank behind a backslash, a comment, a folder that is mounted."""

SHELF = Library((REPOSITORY / "recipes",))
ALLOWED = "allow_unsafe=true"


def left_out(resolved: Resolved) -> dict[str, str]:
    assert resolved.translation is not None
    return {note.theirs.partition(":")[0]: note.outcome for note in resolved.translation.dropped}
