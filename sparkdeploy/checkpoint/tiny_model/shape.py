"""How large a twin is."""

from dataclasses import dataclass
from typing import Literal

FULL_ATTENTION_INTERVAL = 4
"""Every fourth layer has full attention, the others are Gated DeltaNet."""


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of a twin, in elements and counts; the defaults fit two cores and a few megabytes.

    Two things stay as in the real model, since engines have kernels for them only: attention heads
    of 256 and DeltaNet heads of 128.
    """

    layers: int = 4
    hidden: int = 128
    vocab: int = 512
    experts: int = 8
    experts_per_token: int = 2
    expert_intermediate: int = 256
    shared_expert_intermediate: int = 256
    attention_heads: int = 2
    kv_heads: int = 2
    head_dim: int = 256
    linear_key_heads: int = 2
    linear_value_heads: int = 4
    linear_head_dim: int = 128
    conv_kernel: int = 4
    vision_depth: int = 2
    vision_hidden: int = 128
    vision_heads: int = 2
    expert_format: Literal["bf16", "int4"] = "bf16"
    """Of the routed experts. CPU engines can only run BF16 ones."""

    @property
    def in_proj_ab_is_packed(self) -> bool:
        """Whether in_proj_a and in_proj_b are INT4.

        ASSUMPTION, nobody here has seen Intel's file: AutoRound packs a linear layer when both of
        its dimensions divide by 32 (it logs the others as skipped), and these two have one output
        per value head. So they are packed in the real model with its 64 value heads, and stay
        16-bit in a twin of 4.
        """
        return self.linear_value_heads % 32 == 0

    @property
    def layer_types(self) -> tuple[str, ...]:
        return tuple(
            "linear_attention" if (layer + 1) % FULL_ATTENTION_INTERVAL else "full_attention"
            for layer in range(self.layers)
        )

    @property
    def linear_key_width(self) -> int:
        return self.linear_key_heads * self.linear_head_dim

    @property
    def linear_value_width(self) -> int:
        return self.linear_value_heads * self.linear_head_dim
