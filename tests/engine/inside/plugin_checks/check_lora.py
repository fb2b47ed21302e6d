"""LoRA's wrapper around the logits processor, on the real classes, with the plugin registered."""

from typing import Any

import torch
from check_draft_head import TOKENS, VOCABULARY, _both_heads, _checkpoint
from check_vllm_hooks import _config, _head, _load, _one_rank, _process
from sparkdeploy_vllm import register
from sparkdeploy_vllm.head.lm_head import IntegerLMHeadMethod
from vllm.config import get_current_vllm_config
from vllm.config.lora import LoRAConfig
from vllm.lora.layers.utils import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.lora.utils import from_layer_logits_processor
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

RANK, HIDDEN, ROWS = 8, 128, 4


ALL = list(range(VOCABULARY))


def _assert_an_adapter_adds_its_part(processor: Any, head: Any, tokens: list[int]) -> None:
    """The wrapper's logits are the head's own plus those of the adapter's two matrices."""
    config = LoRAConfig(max_lora_rank=RANK, max_loras=1, lora_dtype=torch.bfloat16)
    wrapped = from_layer_logits_processor(processor, head, 1, config)
    punica = PunicaWrapperCPU(ROWS, ROWS, "cpu", lora_config=config)
    mapping = LoRAMapping((1,) * ROWS, (1,) * ROWS)
    punica.update_metadata(mapping, lora_index_to_id=[1], max_loras=1, vocab_size=VOCABULARY)
    wrapped.set_mapping(punica)
    down, up = torch.randn(RANK, HIDDEN).bfloat16(), torch.randn(VOCABULARY, RANK).bfloat16()
    wrapped.set_lora(0, down, up)
    x = torch.randn(ROWS, HIDDEN).bfloat16()
    plain = head.quant_method.apply(head, x)[:, :VOCABULARY].double()
    expected = (plain + x.double() @ down.double().T @ up.double().T)[:, tokens]
    error = (wrapped(head, x).double()[:, tokens] - expected).norm() / expected.norm()
    assert error.item() < 0.01, error


def check_a_stock_model_runs_vllm_s_own_processor_and_takes_lora() -> None:
    with _one_rank():
        register()
        head = ParallelLMHead(VOCABULARY, HIDDEN).bfloat16()
        _load(head.weight, VOCABULARY)
        _process(head)
        processor = LogitsProcessor(VOCABULARY)
        _assert_an_adapter_adds_its_part(processor, head, ALL)
        assert type(processor) is LogitsProcessor


def check_an_int8_head_takes_lora() -> None:
    with _one_rank():
        register()
        config = _config(fp8=None, expected_fp8_layers=0)
        object.__setattr__(get_current_vllm_config(), "quant_config", config)
        head = _head(config)
        _load(head.weight, VOCABULARY)
        _process(head)
        assert isinstance(head.quant_method, IntegerLMHeadMethod)
        processor = LogitsProcessor(VOCABULARY)
        _assert_an_adapter_adds_its_part(processor, head, ALL)
        assert type(processor) is LogitsProcessor


def check_a_draft_s_processor_takes_lora_too() -> None:
    with _checkpoint(TOKENS):
        target, _, processor, _ = _both_heads()
        # The wrapper calls the class's methods with itself in the place of the processor. Both
        # heads agree on the draft's tokens: which is asked depends on the release's wrapper.
        _assert_an_adapter_adds_its_part(processor, target, TOKENS)
