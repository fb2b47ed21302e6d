"""What the checkpoint asks of the plugin, read from config.json; standard library only."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

METHOD_NAME = "spark-hybrid"
BLOCK_KEY = "spark_hybrid"
PLAIN = "none"
"""The base of a checkpoint of 16 bits: what no treatment names stays as it is."""
SUPPORTED_BASE_METHODS = ("auto-round", PLAIN)
LM_HEADS = ("bf16", "int8", "int4")
FP8_MODES = ("online", "prebuilt", "finished")
"""Made while loading; beside the BF16 weights; in the place of the BF16 weights."""

FP8_LAYER = (
    r"(?!(?:.*\.)?mtp\.)(?:.*\.)?mlp\.shared_expert\.(?:gate_up_proj|gate_proj|up_proj|down_proj)\Z"
)
"""Matched from the start of a module's whole name; vLLM's own targets take it as it stands."""
FP8_SCHEME = "fp8_per_block"
"""vLLM's word for e4m3 in blocks of 128 x 128, activations per token in groups of 128."""
FP8_BLOCK = 128
"""Rows, and columns, of a weight's block, which has one scale; inputs of a token's group."""

DRAFT_DENSE = (
    r"(?:.*\.)?mtp\.(?:fc|layers\.\d+\.(?:self_attn\.(?:qkv|q|k|v|o)_proj"
    r"|mlp\.(?:shared_expert\.)?(?:gate_up|gate|up|down)_proj))\Z"
)
"""A draft layer's matrices that are read whole in every pass, by their modules' whole names."""
INT4_GROUP = 128
"""Inputs of an expert's output that share a scale, as in Intel's checkpoint."""
_FUSED = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
}


@dataclass(frozen=True, slots=True)
class DraftHead:
    """The draft model's own head: how many rows, and which file beside config.json lists them."""

    rows: int
    file: str

    @classmethod
    def from_block(cls, block: object) -> "DraftHead | None":
        if block is None:
            return None
        if not isinstance(block, Mapping) or block.get("dtype") != "int8":
            raise ValueError(f"{BLOCK_KEY}.draft_lm_head is {block!r}; its dtype must be 'int8'")
        return cls(rows=int(str(block["rows"])), file=str(block["file"]))


@dataclass(frozen=True, slots=True)
class DraftLayer:
    """The draft layer's weights as INT4 and FP8, and how many of each the checkpoint has."""

    int4_layers: int
    """Layers of experts."""
    fp8_layers: int
    """Modules of the checkpoint, as those of the model."""

    @classmethod
    def from_block(cls, block: object) -> "DraftLayer | None":
        if block is None:
            return None
        asked = dict(block) if isinstance(block, Mapping) else {}
        if (asked.get("experts"), asked.get("group"), asked.get("dense")) != (
            "int4",
            INT4_GROUP,
            "fp8",
        ):
            raise ValueError(
                f"{BLOCK_KEY}.draft_layer is {block!r}; this plugin knows experts of 'int4' in "
                f"groups of {INT4_GROUP} and dense matrices of 'fp8'"
            )
        return cls(int(str(asked["int4_layers"])), int(str(asked["fp8_layers"])))


@dataclass(frozen=True, slots=True)
class SharedExperts:
    """The target's shared experts as INT4, and how many modules of them the checkpoint has."""

    int4_layers: int
    """Gate, up and down count each."""

    @classmethod
    def from_block(cls, block: object) -> "SharedExperts | None":
        if block is None:
            return None
        asked = dict(block) if isinstance(block, Mapping) else {}
        if (asked.get("dtype"), asked.get("group")) != ("int4", INT4_GROUP):
            raise ValueError(
                f"{BLOCK_KEY}.shared_experts is {block!r}; this plugin knows 'int4' in groups of "
                f"{INT4_GROUP}"
            )
        return cls(int(str(asked["int4_layers"])))


