"""Cases for a lent GPU: published models by their configurations, and small ones of all families.

`python -m tests.gpu.families .gpu/cases` writes large.json, whose models have weights of 20 GB and
more and measure what is left for their cache, and small-N.json, whose pools are fixed. On the GPU
`tests/engine/vllm/inside/log_of_family.py CASES RESULTS` starts them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.families import config
from tests.families.cases import CASES

PARTS = 3
"""Programs that share the card with small models."""

QWEN3_14B: dict[str, Any] = {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "max_window_layers": 40,
    "tie_word_embeddings": False,
}
DEEPSEEK_V2_LITE: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
    },
}
GPT_OSS_120B: dict[str, Any] = {
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "eos_token_id": 200002,
    "pad_token_id": 199999,
    "quantization_config": {"quant_method": "mxfp4"},
}
GEMMA3_12B: dict[str, Any] = {
    "hidden_size": 3840,
    "intermediate_size": 15360,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 8,
    "tie_word_embeddings": True,
}
LARGE = {
    "Qwen3-14B": ("qwen3-dense", QWEN3_14B),
    "DeepSeek-V2-Lite": ("deepseek-v2", DEEPSEEK_V2_LITE),
    "gpt-oss-120b": ("gpt-oss", GPT_OSS_120B),
    "Gemma-3-12B": ("gemma3", GEMMA3_12B),
}
"""The published config.json's sizes, over the further keys of the small one."""


def large_config(name: str) -> dict[str, Any]:
    family, own = LARGE[name]
    return {**config(family), **own}


def _large_cases() -> list[dict[str, Any]]:
    arguments = {"gpu_memory_utilization": 0.9, "max_num_seqs": 256}
    return [{"name": name, "config": large_config(name), "arguments": arguments} for name in LARGE]


def _small_cases() -> list[dict[str, Any]]:
    shared = {"gpu_memory_utilization": 0.1}
    return [
        {**made, "arguments": {**made["arguments"], **shared}}
        for made in (case.as_dict() for case in CASES)
    ]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "large.json").write_text(json.dumps(_large_cases()), encoding="utf-8")
    small = _small_cases()
    for part in range(PARTS):
        text = json.dumps(small[part::PARTS])
        (folder / f"small-{part}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
