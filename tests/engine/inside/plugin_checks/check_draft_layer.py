"""A draft layer of INT4 and FP8 on vLLM's own layers: what is converted, counted and refused."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from check_tensor_parallel import _start_ranks
from check_vllm_hooks import _config, _one_rank, _process
from said import drawn, error, one_of_ranks, refusal
from sparkdeploy_vllm.drafts.experts import Int4ExpertsMethod, RoundedExpertsMethod
from sparkdeploy_vllm.drafts.layer import ExpertsEntry
from sparkdeploy_vllm.weights.fp8_linear import ReferenceFp8LinearMethod
from sparkdeploy_vllm.weights.int4_groups import dequantize_groups, quantize_groups
from sparkdeploy_vllm.weights.ledger import DraftLedger
from vllm.config import get_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers import fused_moe
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQMoEMethod
from vllm.model_executor.layers.quantization.utils import quant_utils
from vllm.scalar_type import scalar_types

EXPERTS, HIDDEN, INNER, HEAD = 8, 128, 256, 128
LAYER = "mtp.layers.0"
BLOCK = {"experts": "int4", "group": 128, "dense": "fp8", "int4_layers": 1, "fp8_layers": 8}


def _quantized(**changed: object) -> Any:
    config = _config(
        draft_layer={**BLOCK, **changed}, fp8=None, lm_head="bf16", expected_fp8_layers=0
    )
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    return config


def _dense(config: Any) -> dict[str, Any]:
    """The draft layer's matrices as vLLM's Qwen3.5 makes them, by their names."""
    given: dict[str, Any] = {"bias": False, "quant_config": config}
    mlp = f"{LAYER}.mlp"
    made = {
        "mtp.fc": ColumnParallelLinear(2 * HIDDEN, HIDDEN, prefix="mtp.fc", **given),
        "qkv": QKVParallelLinear(HIDDEN, HEAD, 4, 2, prefix=f"{LAYER}.self_attn.qkv_proj", **given),
        "o": RowParallelLinear(4 * HEAD, HIDDEN, prefix=f"{LAYER}.self_attn.o_proj", **given),
        "gate_up": MergedColumnParallelLinear(
            HIDDEN, [INNER] * 2, prefix=f"{mlp}.shared_expert.gate_up_proj", **given
        ),
        "down": RowParallelLinear(INNER, HIDDEN, prefix=f"{mlp}.shared_expert.down_proj", **given),
        "router": ReplicatedLinear(HIDDEN, EXPERTS, prefix=f"{mlp}.gate", **given),
        "gate": ReplicatedLinear(HIDDEN, 1, prefix=f"{mlp}.shared_expert_gate", **given),
    }
    return {name: layer.bfloat16() for name, layer in made.items()}


def _experts(config: Any, prefix: str = f"{LAYER}.mlp.experts") -> Any:
    """What runs a layer's experts; `routed_experts` has their weights."""
    # Renamed after 0.25.
    make = getattr(fused_moe, "FusedMoEFactory", None) or fused_moe.FusedMoE
    return make(
        num_experts=EXPERTS,
        top_k=2,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        params_dtype=torch.bfloat16,
        renormalize=True,
        quant_config=config,
        prefix=prefix,
    )


def _load_experts(layer: Any) -> list[dict[str, torch.Tensor]]:
    """Load every expert as a checkpoint has it: three matrices, whole."""
    loaded = []
    for expert in range(EXPERTS):
        shapes = {"w1": (INNER, HIDDEN), "w3": (INNER, HIDDEN), "w2": (HIDDEN, INNER)}
        matrices = {
            shard: drawn(*shape, seed=10 * expert + index)
            for index, (shard, shape) in enumerate(shapes.items())
        }
        for shard, matrix in matrices.items():
            name = "w2_weight" if shard == "w2" else "w13_weight"
            layer.weight_loader(getattr(layer, name), matrix, name, shard, expert)
        loaded.append(matrices)
    return loaded


def _loaded(config: Any) -> tuple[dict[str, Any], Any]:
    """A whole draft layer before it is converted."""
    layers, experts = _dense(config), _experts(config).routed_experts
    for layer in layers.values():
        layer.weight.data.copy_(drawn(*layer.weight.shape, seed=5))
    _load_experts(experts)
    return layers, experts


def check_only_matrices_and_experts_are_converted() -> None:
    with _one_rank():
        layers = _dense(_quantized())
        fp8 = {
            n for n, it in layers.items() if isinstance(it.quant_method, ReferenceFp8LinearMethod)
        }
        assert fp8 == {"mtp.fc", "qkv", "o", "gate_up", "down"}
        method = _experts(_quantized()).routed_experts.quant_method
        assert isinstance(method, RoundedExpertsMethod)
        plain = _config(fp8=None, lm_head="bf16", expected_fp8_layers=0)
        assert type(_experts(plain, "other.experts").routed_experts.quant_method) is not type(
            method
        )
        assert not any(
            isinstance(it.quant_method, ReferenceFp8LinearMethod) for it in _dense(plain).values()
        )


def check_experts_run_with_the_values_of_int4() -> None:
    with _one_rank():
        x = drawn(6, HIDDEN, seed=99) * 20
        scores = drawn(6, EXPERTS, seed=98) * 40
        runner = _experts(_quantized(fp8_layers=0))
        loaded = _load_experts(runner.routed_experts)
        _process(runner.routed_experts)
        with set_forward_context(None, get_current_vllm_config()):
            got = runner(x, scores)
    exact = _mixed(loaded, x, scores, _rounded)
    plain = _mixed(loaded, x, scores, lambda weight: weight)
    assert error(got, exact) < 0.01
    assert 0.02 < error(got, plain) < 0.2, "it is INT4, or it is no longer these experts"


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    return dequantize_groups(*quantize_groups(weight))


