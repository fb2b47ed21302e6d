"""Does this plugin fit the vLLM that is installed? `python -m sparkdeploy_vllm.selfcheck [--json]`.

Reads vLLM's sources instead of importing them, so that it also works in an image build, where the
GPU's driver library is missing and the CUDA build cannot be imported. Exit code 0 when every hook
that this vLLM must have is there with the arguments the plugin passes, else 1.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from sparkdeploy_vllm.releases import (
    HEAD_SINCE,
    ONLINE_FP8_SINCE,
    TARGETS_SINCE,
    Release,
    installed_version,
    is_at_least,
    release_of,
)
from sparkdeploy_vllm.source_tree import SourceTree
from sparkdeploy_vllm.treatment import FP8_SCHEME
from sparkdeploy_vllm.uncovered import STAND_INS, StandIn, uncovered

_QUANT = "vllm.model_executor.layers.quantization"
_EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"
_LINEAR = "vllm.model_executor.layers.linear"
_PARAMETER = "vllm.model_executor.parameter"
_ONLINE_FP8 = f"{_QUANT}.online.fp8"
_ONLINE_CONFIG = f"{_QUANT}.online.base"
_ONLINE_ARGUMENTS = "vllm.config.quantization"
_CPU_DELTA_NET = "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention"
_CREATE_WEIGHTS = (
    "layer",
    "input_size_per_partition",
    "output_partition_sizes",
    "input_size",
    "output_size",
    "params_dtype",
)
_TURBOQUANT = "vllm.v1.attention.backends.turboquant_attn"
_LOGITS = "vllm.model_executor.layers.logits_processor"
_OVERRIDES = "vllm.model_executor.custom_op"


class Trace(Enum):
    """What of an API the sources must show."""

    DEFINED = "defined"
    CALLED = "called"
    """By vLLM itself, with `arguments` as keywords: the plugin is what the call reaches."""
    NAMED = "named"
    """As a string: a word that vLLM understands."""


@dataclass(frozen=True, slots=True)
class Api:
    """Something of vLLM's that the plugin calls, overrides or is called by.

    `arguments` must be the callable's first ones, in this order, after self or cls; further ones
    must have defaults (None: only its existence counts). `required` is false for hooks a recipe
    may do without. A hook that an older vLLM cannot have is not required of it: recipes that need
    the hook are refused for that vLLM.
    """

    module: str
    name: str
    arguments: tuple[str, ...] | None = None
    required: bool = True
    since: Release = ()
    """The first vLLM that has it; older ones serve without what it is for."""
    trace: Trace = Trace.DEFINED


@dataclass(frozen=True, slots=True)
class Finding:
    """One API and whether it fits; `problem` is empty when it does."""

    api: str
    fits: bool
    required: bool
    problem: str


TOUCHED = (
    Api(_QUANT, "register_quantization_config", ("quantization",)),
    Api(f"{_QUANT}.inc", "INCConfig.from_config", ("config",)),
    Api(f"{_QUANT}.inc", "INCConfig.get_quant_method", ("layer", "prefix")),
    Api(f"{_QUANT}.inc", "INCConfig.override_quantization_method", ("hf_quant_cfg", "user_quant")),
    Api(f"{_QUANT}.base_config", "QuantizeMethodBase.create_weights", ("layer",)),
    Api(f"{_QUANT}.base_config", "QuantizeMethodBase.apply", ("layer",)),
    Api(f"{_QUANT}.base_config", "QuantizeMethodBase.embedding", ("layer",)),
    Api(f"{_QUANT}.base_config", "QuantizeMethodBase.process_weights_after_loading", ("layer",)),
    Api(_LINEAR, "LinearBase"),
    Api(_LINEAR, "LinearMethodBase.apply", ("layer", "x", "bias")),
    Api(_LINEAR, "UnquantizedLinearMethod.create_weights", _CREATE_WEIGHTS),
    Api(_EMBEDDING, "ParallelLMHead"),
    Api(_EMBEDDING, "UnquantizedEmbeddingMethod.create_weights", _CREATE_WEIGHTS),
    Api(_EMBEDDING, "UnquantizedEmbeddingMethod.embedding", ("layer", "input_")),
    Api(_EMBEDDING, "UnquantizedEmbeddingMethod.process_weights_after_loading", ("layer",)),
    Api("vllm.model_executor.model_loader.utils", "process_weights_after_loading"),
    Api("vllm.config", "get_current_vllm_config"),
    Api("vllm.config", "get_current_vllm_config_or_none"),
    Api(_LOGITS, "LogitsProcessor.__init__", ("vocab_size",)),
    Api(_LOGITS, "LogitsProcessor.forward", ("lm_head", "hidden_states")),
    Api(_LOGITS, "LogitsProcessor.get_top_tokens", ("lm_head", "hidden_states")),
    Api(_LOGITS, "LogitsProcessor.register_oot"),
    Api(_EMBEDDING, "ParallelLMHead.register_oot"),
    Api("vllm.logger", "init_logger", ("name",)),
    Api(_ONLINE_FP8, "Fp8PerBlockOnlineLinearMethod.__init__", (), since=ONLINE_FP8_SINCE),
    Api(
        _ONLINE_FP8,
        "Fp8PerBlockOnlineLinearMethod.create_weights",
        _CREATE_WEIGHTS,
        since=ONLINE_FP8_SINCE,
    ),
    Api(
        _ONLINE_FP8,
        "Fp8PerBlockOnlineLinearMethod.process_weights_after_loading",
        ("layer",),
        since=ONLINE_FP8_SINCE,
    ),
    Api(
        f"{_QUANT}.base_config",
        "resolve_quant_method",
        ("quant_config", "layer", "prefix"),
        since=TARGETS_SINCE,
    ),
    Api(
        f"{_QUANT}.base_config",
        "QuantizationConfig.online_quantization_config",
        since=TARGETS_SINCE,
    ),
    Api(_LINEAR, "resolve_quant_method", ("prefix",), since=TARGETS_SINCE, trace=Trace.CALLED),
    Api(_ONLINE_ARGUMENTS, "QuantizationConfigArgs.targets", since=TARGETS_SINCE),
    Api(_ONLINE_ARGUMENTS, FP8_SCHEME, since=TARGETS_SINCE, trace=Trace.NAMED),
    Api(_ONLINE_CONFIG, "OnlineQuantizationConfig.__init__", ("args",), since=TARGETS_SINCE),
    Api(
        _ONLINE_CONFIG,
        "OnlineQuantizationConfig.get_quant_method",
        ("layer", "prefix"),
        since=TARGETS_SINCE,
    ),
    Api(
        f"{_QUANT}.fp8",
        "Fp8Config.__init__",
        (
            "is_checkpoint_fp8_serialized",
            "activation_scheme",
            "ignored_layers",
            "weight_block_size",
        ),
    ),
    Api(f"{_QUANT}.fp8", "Fp8LinearMethod.__init__", ("quant_config",)),
    Api(f"{_QUANT}.fp8", "Fp8LinearMethod.create_weights", _CREATE_WEIGHTS),
    Api(f"{_QUANT}.fp8", "Fp8LinearMethod.process_weights_after_loading", ("layer",)),
    Api(_PARAMETER, "ModelWeightParameter"),
    Api(_PARAMETER, "BlockQuantScaleParameter"),
    Api("vllm.platforms", "current_platform"),
    Api(_OVERRIDES, "op_registry_oot"),
    Api(
        "vllm.v1.attention.backends.registry",
        "AttentionBackendEnum.TURBOQUANT",
        required=False,
    ),
    Api(
        "vllm.v1.attention.backends.registry",
        "register_backend",
        ("backend", "class_path"),
        required=False,
    ),
    Api(
        _TURBOQUANT,
        "TurboQuantMetadataBuilder.get_cudagraph_support",
        ("vllm_config", "kv_cache_spec"),
        required=False,
    ),
    Api(
        _TURBOQUANT,
        "TurboQuantMetadataBuilder.build",
        ("common_prefix_len", "common_attn_metadata"),
        required=False,
    ),
    Api(
        _TURBOQUANT,
        "TurboQuantMetadataBuilder._init_reorder_batch_threshold",
        ("reorder_batch_threshold", "supports_spec_as_decode"),
        required=False,
    ),
    Api(
        _TURBOQUANT,
        "TurboQuantAttentionImpl._decode_attention",
        ("query", "kv_cache", "attn_metadata", "Pi", "centroids"),
        required=False,
    ),
    Api(
        _TURBOQUANT,
        "TurboQuantAttentionImpl._prefill_attention",
        ("query", "key", "value", "kv_cache", "attn_metadata", "Pi", "centroids"),
        required=False,
    ),
    Api(
        _TURBOQUANT,
        "TurboQuantAttentionBackend.get_kv_cache_shape",
        ("num_blocks", "block_size", "num_kv_heads", "head_size"),
        required=False,
    ),
    Api(_CPU_DELTA_NET, "is_arm_bf16", (), required=False),
    Api(
        _CPU_DELTA_NET,
        "causal_conv1d_update_cpu",
        ("x", "conv_state", "weight", "bias", "activation", "conv_state_indices"),
        required=False,
    ),
    Api("vllm._custom_ops", "fused_sigmoid_gating_delta_rule_update_spec_cpu", required=False),
)
ENTRY_POINT = "sparkdeploy_vllm:register"
HEAD_CALLERS = ("vllm.model_executor.models.qwen3_5", "vllm.model_executor.models.qwen3_5_mtp")


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was found; 0 when everything required fits."""
    parser = argparse.ArgumentParser(prog="python -m sparkdeploy_vllm.selfcheck")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(argv)
    root = installed_vllm()
    findings = (
        check(root, vllm=installed_version())
        if root
        else [Finding("vllm", False, True, "not installed")]
    )
    findings.append(_entry_point_finding())
    fits = all(finding.fits for finding in findings if finding.required)
    text = _as_json(findings, fits) if options.json else _as_table(findings, fits)
    sys.stdout.write(f"{text}\n")
    return 0 if fits else 1


