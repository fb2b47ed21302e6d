"""The KV arithmetic against the logs of real vLLM 0.25.1 servers on an H200.

docs/figures/plugin-h200.md says how they ran; each line here is one server's `GPU KV cache size`.
"""

import pytest

from sparkdeploy.checkpoint.architecture import architecture_of
from sparkdeploy.checkpoint.layers import Architecture
from sparkdeploy.estimate.kv_cache import CacheSettings, cache_layout

GIB = 2**30
VLLM = "0.25.1"


def sized(
    layers: int, hidden: int, vocab: int, heads: int, linear: tuple[int, int]
) -> Architecture:
    """A model of which every fourth layer is full attention; `linear` are key and value heads."""
    text = {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": layers,
        "full_attention_interval": 4,
        "hidden_size": hidden,
        "vocab_size": vocab,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": linear[0],
        "linear_num_value_heads": linear[1],
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262_144,
    }
    return architecture_of({"text_config": text})


NERVOUS, WIDE = (sized(it, 1024, 512, 8, (4, 8)) for it in (32, 20))
"""As twins of tests/gpu/stand/twins.py."""
LARGE = sized(48, 3072, 248_320, 32, (16, 64))
MIDDLE = sized(40, 2048, 248_320, 16, (16, 32))
"""The models of tests/gpu/stand/full_size.py."""


def logged(architecture: Architecture, kv_dtype: str, drafts: int, gib: float, length: int) -> int:
    layout = cache_layout(
        architecture,
        CacheSettings(kv_dtype=kv_dtype, draft_tokens=drafts),
        drafter=architecture.draft_layers if drafts else (),
    )
    assert layout is not None
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


@pytest.mark.parametrize(
    ("architecture", "drafts", "gib", "tokens"),
    [(LARGE, 2, 1.5, 10_426), (MIDDLE, 2, 1, 13_863), (MIDDLE, 3, 1, 11_264)],
    ids=["122B", "35B", "35B, three drafts"],
)
def test_full_size_models_have_the_tokens_that_vllm_logged(
    architecture: Architecture, drafts: int, gib: float, tokens: int
) -> None:
    assert logged(architecture, "auto", drafts, gib, 4096) == tokens
