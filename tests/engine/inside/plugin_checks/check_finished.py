"""FP8 under the layers' own names on real layers of the real vLLM: loaded, used or refused."""

import torch
from check_vllm_hooks import EXPERT, _config, _mlp, _one_rank, _process, _vllm_log
from kernel_stand_in import kernel_in_place, same_bits, served_by, shared_expert
from said import refusal
from sparkdeploy_vllm.weights.fp8_checkpoint import FinishedKernelMethod, FinishedReferenceMethod
from sparkdeploy_vllm.weights.reference import dequantize_blocks, fp8_block_linear, quantize_blocks
from vllm.config import get_current_vllm_config

FINISHED = {"mode": "finished", "layers": "shared_expert", "block": [128, 128]}


def _layers(config):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - vLLM's types
    gate_up, down = _mlp(config)
    # .bfloat16() reaches the FP8 parameters too; vLLM itself never casts after it has made them.
    for layer in (gate_up, down):
        layer.weight.data = layer.weight.data.to(torch.float8_e4m3fn)
        layer.weight_scale_inv.data = layer.weight_scale_inv.data.float()
    return gate_up, down


def _load(layer, *shard):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN202
    rows = layer.weight.shape[0] // (2 if shard else 1)
    weight = torch.randn(rows, layer.weight.shape[1]) * 0.05
    quantized, scales = quantize_blocks(weight)
    layer.weight.weight_loader(layer.weight, quantized, *shard)
    layer.weight_scale_inv.weight_loader(layer.weight_scale_inv, scales.bfloat16(), *shard)
    return quantized, scales.bfloat16().float()


def check_the_checkpoints_weights_are_used_as_they_are() -> None:
    with _one_rank(), _vllm_log() as log:
        gate_up, down = _layers(_config(fp8=FINISHED, lm_head="bf16"))
        assert isinstance(gate_up.quant_method, FinishedReferenceMethod)
        loaded = [_load(gate_up, shard) for shard in (0, 1)]
        own = _load(down)
        _process(gate_up, down)
        assert "fp8=3 layers" in log.getvalue(), log.getvalue()
        _process(gate_up, down)
    assert torch.equal(gate_up.weight.float(), torch.cat([q for q, _ in loaded]).float())
    assert torch.equal(gate_up.weight_scale_inv, torch.cat([s for _, s in loaded]))
    assert {name for name, _ in gate_up.named_parameters()} == {"weight", "weight_scale_inv"}
    x = torch.randn(5, down.weight.shape[1]).bfloat16()
    exact = x.double() @ dequantize_blocks(*own).double().T
    assert ((down(x)[0].double() - exact).norm() / exact.norm()).item() < 0.06


def check_vllm_s_own_kernels_get_them_as_they_are() -> None:
    with kernel_in_place(), _vllm_log() as log:
        config = served_by(_config(fp8=FINISHED, lm_head="bf16"), FinishedKernelMethod)
        gate_up, down = shared_expert(config)
        for shard in (0, 1):
            _load(gate_up, shard)
        own = _load(down)
        _process(gate_up, down)
        assert "fp8=3 layers" in log.getvalue(), log.getvalue()
        x = torch.randn(5, down.weight.shape[1]).bfloat16()
        assert same_bits(down(x)[0], fp8_block_linear(x, *own, None))


def _refusal(damage) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
    with _one_rank():
        _, down = _layers(_config(fp8=FINISHED, lm_head="bf16"))
        damage(down)
        return refusal(_process, down)


def check_what_was_not_loaded_stops_the_start() -> None:
    said = _refusal(lambda _layer: None)
    assert f"{EXPERT}.down_proj" in said, said


def check_made_up_weights_are_not_looked_at() -> None:
    with _one_rank(), _vllm_log() as log:
        get_current_vllm_config().load_config.load_format = "dummy"
        gate_up, down = _layers(_config(fp8=FINISHED, lm_head="bf16"))
        for layer in (gate_up, down):
            layer.weight.data.fill_(0.01)
            layer.weight_scale_inv.data.fill_(-0.001)  # as vLLM's dummy loader may
        _process(gate_up, down)
    assert "fp8=3 layers" in log.getvalue(), log.getvalue()
    assert "made up" in log.getvalue(), log.getvalue()
