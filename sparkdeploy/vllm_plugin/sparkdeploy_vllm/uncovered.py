"""Methods of the classes that ours stand in for, which ours do not have: what may pass ours by.

A release of vLLM that gives such a class another method which takes what ours changes (a head, a
layer's weights, the metadata of attention) would work around the plugin without a word. Every such
method is either one that ours has, or is named here with the reason why it does no harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkdeploy_vllm.source_tree import SourceTree

_LAYERS = "vllm.model_executor.layers"
_TURBOQUANT = "vllm.v1.attention.backends.turboquant_attn"
_LOGITS_METHODS = {
    "LogitsProcessor._get_logits": "called by the public ones, with the head that ours chose",
    "LogitsProcessor._apply_head": "called by the public ones, with the head that ours chose",
}
_SHARES = "shares the BF16 matrix before it is converted, and converting copies it"
_HEAD_METHODS = {
    "UnquantizedEmbeddingMethod.tie_weights": _SHARES,
    "QuantizeMethodBase.tie_weights": _SHARES,
    "QuantizeMethodBase.dequantize_weight": "raises; for layers that are quantised anew",
}
_BUILDER_METHODS = {
    "TurboQuantMetadataBuilder.build_for_cudagraph_capture": "calls `build`, which is ours",
    "AttentionMetadataBuilder.build_for_drafting": "calls `build`, which is ours",
    "AttentionMetadataBuilder.update_block_table": "raises; for builders that claim to have it",
    "AttentionMetadataBuilder.update_draft_decode_metadata": (
        "raises; for builders that claim to have it"
    ),
    "AttentionMetadataBuilder.get_varlen_cudagraph_max_query_len": (
        "None: no graph of batches with uneven lengths"
    ),
}
_ATTENTION_METHODS = {
    "TurboQuantAttentionImpl.forward": "calls the two ways to attend, which are ours",
    "AttentionImplBase.prepare_for_batch": "does nothing",
}


@dataclass(frozen=True, slots=True)
class StandIn:
    """A class of ours in the place of one of vLLM's."""

    ours: tuple[str, str]
    theirs: tuple[str, str]
    """Module and name."""
    changed: frozenset[str]
    """Arguments that carry what ours changes."""
    harmless: Mapping[str, str]
    """Methods that take one of them and need not be ours, and why: `Class.method` of the class
    that defines it, so that another definition is looked at anew."""
    required: bool = True


STAND_INS = (
    StandIn(
        ours=("sparkdeploy_vllm.draft_head", "SparkLogitsProcessor"),
        theirs=(f"{_LAYERS}.logits_processor", "LogitsProcessor"),
        changed=frozenset({"lm_head"}),
        harmless=_LOGITS_METHODS,
    ),
    *(
        StandIn(
            ours=ours,
            theirs=(f"{_LAYERS}.vocab_parallel_embedding", "UnquantizedEmbeddingMethod"),
            changed=frozenset({"layer"}),
            harmless=_HEAD_METHODS,
        )
        for ours in (
            ("sparkdeploy_vllm.lm_head", "Int8LMHeadMethod"),
            ("sparkdeploy_vllm.draft_head", "DraftHeadMethod"),
        )
    ),
    StandIn(
        ours=("sparkdeploy_vllm.turboquant_backend", "SparkTurboQuantBuilder"),
        theirs=(_TURBOQUANT, "TurboQuantMetadataBuilder"),
        changed=frozenset({"common_attn_metadata", "metadata", "attn_metadata", "vllm_config"}),
        harmless=_BUILDER_METHODS,
        required=False,
    ),
    StandIn(
        ours=("sparkdeploy_vllm.turboquant_backend", "SparkTurboQuantImpl"),
        theirs=(_TURBOQUANT, "TurboQuantAttentionImpl"),
        changed=frozenset({"attn_metadata"}),
        harmless=_ATTENTION_METHODS,
        required=False,
    ),
)


def uncovered(vllm: SourceTree, stand_in: StandIn) -> list[str]:
    """Methods of vLLM's class that take what ours changes, and are neither ours nor harmless."""
    plugin = SourceTree(Path(__file__).resolve().parents[1])
    # Installed beside vLLM, ours have its methods by inheritance; those are not overridden.
    ours = [name for name in plugin.methods(*stand_in.ours) if _class_of(name) == stand_in.ours[1]]
    overridden = {name.rpartition(".")[2] for name in ours}
    return sorted(
        name
        for name, arguments in vllm.methods(*stand_in.theirs).items()
        if name not in stand_in.harmless
        and name.rpartition(".")[2] not in overridden
        and stand_in.changed & set(arguments)
    )


def _class_of(method: str) -> str:
    return method.rpartition(".")[0]
