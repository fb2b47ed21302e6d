"""What is done to a checkpoint while it is loaded, and what a source must hold for that."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkdeploy.checkpoint import contents, fp8
from sparkdeploy.checkpoint.architecture import config_sizes
from sparkdeploy.checkpoint.contents import Located, ModelSizes, method_of, model_sizes, summary
from sparkdeploy.checkpoint.dense_layers import dense_layers
from sparkdeploy.checkpoint.expected_tensors import missing_mtp
from sparkdeploy.checkpoint.ranges import RangeSource, index_of, read_config
from sparkdeploy.checkpoint.repo_files import printable, shown
from sparkdeploy.checkpoint.source import CheckpointSource
from sparkdeploy.errors import CheckpointError

HYBRID_NOTE = "_hybrid_quant_info"
"""The key that the field's builder, and ours, adds to config.json; no engine reads it."""
PLAIN = "none"
"""The plugin's word for a checkpoint of 16 bits."""
_UNCONVERTED = ("", "bitsandbytes", "gguf", "torchao")
"""What engines load in ways of their own, by the method's name; or whose method has none."""
_HEAD = re.compile(r"(?:(?:model|language_model)\.){0,2}(?:lm_head|output|embed_out)\.weight")
_FLOAT16 = frozenset({"BF16", "F16"})
GROUP = 128
"""Inputs of an output that share an INT4 scale, as in Intel's checkpoint."""
_DENSE = re.compile(
    r"mtp\.(?:fc|layers\.\d+\.(?:self_attn\.[qkvo]_proj"
    r"|mlp\.(?:shared_expert\.)?(?:gate|up|down)_proj))\.weight"
)
_EXPERTS = re.compile(
    r"mtp\.layers\.(\d+)\.mlp\.experts\.(?:\d+\.(?:gate|up|down)_proj\.weight|(?:gate_up|down)_proj)"
)
"""One by one, or all of a layer in one tensor."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What the engine's plugin shall do with a checkpoint while loading it."""

    fp8_mode: Literal["off", "online", "prebuilt", "finished"] = "off"
    fp8_layers: Literal["shared_expert", "all"] = "shared_expert"
    fp8_kernel: Literal["vllm", "fused"] = "vllm"
    lm_head: Literal["bf16", "int8", "int4"] = "bf16"
    mtp: Literal["required", "off"] = "off"
    mtp_weights: Literal["bf16", "int4-fp8"] = "bf16"
    fp8_origin: str = ""
    """Where prebuilt FP8 tensors come from, to the commit; empty in the other modes."""
    draft_rows: int = 0
    """Rows of the draft model's own INT8 head; 0 leaves it the target's."""
    draft_origin: str = ""
    has_drafter: bool = False
    """Whether another model drafts, not the model's own layers."""
    shared_experts: Literal["bf16", "int4"] = "bf16"
    routing: Literal["vllm", "fused"] = "vllm"

    @property
    def is_none(self) -> bool:
        """Nothing to convert: the untouched files are mounted instead of an overlay."""
        weights = (self.lm_head, self.mtp_weights, self.shared_experts)
        return self.fp8_mode == "off" and set(weights) == {"bf16"} and not self.draft_rows


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """What a checkpoint has to shrink; the plugin has to say the same of what it converted."""

    int4_layers: int
    fp8_layers: int
    """Matrices: eight of a layer with experts, `fc` included."""


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What a source holds for a conversion. The counts are tensors in the checkpoint."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Located]
    fp8_layer_count: int
    mtp_tensor_count: int
    draft_layer: DraftWeights | None = None
    shared_int4_count: int = 0
    dense_modules: tuple[str, ...] = ()
    """Those at 16 bits that all become FP8; empty where shared experts alone do."""
    quantization: Mapping[str, Any] = field(default_factory=dict)
    """How the checkpoint is quantised, as an engine would read it; empty for 16 bits."""


def unfit(config: Mapping[str, Any], conversion: Conversion) -> Iterator[str]:
    """Yield why a conversion does not apply to a model with this config.json."""
    if conversion.is_none and conversion.mtp == "off":
        return
    sizes = model_sizes(config)
    kind = shown(config_sizes(config).model_type)
    base = method_of(config)
    if not conversion.is_none and base in _UNCONVERTED:
        yield f"it is quantised by {shown(base) or 'nothing with a name'}, which is not converted"
    yield from _unfit_for_fp8(sizes, kind, conversion, base)
    if conversion.shared_experts == "int4":
        yield from _unfit_for_int4(sizes, kind)
    if sizes.ties_embeddings and conversion.lm_head != "bf16":
        yield "its LM head is its embeddings (tie_word_embeddings), so none can be converted"
    if conversion.lm_head == "int4" and sizes.hidden % GROUP:
        yield (
            f"checkpoint.lm_head: int4 has groups of {GROUP} inputs, which do not divide its "
            f"hidden size of {sizes.hidden}"
        )
    yield from _unfit_drafts(config, sizes, conversion)
    if conversion.mtp_weights != "bf16" and not sizes.mtp_layers:
        yield (
            "checkpoint.mtp_weights is for Qwen's draft layers, and its config.json has none "
            f"(a {kind} model)"
        )
    if conversion.mtp == "required" and not sizes.mtp_layers:
        yield f"its config.json has no draft layer that is known (a {kind} model)"


