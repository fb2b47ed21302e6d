"""What the checkpoint asks of the plugin, read from config.json; standard library only."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

METHOD_NAME = "spark-hybrid"
BLOCK_KEY = "spark_hybrid"
PLAIN = "none"
"""The base of a checkpoint of 16 bits: what no conversion names stays as it is."""
LOADERS_OF_THEIR_OWN = ("bitsandbytes", "gguf", "torchao")
"""Bases that vLLM loads in ways of their own, chosen by the method's name."""
LM_HEADS = ("bf16", "int8", "int4")
KERNELS = ("vllm", "fused")
"""Of shared experts, and of routing, in a step of few rows."""
MOST_ROWS = 8
"""Of a step whose shared experts and routing are fused: one or two requests with drafts."""
MARLIN_ROWS = 8
"""Rows that Marlin takes of one expert at a time; so few rows fill one block of each."""
FP8_MODES = ("online", "prebuilt", "finished")
"""Made while loading; beside the BF16 weights; in the place of the BF16 weights."""

FP8_LAYER = (
    r"(?!(?:.*\.)?mtp\.)(?:.*\.)?mlp\.shared_expert\.(?:gate_up_proj|gate_proj|up_proj|down_proj)\Z"
)
"""Matched from the start of a module's whole name; vLLM's own targets take it as it stands."""
ALL_LAYERS = "all"
"""Of `fp8`: every dense layer that the checkpoint has at 16 bits, by a list of their names."""
FP8_SCHEME = "fp8_per_block"
"""vLLM's word for e4m3 in blocks of 128 x 128, activations per token in groups of 128."""
FP8_BLOCK = 128
"""Rows, and columns, of a weight's block, which has one scale; inputs of a token's group."""

_LAYER = re.compile(r"layers\.\d+\..+", re.ASCII)
_TOWER = re.compile(r"vision|visual|audio|tower|encoder", re.ASCII)
"""Layers of what sees and hears have the same names as those of the model itself."""

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


class DraftHead(NamedTuple):
    """The draft model's own head: how many rows, and which file beside config.json lists them."""

    rows: int
    file: str


class DraftLayer(NamedTuple):
    """How many layers of experts become INT4, and modules of the checkpoint FP8."""

    int4_layers: int
    fp8_layers: int


@dataclass(frozen=True, slots=True)
class HybridConversion:
    base_method: str
    """The checkpoint's own `quant_method`."""
    model_type: str
    fp8_mode: str | None
    fp8_modules: tuple[str, ...]
    """What becomes FP8 by the checkpoint's names; empty: its shared experts."""
    fp8_kernel: str
    lm_head: str
    expected_fp8_layers: int | None
    """Modules of the checkpoint (gate, up and down are three); None when it does not say."""
    draft_head: DraftHead | None
    draft_layer: DraftLayer | None
    int4_shared_experts: int | None
    """Modules of shared experts that become INT4, as those of FP8; None: none does."""
    routing: str

    @classmethod
    def from_block(cls, block: Mapping[str, Any]) -> "HybridConversion":
        """ValueError names the first entry this plugin does not understand."""
        _require(block, "version", (1,))
        if block.get("base_method") in (None, "", *LOADERS_OF_THEIR_OWN):
            raise ValueError(
                f"{BLOCK_KEY}: base_method is {block.get('base_method')!r}, which this plugin does "
                "not convert"
            )
        head = _require({"lm_head": "bf16", **block}, "lm_head", LM_HEADS)
        fp8, modules = _fp8_part(block), ()
        if fp8 and fp8["layers"] == ALL_LAYERS:
            modules = tuple(fp8["modules"])
        int4 = {"group": INT4_GROUP}
        draft_head = _part(block, "draft_lm_head", dtype="int8")
        draft = _part(block, "draft_layer", experts="int4", dense="fp8", **int4)
        shared = _part(block, "shared_experts", dtype="int4", **int4)
        if fp8 and shared:
            raise ValueError(f"{BLOCK_KEY} asks for shared experts of FP8 and of INT4")
        return cls(
            base_method=block["base_method"],
            model_type=block.get("model_type", ""),
            fp8_mode=_require(fp8, "mode", FP8_MODES) if fp8 else None,
            fp8_modules=modules,
            fp8_kernel=_require({"kernel": "vllm", **(fp8 or {})}, "kernel", KERNELS),
            lm_head=head,
            expected_fp8_layers=block.get("expected_fp8_layers"),
            draft_head=DraftHead(draft_head["rows"], draft_head["file"]) if draft_head else None,
            draft_layer=DraftLayer(draft["int4_layers"], draft["fp8_layers"]) if draft else None,
            int4_shared_experts=shared["int4_layers"] if shared else None,
            routing=_require({"routing": "vllm", **block}, "routing", KERNELS),
        )


