"""Dense layers that become FP8 by a list of their names: which, and in what form."""

import torch
from check_any_checkpoint import ATTENTION, LAYER, _attention, _config, _shards
from check_vllm_hooks import _load, _one_rank, _process, _vllm_log
from said import refusal
from sparkdeploy_vllm import register
from sparkdeploy_vllm.weights.reference import dequantize_blocks
from vllm.model_executor.models.utils import WeightsMapper


def check_what_is_listed_becomes_fp8_and_is_counted() -> None:
    register()
    with _one_rank(), _vllm_log() as log:
        qkv, out = _attention(_config("none", [*ATTENTION, f"{LAYER}.self_attn.o_proj"]))
        exact = _shards(qkv).float()
        _load(out.weight, 256)
        _process(qkv, out)
    assert "sparkdeploy: spark-hybrid active: fp8=4 layers, lm_head=bf16" in log.getvalue()
    assert qkv.weight.dtype == out.weight.dtype == torch.float8_e4m3fn
    made = dequantize_blocks(qkv.weight, qkv.weight_scale_inv)
    assert ((made - exact).norm() / exact.norm()).item() < 0.04


def check_a_layer_that_blocks_do_not_divide_has_a_scale_an_output() -> None:
    """2,880 inputs, as of gpt-oss, end within a block."""
    register()
    with _one_rank():
        qkv, _ = _attention(_config("none", ATTENTION), hidden=192)
        exact = _shards(qkv).float()
        _process(qkv)
        assert qkv.weight_scale_inv.shape == (512, 1)
        x = torch.randn(5, 192).bfloat16()
        wanted = x.double() @ exact.double().T
        got = qkv(x)[0].double()
        assert ((got - wanted).norm() / wanted.norm()).item() < 0.06
        alone = torch.cat([qkv(x[i : i + 1])[0] for i in range(5)])
        assert torch.equal(alone, qkv(x)[0]), "a row does not depend on the others"


def check_names_that_vllm_changes_are_found() -> None:
    """Layers within another model, and gpt-oss's `attn`; a tower's layers are never taken."""
    register()
    with _one_rank():
        config = _config("none", ATTENTION)
        config.apply_vllm_mapper(WeightsMapper(orig_to_new_substr={".self_attn.": ".attn."}))
        for name, is_taken in (
            ("language_model.model.layers.0.self_attn.qkv_proj", True),
            ("model.layers.0.attn.qkv_proj", True),
            ("vision_tower.encoder.layers.0.self_attn.qkv_proj", False),
            ("model.layers.1.self_attn.qkv_proj", False),
            ("model.layers.0.self_attn.o_proj", False),
        ):
            assert config._is_listed(name) is is_taken, name


def check_a_module_that_this_vllm_does_not_make_stops_the_start() -> None:
    register()
    with _one_rank():
        config = _config("none", [*ATTENTION, f"{LAYER}.self_attn.gone_proj"])
        qkv, _ = _attention(config)
        _shards(qkv)
        said = refusal(_process, qkv)
    assert "expects 4 FP8 layers, 3 were converted" in said, said
