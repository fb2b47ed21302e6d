"""Which of vLLM's functions and classes the plugin calls, overrides or stands in for: data.

A release of vLLM that gives a class another method which takes what ours changes (a head, a
layer's weights, the metadata of attention) would work around the plugin without a word. Every such
method is either one that ours has, or is named here with the reason why it does no harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sparkdeploy_vllm.check.releases import (
    INT4_EXPERTS_SINCE,
    ONLINE_FP8_SINCE,
    TARGETS_SINCE,
    Release,
)
from sparkdeploy_vllm.weights.conversion import FP8_SCHEME

_LAYERS = "vllm.model_executor.layers"
_QUANT = f"{_LAYERS}.quantization"
EMBEDDING = f"{_LAYERS}.vocab_parallel_embedding"
_LINEAR = f"{_LAYERS}.linear"
_LOGITS = f"{_LAYERS}.logits_processor"
_ATTENTION = "vllm.v1.attention.backends"
_TURBOQUANT = f"{_ATTENTION}.turboquant_attn"
_CREATE_WEIGHTS = (
    "create_weights(layer, input_size_per_partition, output_partition_sizes, "
    "input_size, output_size, params_dtype)"
)
_CREATE_EXPERTS = (
    "create_weights(layer, num_experts, hidden_size, intermediate_size_per_partition, params_dtype)"
)
_PROCESS_WEIGHTS = "process_weights_after_loading(layer)"
_METADATA = (
    "seq_lens",
    "query_start_loc",
    "block_table",
    "num_actual_tokens",
    "max_query_len",
    "max_seq_len",
    "is_prefill",
    "num_decodes",
    "num_decode_tokens",
    "query_start_loc_cpu",
    "seq_lens_cpu",
)
"""What the back end reads and replaces of a TurboQuant batch."""
HEAD_CALLERS = ("vllm.model_executor.models.qwen3_5", "vllm.model_executor.models.qwen3_5_mtp")


class HookTrace(Enum):
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
    trace: HookTrace = HookTrace.DEFINED


def _apis(
    module: str, *signatures: str, since: Release = (), required: bool = True
) -> tuple[Api, ...]:
    """Each is `name(argument, ...)`; without brackets, only its existence counts."""
    apis = []
    for signature in signatures:
        name, bracket, listed = signature.removesuffix(")").partition("(")
        arguments = tuple(listed.split(", ")) if listed else ()
        apis.append(Api(module, name, arguments if bracket else None, required, since))
    return tuple(apis)


TOUCHED = (
    *_apis(
        f"{_QUANT}.inc",
        "INCConfig.from_config(config)",
        "INCConfig.get_quant_method(layer, prefix)",
        "INCConfig.override_quantization_method(hf_quant_cfg, user_quant)",
    ),
    *_apis(_QUANT, "register_quantization_config(quantization)"),
    *_apis(
        f"{_QUANT}.base_config",
        "QuantizeMethodBase.create_weights(layer)",
        "QuantizeMethodBase.apply(layer)",
        "QuantizeMethodBase.embedding(layer)",
        f"QuantizeMethodBase.{_PROCESS_WEIGHTS}",
    ),
    *_apis(
        f"{_QUANT}.fp8",
        "Fp8Config.__init__(is_checkpoint_fp8_serialized, activation_scheme, ignored_layers, "
        "weight_block_size)",
        "Fp8LinearMethod.__init__(quant_config)",
        f"Fp8LinearMethod.{_CREATE_WEIGHTS}",
        f"Fp8LinearMethod.{_PROCESS_WEIGHTS}",
    ),
    *_apis(
        f"{_QUANT}.online.fp8",
        "Fp8PerBlockOnlineLinearMethod.__init__()",
        f"Fp8PerBlockOnlineLinearMethod.{_CREATE_WEIGHTS}",
        f"Fp8PerBlockOnlineLinearMethod.{_PROCESS_WEIGHTS}",
        since=ONLINE_FP8_SINCE,
    ),
    *_apis(
        f"{_QUANT}.auto_gptq",
        "AutoGPTQConfig.__init__(weight_bits, group_size, desc_act, is_sym, lm_head_quantized, "
        "dynamic, full_config)",
        "AutoGPTQMoEMethod.__init__(quant_config, moe)",
        f"AutoGPTQMoEMethod.{_CREATE_EXPERTS}",
        f"AutoGPTQMoEMethod.{_PROCESS_WEIGHTS}",
        since=INT4_EXPERTS_SINCE,
        required=False,
    ),
    *_apis(
        f"{_LAYERS}.fused_moe",
        "UnquantizedFusedMoEMethod.__init__(moe)",
        f"UnquantizedFusedMoEMethod.{_CREATE_EXPERTS}",
        f"UnquantizedFusedMoEMethod.{_PROCESS_WEIGHTS}",
        since=INT4_EXPERTS_SINCE,
        required=False,
    ),
    *_apis(
        "vllm.model_executor.utils",
        "set_weight_attrs(weight, weight_attrs)",
        since=INT4_EXPERTS_SINCE,
        required=False,
    ),
    *_apis(
        f"{_QUANT}.base_config",
        "resolve_quant_method(quant_config, layer, prefix)",
        "QuantizationConfig.online_quantization_config",
        since=TARGETS_SINCE,
    ),
    *_apis(
        f"{_QUANT}.online.base",
        "OnlineQuantizationConfig.__init__(args)",
        "OnlineQuantizationConfig.get_quant_method(layer, prefix)",
        since=TARGETS_SINCE,
    ),
    *_apis("vllm.config.quantization", "QuantizationConfigArgs.targets", since=TARGETS_SINCE),
    Api("vllm.config.quantization", FP8_SCHEME, since=TARGETS_SINCE, trace=HookTrace.NAMED),
    Api(_LINEAR, "resolve_quant_method", ("prefix",), since=TARGETS_SINCE, trace=HookTrace.CALLED),
    *_apis(
        _LINEAR,
        "LinearBase",
        "LinearMethodBase.apply(layer, x, bias)",
        f"UnquantizedLinearMethod.{_CREATE_WEIGHTS}",
    ),
    *_apis(
        EMBEDDING,
        "ParallelLMHead",
        "ParallelLMHead.register_oot",
        f"UnquantizedEmbeddingMethod.{_CREATE_WEIGHTS}",
        "UnquantizedEmbeddingMethod.embedding(layer, input_)",
        f"UnquantizedEmbeddingMethod.{_PROCESS_WEIGHTS}",
    ),
    *_apis(
        _LOGITS,
        "LogitsProcessor.__init__(vocab_size)",
        "LogitsProcessor.forward(lm_head, hidden_states)",
        "LogitsProcessor._get_logits(hidden_states, lm_head, embedding_bias)",
        "LogitsProcessor.get_top_tokens(lm_head, hidden_states)",
        "LogitsProcessor.register_oot",
    ),
    *_apis("vllm.model_executor.custom_op", "op_registry_oot"),
    *_apis("vllm.model_executor.model_loader.utils", "process_weights_after_loading"),
    *_apis("vllm.model_executor.parameter", "ModelWeightParameter", "BlockQuantScaleParameter"),
    *_apis("vllm.config", "get_current_vllm_config", "get_current_vllm_config_or_none"),
    # Asked for the logits' dtype. Without it no draft is drawn by chance.
    *_apis("vllm.config.speculative", "SpeculativeConfig.draft_sample_method", required=False),
    *_apis(
        "vllm.distributed.parallel_state", "get_tp_group", "GroupCoordinator.broadcast(input_, src)"
    ),
    *_apis("vllm.distributed.communication_op", "tensor_model_parallel_all_gather(input_, dim)"),
    *_apis("vllm.logger", "init_logger(name)"),
    *_apis("vllm.platforms", "current_platform"),
    *_apis(
        f"{_ATTENTION}.registry",
        "AttentionBackendEnum.TURBOQUANT",
        "register_backend(backend, class_path)",
        required=False,
    ),
    *_apis(
        _TURBOQUANT,
        "TurboQuantMetadataBuilder.get_cudagraph_support(vllm_config, kv_cache_spec)",
        "TurboQuantMetadataBuilder.build(common_prefix_len, common_attn_metadata)",
        "TurboQuantMetadataBuilder._init_reorder_batch_threshold(reorder_batch_threshold, "
        "supports_spec_as_decode)",
        *(f"TurboQuantMetadata.{name}" for name in _METADATA),
        "TurboQuantAttentionImpl.__init__(num_heads, head_size, scale, num_kv_heads)",
        "TurboQuantAttentionImpl._decode_attention(query, kv_cache, attn_metadata, Pi, centroids)",
        "TurboQuantAttentionImpl._prefill_attention(query, key, value, kv_cache, attn_metadata, "
        "Pi, centroids)",
        "TurboQuantAttentionBackend.get_kv_cache_shape(num_blocks, block_size, num_kv_heads, "
        "head_size)",
        required=False,
    ),
    *_apis(
        "vllm.v1.worker.workspace",
        "is_workspace_manager_initialized()",
        "current_workspace_manager()",
        "WorkspaceManager.get_simultaneous()",
        required=False,
    ),
    *_apis(
        f"{_LAYERS}.mamba.ops.cpu.gdn_attention",
        "is_arm_bf16()",
        "causal_conv1d_update_cpu(x, conv_state, weight, bias, activation, conv_state_indices)",
        required=False,
    ),
    *_apis(
        "vllm.platforms.cpu",
        "CpuPlatform.get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)",
        required=False,
    ),
    *_apis(
        "vllm.v1.attention.backend",
        "AttentionImpl.forward(layer, query, key, value, kv_cache, attn_metadata, output, "
        "output_scale, output_block_scale)",
        "AttentionMetadataBuilder.build(common_prefix_len, common_attn_metadata, fast_build)",
        "AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE",
        required=False,
    ),
    *_apis(f"{_QUANT}.turboquant.centroids", "get_centroids(d, bits)", required=False),
    *_apis("vllm._custom_ops", "fused_sigmoid_gating_delta_rule_update_spec_cpu", required=False),
    *_apis("vllm.model_executor.models.registry", "_run_in_subprocess(fn)", required=False),
)


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


_CHOSEN_HEAD = "called by the public ones, with the head that ours chose"
_SHARES = "shares the BF16 matrix before it is converted, and converting copies it"
_CALLS_BUILD = "calls `build`, which is ours"
_UNCLAIMED = "raises; for builders that claim to have it"
_HEAD_METHODS = {
    "UnquantizedEmbeddingMethod.tie_weights": _SHARES,
    "QuantizeMethodBase.tie_weights": _SHARES,
    "QuantizeMethodBase.dequantize_weight": "raises; for layers that are quantised anew",
}
_NO_UNEVEN_GRAPH = "None: no graph of batches with uneven lengths"

STAND_INS = (
    StandIn(
        ours=("sparkdeploy_vllm.head.draft_head", "SparkLogitsProcessor"),
        theirs=(_LOGITS, "LogitsProcessor"),
        changed=frozenset({"lm_head"}),
        harmless={
            "LogitsProcessor._apply_head": _CHOSEN_HEAD,
        },
    ),
    *(
        StandIn(
            ours=ours,
            theirs=(EMBEDDING, "UnquantizedEmbeddingMethod"),
            changed=frozenset({"layer"}),
            harmless=_HEAD_METHODS,
        )
        for ours in (
            ("sparkdeploy_vllm.head.lm_head", "IntegerLMHeadMethod"),
            ("sparkdeploy_vllm.head.draft_head", "DraftHeadMethod"),
        )
    ),
    StandIn(
        ours=("sparkdeploy_vllm.turboquant.backend", "SparkTurboQuantBuilder"),
        theirs=(_TURBOQUANT, "TurboQuantMetadataBuilder"),
        changed=frozenset({"common_attn_metadata", "metadata", "attn_metadata", "vllm_config"}),
        harmless={
            "TurboQuantMetadataBuilder.build_for_cudagraph_capture": _CALLS_BUILD,
            "AttentionMetadataBuilder.build_for_drafting": _CALLS_BUILD,
            "AttentionMetadataBuilder.update_block_table": _UNCLAIMED,
            "AttentionMetadataBuilder.update_draft_decode_metadata": _UNCLAIMED,
            "AttentionMetadataBuilder.get_varlen_cudagraph_max_query_len": _NO_UNEVEN_GRAPH,
        },
        required=False,
    ),
    StandIn(
        ours=("sparkdeploy_vllm.turboquant.backend", "SparkTurboQuantImpl"),
        theirs=(_TURBOQUANT, "TurboQuantAttentionImpl"),
        changed=frozenset({"attn_metadata"}),
        harmless={
            "TurboQuantAttentionImpl.forward": "attends by the two methods that are ours",
            "AttentionImplBase.prepare_for_batch": "does nothing",
        },
        required=False,
    ),
)
