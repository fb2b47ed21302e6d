"""vLLM's own FP8 per block on chosen layers (0.30 and newer) against ours, on real layers.

On CPUs the plugin never takes that path: vLLM's kernels for them need AMX and do not round the
activations. So a kernel of the checks' own stands in, which demands what CUTLASS demands.
"""

from typing import Any

import torch
from check_vllm_hooks import EXPERT, _config, _head, _load, _process, _vllm_log
from kernel_stand_in import HIDDEN, INTERMEDIATE, kernel_in_place, same_bits, shared_expert
from said import refusal
from sparkdeploy_vllm.weights.conversion import is_fp8_layer
from sparkdeploy_vllm.weights.fp8_linear import ReferenceFp8LinearMethod, online
from sparkdeploy_vllm.weights.hybrid_config import SparkHybridConfig, takes_targets
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
from vllm.model_executor.layers.linear import RowParallelLinear

STEMS = ("model.layers.3", "language_model.model.layers.0", "model.mtp.layers.0", "mtp.layers.0")
TAILS = (
    *("mlp.shared_expert.gate_up_proj", "mlp.shared_expert.down_proj", "mlp.shared_expert_gate"),
    *("mlp.gate", "mlp.experts.shared_expert.down_proj", "self_attn.qkv_proj"),
    *("linear_attn.out_proj", "xmlp.shared_expert.down_proj"),
)


def _native(**block: object) -> SparkHybridConfig:
    config = _config(lm_head="bf16", **block)
    config.hand_over_fp8()
    return config


def _loaded(config: SparkHybridConfig) -> tuple[Any, Any]:
    """The layers with the same weights every time: with outliers and a block of zeros."""
    torch.manual_seed(5)
    layers = shared_expert(config)
    for shard in (0, 1):
        weight = (torch.randn(INTERMEDIATE, HIDDEN) * 0.05).bfloat16()
        weight[:128, :128] = 0
        weight[130, 7] = 30.0
        layers[0].weight.weight_loader(layers[0].weight, weight, shard)
    _load(layers[1].weight, HIDDEN)
    _process(*layers)
    return layers


def check_vllm_s_targets_are_exactly_ourshared_expert() -> None:
    with kernel_in_place():
        targets = _native().targets
        targets.packed_modules_mapping = _native().packed_modules_mapping
        for name in (f"{stem}.{tail}" for stem in STEMS for tail in TAILS):
            taken = targets.resolve_quant_method_cls(RowParallelLinear, name)
            assert (taken is not None) is is_fp8_layer(name), name
            if taken is not None:
                assert taken[-1] is online.Fp8PerBlockOnlineLinearMethod, taken


def check_weights_scales_and_outputs_are_ours_bit_for_bit() -> None:
    with kernel_in_place():
        native, ours = _loaded(_native()), _loaded(_config(lm_head="bf16"))
        x = torch.randn(7, HIDDEN).bfloat16()
        wide = torch.randn(7, INTERMEDIATE).bfloat16()
        for theirs, own, rows in zip(native, ours, (x, wide), strict=True):
            assert type(theirs.quant_method) is online.Fp8PerBlockOnlineLinearMethod
            assert type(own.quant_method) is ReferenceFp8LinearMethod
            assert same_bits(theirs.weight, own.weight)
            assert same_bits(theirs.weight_scale_inv, own.weight_scale_inv)
            assert same_bits(theirs(rows)[0], own(rows)[0])


def check_vllm_s_own_layers_are_in_our_books() -> None:
    with kernel_in_place(), _vllm_log() as log:
        config = _native()
        head = _head(config)
        layers = _loaded(config)
        assert log.getvalue() == ""
        _process(head)
        line = "sparkdeploy: spark-hybrid active: fp8=3 layers, lm_head=bf16"
        assert log.getvalue().splitlines() == [line]
        _process(*layers)
        assert log.getvalue().splitlines() == [line]
    names = {f"{EXPERT}.gate_up_proj", f"{EXPERT}.down_proj"}
    assert set(config.targets.quantized_layers) == names


def check_a_rank_that_would_cut_a_block_is_refused_by_name() -> None:
    with kernel_in_place():
        method = shared_expert(_native())[0].quant_method
        given = (torch.nn.Module(), 64, [384], 128, 384, torch.bfloat16)
        said = refusal(method.create_weights, *given)
    assert f"{EXPERT}.gate_up_proj" in said, said


def check_a_cpu_keeps_our_path_and_why() -> None:
    assert not takes_targets()
    assert _config().targets is None
    assert not CPUFp8BlockScaledMMKernel.apply_input_quant
    supported, why = CPUFp8BlockScaledMMKernel.is_supported()
    assert supported or "AMX" in str(why)
