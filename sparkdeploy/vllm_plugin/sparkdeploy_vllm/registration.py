"""What vLLM is told when it loads its general plugins."""

from functools import cache

from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from sparkdeploy_vllm.cpu import drafts, engine
from sparkdeploy_vllm.head.draft_head import SparkEmbedding
from sparkdeploy_vllm.head.lm_head import SparkLMHead, replace_layer
from sparkdeploy_vllm.weights.conversion import METHOD_NAME
from sparkdeploy_vllm.weights.hybrid_config import SparkHybridConfig

TURBOQUANT_PATH = "sparkdeploy_vllm.turboquant.backend.SparkTurboQuantBackend"


@cache
def register_all() -> None:
    """Register every hook once per process; a hook that does not fit this vLLM raises."""
    register_quantization_config(METHOD_NAME)(SparkHybridConfig)
    replace_layer(ParallelLMHead, SparkLMHead)
    replace_layer(VocabParallelEmbedding, SparkEmbedding)
    if hasattr(AttentionBackendEnum, "TURBOQUANT"):
        # By path: nothing is imported until it is selected.
        register_backend(AttentionBackendEnum.TURBOQUANT, TURBOQUANT_PATH)
    if current_platform.is_cpu():
        engine.register()
        drafts.register()
