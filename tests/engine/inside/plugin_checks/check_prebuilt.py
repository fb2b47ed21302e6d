"""Prebuilt FP8 tensors on real layers of the real vLLM: loaded, compared, taken or refused."""

import torch
from check_vllm_hooks import _config, _head, _load, _mlp, _one_rank, _process, _vllm_log
from said import refusal
from sparkdeploy_vllm.weights.fp8_checkpoint import PrebuiltReferenceMethod, largest_difference
from sparkdeploy_vllm.weights.reference import dequantize_blocks, quantize_blocks

PREBUILT = {"mode": "prebuilt", "layers": "shared_expert", "block": [128, 128]}


def _layers(config):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - vLLM's types
    gate_up, down = _mlp(config)
    # .bfloat16() reaches the FP8 parameters too; vLLM itself never casts after it has made them.
    for layer in (gate_up, down):
        layer.fp8_weight.data = layer.fp8_weight.data.to(torch.float8_e4m3fn)
        layer.fp8_scale_inv.data = layer.fp8_scale_inv.data.float()
    return gate_up, down


def _load_prebuilt(layer, weight, *shard):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN202
    quantized, scales = quantize_blocks(weight)
    layer.fp8_weight.weight_loader(layer.fp8_weight, quantized, *shard)
    layer.fp8_scale_inv.weight_loader(layer.fp8_scale_inv, scales.bfloat16(), *shard)
    return quantized, scales


def check_the_checkpoints_tensors_take_the_place_of_bf16() -> None:
    with _one_rank(), _vllm_log() as log:
        config = _config(fp8=PREBUILT)
        gate_up, down = _layers(config)
        assert isinstance(gate_up.quant_method, PrebuiltReferenceMethod)
        head = _head(config)
        loaded = []
        for shard in (0, 1):
            weight = _load(gate_up.weight, 256, shard)
            loaded.append(_load_prebuilt(gate_up, weight, shard))
        down_weight = _load(down.weight, 128)
        _load_prebuilt(down, down_weight)
        _load(head.weight, 500)
        _process(gate_up, down, head)
        line = "sparkdeploy: spark-hybrid active: fp8=3 layers, lm_head=int8"
        assert log.getvalue().splitlines() == [line]
        _process(gate_up, down, head)
    assert torch.equal(gate_up.weight.float(), torch.cat([q for q, _ in loaded]).float())
    assert gate_up.weight.dtype == torch.float8_e4m3fn
    assert gate_up.weight_scale_inv.dtype == torch.float32
    assert {name for name, _ in gate_up.named_parameters()} == {"weight", "weight_scale_inv"}
    x = torch.randn(5, 256).bfloat16()
    exact = x.double() @ dequantize_blocks(down.weight, down.weight_scale_inv).double().T
    got = down(x)[0]
    assert ((got.double() - exact).norm() / exact.norm()).item() < 0.06


def _refusal(damage) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
    with _one_rank():
        _, down = _layers(_config(fp8=PREBUILT))
        weight = _load(down.weight, 128)
        damage(down, weight)
        return refusal(_process, down)


def check_tensors_of_another_layer_stop_the_start() -> None:
    said = _refusal(lambda layer, weight: _load_prebuilt(layer, weight.flip(0)))
    assert "not the layer's weights" in said, said


def check_one_wrong_scale_stops_the_start() -> None:
    def damage(layer, weight) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        _load_prebuilt(layer, weight)
        layer.fp8_scale_inv.data[0, 1] *= 1.25

    assert "not the layer's weights" in _refusal(damage)


def check_rounding_is_well_below_the_limit() -> None:
    weight = (torch.randn(256, 384) * 0.05).bfloat16()
    quantized, scales = quantize_blocks(weight)
    assert largest_difference(weight, quantized, scales.bfloat16().float()) < 0.05
