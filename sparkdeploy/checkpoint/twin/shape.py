"""How large a twin is."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sparkdeploy.errors import CheckpointError

GROUP_SIZE = 128
"""Input elements that share one INT4 scale, as in Intel's checkpoint."""

FULL_ATTENTION_INTERVAL = 4
"""Every fourth layer has full attention, the others are Gated DeltaNet."""


class ExpertFormat(StrEnum):
    """How the routed experts are stored. CPU engines can only run BF16 ones."""

    BF16 = "bf16"
    INT4 = "int4"


@dataclass(frozen=True, slots=True)
class TwinShape:
    """Sizes of a twin, in elements and counts; the defaults fit two cores and a few megabytes.

    Two things stay as in the real model, since engines have kernels for them only: attention heads
    of 256 and DeltaNet heads of 128. Raises CheckpointError for sizes that no engine could load.
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
    expert_format: ExpertFormat = ExpertFormat.BF16

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise CheckpointError(f"This twin cannot be built: {'; '.join(problems)}.")

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
    def query_width(self) -> int:
        return self.attention_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def linear_key_width(self) -> int:
        return self.linear_key_heads * self.linear_head_dim

    @property
    def linear_value_width(self) -> int:
        return self.linear_value_heads * self.linear_head_dim

    def _problems(self) -> Iterator[str]:
        grouped = {
            "hidden": self.hidden,
            "expert_intermediate": self.expert_intermediate,
            "shared_expert_intermediate": self.shared_expert_intermediate,
            "attention_heads x head_dim": self.query_width,
            "linear_value_heads x linear_head_dim": self.linear_value_width,
        }
        for name, size in grouped.items():
            if size < GROUP_SIZE or size % GROUP_SIZE:
                yield f"{name} is {size}, not a multiple of {GROUP_SIZE}"
        if self.layers < FULL_ATTENTION_INTERVAL:
            least = FULL_ATTENTION_INTERVAL
            yield f"layers is {self.layers}, less than {least}, so that no layer has full attention"
        if not 320 <= self.vocab <= 400_000:
            yield f"vocab is {self.vocab}, not between 320 and 400000"
        if not 1 <= self.experts_per_token <= self.experts:
            yield f"experts_per_token is {self.experts_per_token}, with {self.experts} experts"
        multiples = {
            "attention_heads must be a multiple of kv_heads": (self.attention_heads, self.kv_heads),
            "linear_value_heads must be a multiple of linear_key_heads": (
                self.linear_value_heads,
                self.linear_key_heads,
            ),
            "vision_hidden must be a multiple of vision_heads": (
                self.vision_hidden,
                self.vision_heads,
            ),
        }
        for problem, (size, divisor) in multiples.items():
            if divisor <= 0 or size % divisor:
                yield problem