def _mixed(
    loaded: list[dict[str, torch.Tensor]],
    x: torch.Tensor,
    scores: torch.Tensor,
    made_of: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The two likeliest experts of each token, in FP64."""
    weights, chosen = torch.softmax(scores.double(), 1).topk(2)
    weights /= weights.sum(1, keepdim=True)
    out = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
    for token, (experts, shares) in enumerate(zip(chosen.tolist(), weights, strict=True)):
        for expert, share in zip(experts, shares, strict=True):
            gate, up, down = (made_of(loaded[expert][s]).double() for s in ("w1", "w3", "w2"))
            row = x[token].double()
            out[token] += share * (down @ (torch.nn.functional.silu(gate @ row) * (up @ row)))
    return out


def check_a_layer_that_is_missing_or_left_alone_stops_the_start() -> None:
    for changed in ({"fp8_layers": 9}, {"int4_layers": 2}, {"int4_layers": 0}):
        with _one_rank():
            config = _quantized(**changed)
            layers, experts = _loaded(config)
            said = refusal(_process, *layers.values(), experts)
        assert "1 and 8 were converted" in said, said


def check_experts_that_were_not_loaded_or_are_damaged_are_refused_by_name() -> None:
    for damage in (None, float("nan"), float("inf")):
        with _one_rank():
            experts = _experts(_quantized()).routed_experts
            if damage is not None:
                _load_experts(experts)
                experts.w2_weight.data[3, 5, 7] = damage
            said = refusal(_process, experts)
        assert f"{LAYER}.mlp.experts" in said, said


def check_a_gpu_s_experts_are_filled_as_gptq_s_loader_would() -> None:
    """Everything up to vLLM's own repacking, which needs a GPU."""
    entry = ExpertsEntry(DraftLedger(1, 0), "mtp.layers.0.mlp.experts")
    with _one_rank(), _no_kernel(), mock.patch.object(DraftLedger, "int4_converted") as converted:
        layer = _experts(None).routed_experts
        for name in ("w13_weight", "w2_weight", "quant_method"):
            delattr(layer, name)
        method = layer.quant_method = Int4ExpertsMethod(layer.moe_config, entry)
        method.create_weights(
            layer,
            EXPERTS,
            HIDDEN,
            INNER,
            torch.bfloat16,
            weight_loader=layer.weight_loader,
            global_num_experts=EXPERTS,
        )
        loaded = _load_experts(layer)
        _process(layer)
        filled = {name: value.clone() for name, value in layer.named_parameters()}
        _process(layer)
    assert converted.call_count == 1
    assert "w13_weight" not in filled
    assert "w2_weight" not in filled
    for expert, matrices in enumerate(loaded):
        whole = {"w13": torch.cat([matrices["w1"], matrices["w3"]]), "w2": matrices["w2"]}
        for name, weight in whole.items():
            packed, scales = (filled[f"{name}_{part}"][expert] for part in ("qweight", "scales"))
            codes = quant_utils.unpack_quantized_values_into_int32(packed, scalar_types.uint4b8)
            back = dequantize_groups(codes.t().to(torch.uint8), scales.t())
            assert torch.equal(back, _rounded(weight)), (expert, name)


def _no_kernel() -> Any:
    """Let vLLM's method choose no kernel and repack for none: both want a GPU."""

    def choose(self: Any, config: Any, moe: Any) -> None:
        super(AutoGPTQMoEMethod, self).__init__(moe)
        self.quant_config, self.input_dtype, self.experts_cls = config, None, None

    return mock.patch.multiple(
        AutoGPTQMoEMethod, __init__=choose, process_weights_after_loading=lambda *_: None
    )


def _serve(rank: int, ranks: int, folder: str) -> None:
    """One rank of a draft layer whose whole matrices lie in a checkpoint."""
    with one_of_ranks(rank, ranks, folder, "sparkdeploy-draft-layer") as current:
        current.parallel_config.tensor_parallel_size = ranks
        config = _quantized(fp8_layers=2)
        fc = ColumnParallelLinear(
            2 * HIDDEN, HIDDEN, bias=False, gather_output=True, quant_config=config, prefix="mtp.fc"
        ).bfloat16()
        down = RowParallelLinear(
            INNER,
            HIDDEN,
            bias=False,
            quant_config=config,
            prefix=f"{LAYER}.mlp.shared_expert.down_proj",
        ).bfloat16()
        runner = _experts(config)
        fc.weight.weight_loader(fc.weight, drawn(HIDDEN, 2 * HIDDEN, seed=1))
        down.weight.weight_loader(down.weight, drawn(HIDDEN, INNER, seed=2))
        _load_experts(runner.routed_experts)
        _process(fc, down, runner.routed_experts)
        assert config.draft_ledger.closed
        x, wide = drawn(6, HIDDEN, seed=99) * 20, drawn(6, 2 * HIDDEN, seed=97)
        scores = drawn(6, EXPERTS, seed=98) * 40
        with set_forward_context(None, current):
            mixed = runner(x, scores)
        inner = drawn(6, INNER, seed=96).chunk(ranks, dim=-1)[rank].contiguous()
        said = (fc(wide)[0], down(inner)[0], mixed)
        if rank == 0:
            torch.save(said, Path(folder) / f"said-{ranks}")


def check_two_ranks_say_what_one_says() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2):
            _start_ranks(_serve, (ranks, folder), ranks)
        whole, parted = (torch.load(Path(folder) / f"said-{ranks}") for ranks in (1, 2))
    for one, two, allowed in zip(whole, parted, (0.05, 0.05, 0.01), strict=True):
        # Blocks of FP8 are each rank's own; groups of INT4 are the same however they are dealt.
        assert error(two, one.double()) < allowed