@dataclass(frozen=True, slots=True)
class HybridTreatment:
    """The `spark_hybrid` block of config.json, checked."""

    base_method: str
    fp8_mode: str | None
    """One of FP8_MODES, or None when nothing is FP8."""
    lm_head: str
    """One of LM_HEADS."""
    expected_fp8_layers: int | None
    """Modules of the checkpoint (gate, up and down are three); None when it does not say."""
    draft_head: DraftHead | None
    draft_layer: DraftLayer | None
    shared_experts: SharedExperts | None

    @classmethod
    def from_block(cls, block: Mapping[str, object]) -> "HybridTreatment":
        """ValueError names the first entry this plugin does not understand."""
        if block.get("version") != 1:
            raise ValueError(
                f"{BLOCK_KEY}.version is {block.get('version')!r}; this plugin reads 1"
            )
        base = block.get("base_method")
        if base not in SUPPORTED_BASE_METHODS:
            known = ", ".join(SUPPORTED_BASE_METHODS)
            raise ValueError(f"{BLOCK_KEY}.base_method is {base!r}; this plugin builds on {known}")
        head = block.get("lm_head", "bf16")
        if head not in LM_HEADS:
            known = ", ".join(LM_HEADS)
            raise ValueError(f"{BLOCK_KEY}.lm_head is {head!r}; this plugin knows {known}")
        expected = block.get("expected_fp8_layers")
        fp8_mode = _fp8_mode(block.get("fp8"))
        shared_experts = SharedExperts.from_block(block.get("shared_experts"))
        if fp8_mode is not None and shared_experts is not None:
            raise ValueError(f"{BLOCK_KEY} asks for shared experts of FP8 and of INT4")
        return cls(
            base_method=str(base),
            fp8_mode=fp8_mode,
            lm_head=str(head),
            expected_fp8_layers=None if expected is None else int(str(expected)),
            draft_head=DraftHead.from_block(block.get("draft_lm_head")),
            draft_layer=DraftLayer.from_block(block.get("draft_layer")),
            shared_experts=shared_experts,
        )


def is_fp8_layer(prefix: str) -> bool:
    """Whether the module at `prefix` is a shared-expert projection of the target model.

    Those are what becomes FP8, or INT4.

    Exact on the last path components; `shared_expert_gate` is another module, and what is under
    `mtp.` is the draft layer's, a treatment of its own.
    """
    return re.match(FP8_LAYER, prefix, re.ASCII) is not None


def is_draft_dense(prefix: str) -> bool:
    """Whether the module at `prefix` is a matrix of a draft layer; its router and gate are none."""
    return re.match(DRAFT_DENSE, prefix, re.ASCII) is not None


def checkpoint_modules(prefix: str, packed: Mapping[str, Sequence[str]]) -> int:
    """How many modules of the checkpoint the (possibly fused) module at `prefix` holds."""
    last = prefix.rpartition(".")[2]
    return len(packed.get(last) or _FUSED.get(last, (last,)))


def refuse_broken_blocks(name: str, *, rows: Sequence[int], columns: int, is_parted: bool) -> None:
    """Raise ValueError when a rank's part of layer `name` ends within a block of 128 x 128.

    `rows` are the outputs of each module that the layer fuses, `columns` its inputs, both of one
    rank. A layer that is whole may end in a partial block: its neighbour is no other's.
    """
    if is_parted and any(count % FP8_BLOCK for count in (columns, *rows)):
        raise ValueError(
            f"sparkdeploy: FP8 blocks of {FP8_BLOCK} x {FP8_BLOCK} do not divide the part of "
            f"{name} that a rank would hold, {list(rows)} x {columns}; use fewer tensor-parallel "
            "ranks"
        )


def refuse_broken_groups(
    name: str, columns: int, group: int, *, setting: str = "mtp_weights"
) -> None:
    """Raise ValueError when `columns` inputs, what a rank holds of layer `name`, end in a group.

    `setting` is the checkpoint's that asks for them.
    """
    if columns % group:
        raise ValueError(
            f"sparkdeploy: groups of {group} inputs do not divide the {columns} that a rank would "
            f"hold of {name}; use fewer tensor-parallel ranks, or set checkpoint.{setting} to bf16"
        )


def _fp8_mode(fp8: object) -> str | None:
    if fp8 is None:
        return None
    if not isinstance(fp8, Mapping):
        raise ValueError(f"{BLOCK_KEY}.fp8 is {fp8!r}; it must be an object or null")  # noqa: TRY004
    mode, block = fp8.get("mode"), fp8.get("block")
    if mode not in FP8_MODES or fp8.get("layers") != "shared_expert":
        raise ValueError(
            f"{BLOCK_KEY}.fp8 asks for mode {mode!r} on {fp8.get('layers')!r}; "
            f"this plugin knows mode {' or '.join(map(repr, FP8_MODES))} on 'shared_expert'"
        )
    if list(block if isinstance(block, Sequence) else ()) != [FP8_BLOCK, FP8_BLOCK]:
        raise ValueError(f"{BLOCK_KEY}.fp8.block is {block!r}; the kernels take [128, 128]")
    return str(mode)