def installed_vllm() -> Path | None:
    """The folder that holds the package `vllm`, found without importing it."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).parent


def check(
    site_packages: Path,
    touched: Sequence[Api] = TOUCHED,
    vllm: str = "unknown",
    stand_ins: Sequence[StandIn] = STAND_INS,
) -> list[Finding]:
    """Compare every touched API, and every class that ours replace, with the vLLM below a folder.

    Everything is required of a vLLM whose version is unknown.
    """
    tree, release = SourceTree(site_packages), release_of(vllm)
    findings = []
    for api in touched:
        problem = _problem(tree, api)
        required = api.required and is_at_least(release, api.since)
        findings.append(Finding(f"{api.module}.{api.name}", not problem, required, problem))
    findings += [_stand_in_finding(tree, stand_in) for stand_in in stand_ins]
    return findings + [_head_finding(tree, module, release) for module in HEAD_CALLERS]


def _problem(tree: SourceTree, api: Api) -> str:
    if api.trace is Trace.NAMED:
        return "" if tree.mentions(api.module, api.name) else "is not mentioned"
    if api.trace is Trace.CALLED:
        passed = tree.call_keywords(api.module, api.name)
        return "" if passed >= set(api.arguments or ()) else "is not called with these keywords"
    return _problem_of_definition(tree, api)


def _problem_of_definition(tree: SourceTree, api: Api) -> str:
    found = tree.find(api.module, api.name)
    if found is None:
        return "does not exist"
    if api.arguments is None:
        return ""
    signature = tree.signature(found)
    if signature is None:
        return "is not callable"
    names, required = signature
    if names[: len(api.arguments)] != list(api.arguments):
        return f"takes ({', '.join(names)}), expected it to begin with {', '.join(api.arguments)}"
    extra = [name for name in required if name not in api.arguments]
    return f"also needs {', '.join(extra)}" if extra else ""


def _stand_in_finding(tree: SourceTree, stand_in: StandIn) -> Finding:
    """Has vLLM's class a method that takes what ours changes, and that ours lets pass?"""
    api = f"{stand_in.theirs[1]}, in whose place is {stand_in.ours[1]}"
    if not tree.methods(*stand_in.theirs):
        return Finding(api, fits=False, required=stand_in.required, problem="does not exist")
    found = ", ".join(uncovered(tree, stand_in))
    problem = f"{found} neither overridden nor looked at, and takes what ours changes"
    return Finding(api, not found, required=True, problem=problem if found else "")