def _require(block: Mapping[str, Any], key: str, known: Sequence[Any]) -> Any:
    if block.get(key) not in known:
        listed = ", ".join(map(str, known))
        raise ValueError(f"{BLOCK_KEY}: {key} is {block.get(key)!r}; this plugin knows {listed}")
    return block[key]


def _fp8_part(block: Mapping[str, Any]) -> Mapping[str, Any] | None:
    part = block.get("fp8")
    if isinstance(part, Mapping) and part.get("layers") == ALL_LAYERS:
        if not isinstance(part.get("modules"), Sequence) or not part["modules"]:
            raise ValueError(f"{BLOCK_KEY}.fp8 is for {ALL_LAYERS} layers and lists no modules")
        return _part(block, "fp8", mode="online")
    return _part(block, "fp8", layers="shared_expert", block=[FP8_BLOCK, FP8_BLOCK])


def _part(block: Mapping[str, Any], key: str, /, **known: Any) -> Mapping[str, Any] | None:
    """Return an entry that is an object with these values; None where there is none."""
    part = block.get(key)
    if part is None:
        return None
    if not isinstance(part, Mapping) or any(part.get(name) != it for name, it in known.items()):
        raise ValueError(f"{BLOCK_KEY}.{key} is {part!r}; this plugin knows one with {known}")
    return part


def is_fp8_layer(prefix: str) -> bool:
    """Whether the module at `prefix` is a shared-expert projection of the target model.

    Those are what becomes FP8, or INT4. Exact on the last path components; `shared_expert_gate` is
    another module, and what is under `mtp.` is the draft layer's, a conversion of its own.
    """
    return re.match(FP8_LAYER, prefix, re.ASCII) is not None


def layer_key(name: str) -> str:
    """Return the part of a module's name that engines keep: from its layer's number on.

    Empty for what is in no layer of the model itself.
    """
    found = _LAYER.search(name)
    return "" if found is None or _TOWER.search(name[: found.start()]) else found[0]


def modules_of(prefix: str, packed: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the checkpoint's modules that the (possibly fused) module at `prefix` holds."""
    stem, _, last = prefix.rpartition(".")
    return tuple(f"{stem}.{part}" for part in packed.get(last) or _FUSED.get(last, (last,)))


def is_draft_dense(prefix: str) -> bool:
    """Whether the module at `prefix` is a matrix of a draft layer; its router and gate are none."""
    return re.match(DRAFT_DENSE, prefix, re.ASCII) is not None


def checkpoint_modules(prefix: str, packed: Mapping[str, Sequence[str]]) -> int:
    """How many modules of the checkpoint the (possibly fused) module at `prefix` holds."""
    return len(modules_of(prefix, packed))


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
    """Raise ValueError when `columns` inputs, what a rank holds of layer `name`, end in a group."""
    if columns % group:
        raise ValueError(
            f"sparkdeploy: groups of {group} inputs do not divide the {columns} that a rank would "
            f"hold of {name}; use fewer tensor-parallel ranks, or set checkpoint.{setting} to bf16"
        )
