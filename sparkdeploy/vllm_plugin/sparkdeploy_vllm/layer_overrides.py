"""Layers that vLLM makes through its registry of replacements, so that ours come in their place."""

from typing import Any

from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor import custom_op
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from sparkdeploy_vllm.releases import HEAD_SINCE, installed_release, is_at_least
from sparkdeploy_vllm.treatment import METHOD_NAME


class SparkLMHead(ParallelLMHead):
    """vLLM's head with the quantisation config that Qwen3.5 before vLLM 0.23 forgets to pass.

    Once made it is vLLM's own class, also for the models that are none of ours.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = getattr(get_current_vllm_config_or_none(), "quant_config", None)
        if config is not None and config.get_name() == METHOD_NAME:
            kwargs.setdefault("quant_config", config)
        super().__init__(*args, **kwargs)
        self.__class__ = ParallelLMHead


def register() -> None:
    """Replace the LM head of a vLLM that needs it; once a process."""
    if not is_at_least(installed_release(), HEAD_SINCE):
        replace_layer(ParallelLMHead, SparkLMHead)


def replace_layer(original: type, ours: type) -> None:
    """Make vLLM build `ours`, a subclass, wherever it asks for `original` from now on."""
    if original.__name__ not in custom_op.op_registry_oot:
        original.register_oot(name=original.__name__)(ours)  # type: ignore[attr-defined]
