"""Which shipped recipes are rehearsed by a test, and why the others are not."""

from __future__ import annotations

OF_THE_122B = frozenset(
    {
        *("35b-v2", "baseline", "dflash", "dflash-prose", "hybrid", "mtp-1", "mtp-2", "no-hybrid"),
        *("v2", "v2-hub", "v2-kv8", "v2-tq", "v2-tq-3bit", "v2-tq-k8v4", "v3"),
        *("v3-fast",),
    }
)
"""test_rehearsals.py has these."""
BY_THEIR_OWN_CONFIGURATION = (
    *("glm-4.7-flash", "gpt-oss-120b", "gpt-oss-120b-mxfp4", "qwen3-coder-next"),
    *("qwen3.6-35b-fast", "qwen3.6-27b-fast", "gpt-oss-120b-fast"),
    *("qwen3-vl-embedding", "qwen3-vl-reranker", "qwen3.5-397b-int4", "qwen3.6-27b"),
    *("qwen3.6-35b", "qwen3.6-35b-mtp", "qwen3.6-35b-nvfp4", "qwen3.8-27b-nvfp4"),
)
"""recipes/facts/models.yaml has what their owners publish, or they are of the twin's family."""
BY_A_SMALL_ONE = {"gemma4-26b": "gemma4"}
"""What is shipped of their configurations lacks a part; a test's stands in."""
_NO_LAYERS = "how a '{}' model keeps a request is not known here"
NOT_REHEARSED = {
    "deepseek-v4-flash": _NO_LAYERS.format("deepseek_v4"),
    "glm-5.3-flash": f"needs a fork, and {_NO_LAYERS.format('glm5_next_text')}",
    "minimax-m2.7": "vLLM 0.32's own model dies of its first request on a CPU",
    "nemotron-3-super": "vLLM 0.32 has no kernel for its experts on a CPU",
    "nemotron-3.5-lightning": "vLLM 0.32 has no kernel for its experts on a CPU",
    "qwen3.8-flash-next": f"needs a fork, and {_NO_LAYERS.format('qwen4_exp_text')}",
    "qwen3.8-flash-next-int4": f"needs a fork, and {_NO_LAYERS.format('qwen4_exp_text')}",
    "qwen3.8-flash-next-solo": f"needs a fork, and {_NO_LAYERS.format('qwen4_exp_text')}",
}