def _head_finding(tree: SourceTree, module: str, release: Release | None) -> Finding:
    api = f"{module}: ParallelLMHead(quant_config=...)"
    if "quant_config" in tree.call_keywords(module, "ParallelLMHead"):
        return Finding(api, fits=True, required=True, problem="")
    if is_at_least(release, HEAD_SINCE):
        return Finding(api, fits=False, required=True, problem="does not pass quant_config")
    return _shim_finding(tree, module)


def _shim_finding(tree: SourceTree, module: str) -> Finding:
    """Before 0.23 the config is put in by a replacement of the layer; can it be?"""
    api = f"{module}: ParallelLMHead(), replaced"
    made_by_name = tree.call_keywords(module, "ParallelLMHead") >= {"prefix"}
    head = tree.find(_EMBEDDING, "ParallelLMHead.__init__")
    names = tree.signature(head)[0] if head and tree.signature(head) else []
    takes_config = {"quant_config", "prefix"} <= set(names)
    problem = "" if made_by_name and takes_config else "takes no quant_config to be put in"
    return Finding(api, not problem, required=True, problem=problem)


def _entry_point_finding() -> Finding:
    found = [point.value for point in metadata.entry_points(group="vllm.general_plugins")]
    installed = ENTRY_POINT in found
    problem = "" if installed else "not installed: vLLM will not load the plugin"
    return Finding(f"entry point {ENTRY_POINT}", installed, True, problem)


def _as_json(findings: Sequence[Finding], fits: bool) -> str:
    report = {
        "vllm": installed_version(),
        "fits": fits,
        "apis": [asdict(finding) for finding in findings],
    }
    return json.dumps(report)


def _as_table(findings: Sequence[Finding], fits: bool) -> str:
    lines = [f"sparkdeploy-vllm beside vLLM {installed_version()}"]
    for finding in findings:
        word = "fits" if finding.fits else ("DIFFERS" if finding.required else "absent")
        lines.append(f"  {word:8} {finding.api}{': ' if finding.problem else ''}{finding.problem}")
    lines.append("every required hook fits" if fits else "a required hook does not fit")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