def has_draft_layer(config: Mapping[str, Any]) -> bool:
    """Whether a config.json counts layers that draft, under any name that publishers have."""
    sizes = config_sizes(config)
    counts = (
        value
        for part in (config, sizes.text)
        for name, value in part.items()
        if re.search(r"mtp|nextn", name) and re.search(r"layers|modules|num", name)
    )
    return any(type(it) is int and it > 0 for it in counts) or bool(model_sizes(config).mtp_layers)


def _unfit_for_fp8(
    sizes: ModelSizes, kind: str, conversion: Conversion, base: str | None
) -> Iterator[str]:
    is_shared = conversion.fp8_mode != "off" and conversion.fp8_layers == "shared_expert"
    if is_shared and not sizes.shared_expert_intermediate:
        yield (
            f"checkpoint.fp8_dense.layers is shared_expert, and a {kind} model has none "
            "(`all` is for every dense layer at 16 bits)"
        )
    if conversion.fp8_mode in ("prebuilt", "finished") and base not in (None, "auto-round"):
        yield f"prebuilt FP8 goes with AutoRound INT4 or 16 bits, and it is {shown(base)}"


def _unfit_drafts(
    config: Mapping[str, Any], sizes: ModelSizes, conversion: Conversion
) -> Iterator[str]:
    if conversion.draft_rows > sizes.vocab:
        yield (
            f"checkpoint.draft_lm_head.rows is {conversion.draft_rows}, more than the "
            f"{sizes.vocab} tokens of its vocabulary"
        )
    if conversion.draft_rows and not (conversion.has_drafter or has_draft_layer(config)):
        yield "a draft head needs something that drafts, and it has no draft layer"


def _unfit_for_int4(sizes: ModelSizes, kind: str) -> Iterator[str]:
    inputs = (sizes.hidden, sizes.shared_expert_intermediate)
    if not sizes.shared_expert_intermediate:
        yield f"checkpoint.shared_experts: int4 is for such experts, and a {kind} model has none"
    elif any(count % GROUP for count in inputs):
        yield (
            f"checkpoint.shared_experts: int4 has groups of {GROUP} inputs, which divide not both "
            f"of its shared experts' {inputs[0]} and {inputs[1]}"
        )


def check_source(source: CheckpointSource, conversion: Conversion) -> SourceFacts:
    """Read every header and the configuration, and hold them against what the conversion needs."""
    config = contents.read_config(source.files_dir)
    tensors = contents.read_tensors(source.files_dir)
    sizes = contents.model_sizes(config)
    for reason in unfit(config, conversion):
        raise CheckpointError(
            f"{source.name} cannot be converted so: {reason}.",
            hint="set checkpoint to what it has: lm_head: bf16, fp8_dense: {mode: off}, "
            "shared_experts: bf16, mtp_weights: bf16, draft_lm_head: null, mtp: off",
        )
    related = {name: located.info for name, located in tensors.items() if fp8.is_related(name)}
    fp8_layer_count = shared_int4_count = 0
    dense: tuple[str, ...] = ()
    if conversion.fp8_mode == "finished":
        expected = fp8.expected_fp8(sizes)
        hint = "use another checkpoint, or build one: --standalone"
        fp8.check_fp8(source.name, expected, related, hint)
        fp8_layer_count = len(expected) // 2
    elif HYBRID_NOTE in config or (
        method_of(config) in (None, "auto-round")
        and any(info.dtype in fp8.WEIGHT_DTYPES for info in related.values())
    ):
        raise _fp8_already(source)
    elif conversion.fp8_mode == "online" and conversion.fp8_layers == "all":
        dense = tuple(dense_layers(config, (located.info for located in tensors.values())))
        fp8_layer_count = len(dense)
        if not dense:
            raise CheckpointError(
                f"{source.name} has no dense layer at 16 bits that could become FP8.",
                hint="set checkpoint.fp8_dense.mode: off",
            )
    elif conversion.fp8_mode != "off":
        # The plugin compares prebuilt tensors with the 16-bit ones before it drops those.
        fp8_layer_count = _check_shared_experts(source, sizes, tensors)
    if conversion.shared_experts == "int4":
        shared_int4_count = _check_shared_experts(source, sizes, tensors)
    if conversion.lm_head != "bf16" or (conversion.draft_rows and not sizes.ties_embeddings):
        _check_tensor(source, _head_of(source, tensors), (sizes.vocab, sizes.hidden))
    if conversion.mtp == "required":
        check_mtp(source.name, sizes, tensors)
    is_shrunk = conversion.mtp_weights != "bf16"
    return SourceFacts(
        config,
        tensors,
        fp8_layer_count,
        sum(name.startswith("mtp.") for name in tensors),
        draft_layer_of(source.name, tensors) if is_shrunk else None,
        shared_int4_count,
        dense,
        contents.read_quantization(source.files_dir, config),
    )


