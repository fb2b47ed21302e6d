"""The class of a quantised checkpoint serves what the plugin does not convert."""

import copy
import pickle
from typing import Any

import torch
from sparkdeploy_vllm import register
from sparkdeploy_vllm.weights.hybrid_config import SparkHybridConfig
from vllm.model_executor.layers.linear import QKVParallelLinear, ReplicatedLinear
from vllm.model_executor.layers.quantization.fp8 import Fp8Config

LAYER = "model.layers.0"
ATTENTION = [f"{LAYER}.self_attn.{name}_proj" for name in "qkv"]
BASES: dict[str, dict[str, Any]] = {
    "none": {},
    "fp8": {"weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    "gptq": {"bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    "modelopt": {"quant_algo": "NVFP4", "ignore": ["model.layers.0.self_attn*"], "group_size": 16},
    "compressed-tensors": {
        "format": "nvfp4-pack-quantized",
        "config_groups": {},
        "ignore": [*ATTENTION, f"{LAYER}.self_attn.o_proj"],
    },
}
"""What published checkpoints say, but for what they leave out."""


def _config(base: str, modules: list[str], **block: object) -> Any:
    stated = copy.deepcopy(BASES[base])
    if base == "fp8":
        stated["modules_to_not_convert"] = [*ATTENTION, f"{LAYER}.self_attn.o_proj"]
    block = {
        "version": 1,
        "base_method": base,
        "fp8": {"mode": "online", "layers": "all", "modules": modules},
        "expected_fp8_layers": len(modules),
        **block,
    }
    made = SparkHybridConfig.from_config(
        {**stated, "quant_method": "spark-hybrid", "spark_hybrid": block}
    )
    made.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    return made


def _attention(config: Any, *, hidden: int = 256, layer: str = LAYER) -> tuple[Any, Any]:
    name = f"{layer}.self_attn"
    qkv = QKVParallelLinear(
        hidden, 128, 2, 1, bias=False, quant_config=config, prefix=f"{name}.qkv_proj"
    )
    out = ReplicatedLinear(256, hidden, bias=False, quant_config=config, prefix=f"{name}.o_proj")
    return qkv.bfloat16(), out.bfloat16()


def _shards(qkv: Any) -> torch.Tensor:
    parts = []
    for shard, rows in (("q", 256), ("k", 128), ("v", 128)):
        weight = (torch.randn(rows, qkv.weight.shape[1]) * 0.05).bfloat16()
        qkv.weight.weight_loader(qkv.weight, weight, shard)
        parts.append(weight)
    return torch.cat(parts)


def check_the_checkpoint_s_own_class_answers_for_the_rest() -> None:
    register()
    config = _config("fp8", ATTENTION)
    assert isinstance(config, Fp8Config)
    assert config.get_name() == "fp8"
    for travelled in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert type(travelled) is type(config)
        assert travelled.ignored_layers == config.ignored_layers
        assert travelled.fp8_keys == config.fp8_keys
    assert [_config(base, ATTENTION).get_name() for base in ("modelopt", "compressed-tensors")] == [
        "modelopt_fp4",
        "compressed-tensors",
    ]
    assert _config("gptq", ATTENTION).get_name() in ("gptq", "gptq_marlin", "auto_gptq")
    assert _config("none", ATTENTION).get_name() == "spark-hybrid"
