"""The KV arithmetic against the logs of real vLLM 0.25.1 servers on an H200.

docs/figures/plugin-h200.md says how they ran; each line here is one server's `GPU KV cache size`.
"""

from dataclasses import replace

import pytest

from sparkdeploy.estimate.kv_cache import cache_layout
from sparkdeploy.estimate.model_facts import Architecture

GIB = 2**30
VLLM = "0.25.1"
NERVOUS = Architecture(
    hidden_size=1024,
    vocab_size=512,
    full_attention_layers=8,
    linear_attention_layers=24,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=256,
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
    mtp_num_hidden_layers=1,
    max_position_embeddings=262_144,
)
"""The twins of tests/gpu/stand/twins.py."""
WIDE = replace(NERVOUS, full_attention_layers=5, linear_attention_layers=15)


def logged(architecture: Architecture, kv_dtype: str, drafts: int, gib: float, length: int) -> int:
    layout = cache_layout(
        architecture, kv_dtype=kv_dtype, draft_layers=min(1, drafts), draft_tokens=drafts
    )
    return layout.logged_tokens(int(gib * GIB), length, VLLM)


@pytest.mark.parametrize(
    ("kv_dtype", "drafts", "gib", "length", "tokens"),
    [
        ("auto", 0, 2, 4096, 103_693),
        ("auto", 2, 2, 4096, 70_123),
        ("turboquant_4bit_nc", 0, 2, 4096, 292_571),
        ("turboquant_4bit_nc", 2, 2, 4096, 137_688),
        ("auto", 0, 3, 131_072, 195_121),
        ("auto", 2, 3, 131_072, 171_381),
        ("turboquant_k8v4", 0, 3, 131_072, 508_421),
        ("turboquant_k8v4", 2, 3, 131_072, 438_021),
        ("turboquant_4bit_nc", 0, 3, 131_072, 750_412),
        ("turboquant_4bit_nc", 2, 3, 131_072, 632_229),
        ("turboquant_3bit_nc", 0, 3, 131_072, 979_107),
        ("turboquant_3bit_nc", 2, 3, 131_072, 818_887),
    ],
)
def test_tokens_are_those_that_vllm_logged(
    kv_dtype: str, drafts: int, gib: int, length: int, tokens: int
) -> None:
    assert logged(NERVOUS, kv_dtype, drafts, gib, length) == tokens


@pytest.mark.parametrize(
    ("gib", "tokens"),
    [(2, 105_185), (36.29, 1_910_210), (36.99, 1_946_583)],
    ids=["fixed", "BF16 head, alone", "INT8 head, alone"],
)
def test_a_cache_that_vllm_measured_itself_is_met_within_the_log_s_rounding(
    gib: float, tokens: int
) -> None:
    assert logged(WIDE, "auto", 2, gib, 4096) == pytest.approx(tokens, rel=5e-4)