def _head_of(source: CheckpointSource, tensors: Mapping[str, Located]) -> Located:
    found = next((it for name, it in tensors.items() if _HEAD.fullmatch(name)), None)
    if found is None:
        raise CheckpointError(
            f"{source.name} has no LM head of 16 bits of its own to convert.",
            hint="set checkpoint.lm_head: bf16 and checkpoint.draft_lm_head: null",
        )
    return found


def check_untouched(source: CheckpointSource, config: Mapping[str, Any]) -> None:
    """Refuse a finished hybrid as plain INT4: an engine would take its FP8 without the scales."""
    if HYBRID_NOTE in config:
        raise _fp8_already(source)


def _check_shared_experts(
    source: CheckpointSource, sizes: ModelSizes, tensors: Mapping[str, Located]
) -> int:
    expected = dict(contents.shared_expert_shapes(sizes))
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise CheckpointError(
            f"{source.name}: {len(missing)} of {len(expected)} shared-expert weights are missing: "
            f"{summary(missing)}.",
            hint="FP8 and INT4 need the shared experts at 16 bits, as Intel's INT4 checkpoint has "
            "them.",
        )
    for name, shape in expected.items():
        _check_tensor(source, tensors[name], shape)
    return len(expected)


def _fp8_already(source: CheckpointSource) -> CheckpointError:
    return CheckpointError(
        f"{source.name} is a finished hybrid: its shared experts are FP8 already.",
        hint="checkpoint.fp8_dense: {mode: prebuilt, from: hub}, or `from: folder` with "
        "model.path; shared_experts: bf16",
    )


def check_mtp(name: str, sizes: ModelSizes, tensors: Collection[str]) -> None:
    """Raise CheckpointError unless the checkpoint called `name` has the whole draft layer."""
    if sizes.mtp_layers == 0:
        raise CheckpointError(
            f"{name} has no draft layer (mtp_num_hidden_layers is 0).",
            hint="Use a recipe without speculation, such as hybrid.",
        )
    missing = missing_mtp(sizes, tensors)
    if missing:
        raise CheckpointError(
            f"{name}: {len(missing)} tensors of the draft layer are missing: {summary(missing)}.",
            hint="Intel keeps them in model_extra_tensors.safetensors; download that file as well.",
        )


def _check_tensor(source: CheckpointSource, found: Located, shape: tuple[int, ...]) -> None:
    info = found.info
    if info.shape != shape or info.dtype not in _FLOAT16:
        raise CheckpointError(
            f"{source.name}: {info.name} in {printable(found.file)} is {printable(info.dtype)} "
            f"{list(info.shape)}, where BF16 {list(shape)} is expected."
        )


def draft_layer_of(name: str, tensors: Mapping[str, Located]) -> DraftWeights:
    """Count what a checkpoint has of a draft layer whose 16 bits can be converted."""
    layers, dense = set(), 0
    for tensor, located in tensors.items():
        if not tensor.startswith("mtp."):
            continue
        info, expert = located.info, _EXPERTS.fullmatch(tensor)
        if info.dtype not in _FLOAT16 | {"F32"}:
            raise CheckpointError(
                f"{name}: the draft layer is quantised already: {printable(tensor)} is "
                f"{printable(info.dtype)}.",
                hint="set checkpoint.mtp_weights: bf16, which leaves it as it is",
            )
        if expert is not None and info.shape[-1] % GROUP:
            raise CheckpointError(
                f"{name}: {printable(tensor)} is {list(info.shape)}, which groups of {GROUP} do "
                "not divide.",
                hint="set checkpoint.mtp_weights: bf16",
            )
        layers |= {expert[1]} if expert is not None else set()
        dense += _DENSE.fullmatch(tensor) is not None
    if not dense:
        raise CheckpointError(
            f"{name} has no draft layer whose weights could become INT4 and FP8.",
            hint="set checkpoint.mtp_weights: bf16",
        )
    return DraftWeights(len(layers), dense)


def check_remote(source: RangeSource, conversion: Conversion) -> None:
    """Read configuration, index and headers, some megabytes, and refuse what is no whole hybrid."""
    sizes = model_sizes(read_config(source))
    indexed = index_of(source)
    fp8.find_fp8(source, sizes, indexed)
    if conversion.mtp == "required":
        check_mtp(source.name, sizes, indexed)
