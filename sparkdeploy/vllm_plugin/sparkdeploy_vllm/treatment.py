"""What the checkpoint asks of the plugin, read from config.json; standard library only."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

METHOD_NAME = "spark-hybrid"
BLOCK_KEY = "spark_hybrid"
SUPPORTED_BASE_METHODS = ("auto-round",)
FP8_MODES = ("online", "prebuilt", "finished")
"""Made while loading; beside the BF16 weights; in the place of the BF16 weights."""

FP8_LAYER = (
    r"(?!(?:.*\.)?mtp\.)(?:.*\.)?mlp\.shared_expert\.(?:gate_up_proj|gate_proj|up_proj|down_proj)\Z"
)
"""Matched from the start of a module's whole name; vLLM's own targets take it as it stands."""
FP8_SCHEME = "fp8_per_block"
"""vLLM's word for e4m3 in blocks of 128 x 128, activations per token in groups of 128."""
_FP8_LAYER = re.compile(FP8_LAYER, re.ASCII)


@dataclass(frozen=True, slots=True)
class DraftHead:
    """The draft model's own head: how many rows, and which file beside config.json lists them."""

    rows: int
    file: str

    @classmethod
    def from_block(cls, block: object) -> "DraftHead | None":
        """None for null; ValueError when it asks for something this plugin does not know."""
        if block is None:
            return None
        if not isinstance(block, Mapping) or block.get("dtype") != "int8":
            raise ValueError(f"{BLOCK_KEY}.draft_lm_head is {block!r}; its dtype must be 'int8'")
        return cls(rows=int(str(block["rows"])), file=str(block["file"]))


@dataclass(frozen=True, slots=True)
class Treatment:
    """The `spark_hybrid` block of config.json, checked.

    `expected_fp8_layers` counts checkpoint modules (gate, up and down are three), None when the
    checkpoint does not say.
    """

    base_method: str
    fp8_mode: str | None
    """One of FP8_MODES, or None when nothing is FP8."""
    fp8_block: tuple[int, int]
    int8_lm_head: bool
    expected_fp8_layers: int | None
    draft_head: DraftHead | None

    @classmethod
    def from_block(cls, block: Mapping[str, object]) -> "Treatment":
        """Check the block; ValueError names the first entry this plugin does not understand."""
        if block.get("version") != 1:
            raise ValueError(
                f"{BLOCK_KEY}.version is {block.get('version')!r}; this plugin reads 1"
            )
        fp8 = block.get("fp8")
        head = block.get("lm_head", "bf16")
        if head not in ("bf16", "int8"):
            raise ValueError(f"{BLOCK_KEY}.lm_head is {head!r}; this plugin knows bf16 and int8")
        expected = block.get("expected_fp8_layers")
        return cls(
            base_method=_base_method(block),
            fp8_mode=str(fp8.get("mode")) if isinstance(fp8, Mapping) else None,
            fp8_block=_fp8_block(fp8),
            int8_lm_head=head == "int8",
            expected_fp8_layers=None if expected is None else int(str(expected)),
            draft_head=DraftHead.from_block(block.get("draft_lm_head")),
        )


def is_fp8_layer(prefix: str) -> bool:
    """Whether the module at `prefix` is a shared-expert projection of the target model.

    Exact on the last path components; `shared_expert_gate` is another module, and everything
    under `mtp.` stays BF16 (quantised drafts are hardly ever accepted).
    """
    return _FP8_LAYER.match(prefix) is not None


def checkpoint_modules(prefix: str, packed: Mapping[str, Sequence[str]]) -> int:
    """How many modules of the checkpoint the (possibly fused) module at `prefix` holds."""
    last = prefix.rpartition(".")[2]
    fused = packed.get(last) or (("gate_proj", "up_proj") if last == "gate_up_proj" else (last,))
    return len(fused)


def _base_method(block: Mapping[str, object]) -> str:
    base = block.get("base_method")
    if base not in SUPPORTED_BASE_METHODS:
        known = ", ".join(SUPPORTED_BASE_METHODS)
        raise ValueError(f"{BLOCK_KEY}.base_method is {base!r}; this plugin builds on {known}")
    return str(base)


def _fp8_block(fp8: object) -> tuple[int, int]:
    if fp8 is None:
        return (128, 128)
    if not isinstance(fp8, Mapping):
        raise ValueError(f"{BLOCK_KEY}.fp8 is {fp8!r}; it must be an object or null")  # noqa: TRY004
    if fp8.get("mode") not in FP8_MODES or fp8.get("layers") != "shared_expert":
        raise ValueError(
            f"{BLOCK_KEY}.fp8 asks for mode {fp8.get('mode')!r} on {fp8.get('layers')!r}; "
            f"this plugin knows mode {' or '.join(map(repr, FP8_MODES))} on 'shared_expert'"
        )
    block = fp8.get("block")
    if list(block if isinstance(block, Sequence) else ()) != [128, 128]:
        raise ValueError(f"{BLOCK_KEY}.fp8.block is {block!r}; the kernels take [128, 128]")
    return (128, 128)
