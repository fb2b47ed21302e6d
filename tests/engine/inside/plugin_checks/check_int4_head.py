"""The INT4 head: its packing, its conversion's error, and through vLLM's logits processor."""

import torch
from check_vllm_hooks import _config, _head, _load, _one_rank, _process, _vllm_log
from sparkdeploy_vllm.head.int4_reference import (
    gather_rows,
    int4_linear,
    quantize_head,
    unpack_head,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor


def check_a_byte_holds_inputs_64_apart() -> None:
    weight = torch.zeros(1, 256).bfloat16()
    weight[0, 128 + 3], weight[0, 128 + 67] = 7.0, -7.0
    packed, scales = quantize_head(weight)
    assert packed.shape == (1, 128)
    assert scales.shape == (2, 1)
    assert packed[0, 64 + 3] == (8 + 7) | (8 - 7) << 4
    assert (packed[0, :64] == 8 | 8 << 4).all()
    assert torch.equal(unpack_head(packed, scales), weight.float())


def check_the_conversion_s_error_is_that_of_four_bits() -> None:
    weight = torch.randn(300, 512, generator=torch.Generator().manual_seed(1)).bfloat16()
    values = unpack_head(*quantize_head(weight))
    error = ((values - weight.float()).norm() / weight.float().norm()).item()
    # Steps of 1/7 of a group's largest of 128 normal values, 2.7 sigma, over the root of 12: 0.11.
    assert 0.05 < error < 0.11, error


def check_logits_are_fp32_and_the_product() -> None:
    weight = torch.randn(300, 512).bfloat16()
    head = quantize_head(weight)
    x = torch.randn(3, 512).bfloat16()
    logits = int4_linear(x, *head, None)
    exact = x.double() @ unpack_head(*head).double().T
    assert logits.dtype == torch.float32
    assert ((logits.double() - exact).norm() / exact.norm()).item() < 1e-6
    assert torch.equal(int4_linear(x[1:2], *head, None), logits[1:2]), "by itself"
    ids = torch.tensor([[0, 299], [7, 7]])
    assert torch.equal(gather_rows(ids, *head, torch.float32), unpack_head(*head)[ids])


def check_vllm_makes_converts_and_asks_an_int4_head() -> None:
    with _one_rank(), _vllm_log() as log:
        config = _config(fp8=None, expected_fp8_layers=0, lm_head="int4")
        head = _head(config)
        weight = _load(head.weight, 500)
        before = head.weight.clone() if weight is None else weight
        _process(head)
        _process(head)
        x = torch.randn(4, 128).bfloat16()
        logits = LogitsProcessor(500)(head, x)
    assert log.getvalue().count("fp8=0 layers, lm_head=int4") == 1
    assert head.weight.dtype == torch.uint8
    exact = x.double() @ before[:500].double().T
    assert logits.dtype == torch.float32
    assert ((logits.double() - exact).norm() / exact.norm()).item() < 0.2
