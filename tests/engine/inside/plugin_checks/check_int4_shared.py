"""Shared experts that become INT4 on vLLM's own layers: what is converted, counted and refused."""

from typing import Any

import torch
from check_vllm_hooks import EXPERT, _config, _mlp, _one_rank, _process
from said import drawn, error, refusal
from sparkdeploy_vllm.weights.int4_groups import dequantize_groups, fit_groups
from sparkdeploy_vllm.weights.int4_linear import Int4SharedExpertMethod
from vllm.model_executor.layers.linear import ReplicatedLinear, RowParallelLinear
from vllm.model_executor.layers.quantization.utils import quant_utils
from vllm.scalar_type import scalar_types

HIDDEN, INNER = 128, 256
BLOCK = {"dtype": "int4", "group": 128, "int4_layers": 3}


def _quantized(**changed: object) -> Any:
    block = {**BLOCK, **changed}
    return _config(shared_experts=block, fp8=None, lm_head="bf16", expected_fp8_layers=0)


def _matrices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return drawn(INNER, HIDDEN, 1), drawn(INNER, HIDDEN, 2), drawn(HIDDEN, INNER, 3)


def _loaded(config: Any) -> tuple[Any, Any]:
    """A shared expert as a checkpoint's three matrices are loaded into it."""
    gate_up, down = _mlp(config)
    gate, up, out = _matrices()
    gate_up.weight.weight_loader(gate_up.weight, gate, 0)
    gate_up.weight.weight_loader(gate_up.weight, up, 1)
    down.weight.weight_loader(down.weight, out)
    return gate_up, down


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    return dequantize_groups(*fit_groups(weight))


def check_only_the_target_s_matrices_are_converted() -> None:
    with _one_rank():
        config = _quantized()
        assert all(isinstance(it.quant_method, Int4SharedExpertMethod) for it in _mlp(config))
        for stem in ("mtp.layers.0.mlp.shared_expert", "model.layers.0.mlp.other"):
            others = _mlp(_quantized(), stem)
            assert not any(isinstance(it.quant_method, Int4SharedExpertMethod) for it in others)
        gate = ReplicatedLinear(HIDDEN, 1, bias=False, quant_config=config, prefix=f"{EXPERT}_gate")
        assert not isinstance(gate.quant_method, Int4SharedExpertMethod)
        assert not any(
            isinstance(it.quant_method, Int4SharedExpertMethod) for it in _mlp(_config())
        )


def check_it_runs_by_the_method_of_the_checkpoint_s_own_int4() -> None:
    with _one_rank():
        config = _quantized()
        down = _mlp(config)[1]
        packed = RowParallelLinear(
            INNER,
            HIDDEN,
            bias=False,
            quant_config=config,
            prefix="model.language_model.layers.0.self_attn.o_proj",
        )
        assert type(down.quant_method.packed) is type(packed.quant_method)


def check_it_computes_with_the_values_of_int4() -> None:
    with _one_rank():
        gate_up, down = _loaded(_quantized())
        _process(gate_up, down)
        x = drawn(6, HIDDEN, seed=9) * 20
        inner = drawn(6, INNER, seed=8) * 20
        got = gate_up(x)[0], down(inner)[0]
    gate, up, out = _matrices()
    for result, weight, row in ((got[0], torch.cat([gate, up]), x), (got[1], out, inner)):
        exact = row.double() @ _rounded(weight).double().t()
        plain = row.double() @ weight.double().t()
        assert error(result, exact) < 0.01
        assert 0.02 < error(result, plain) < 0.2, "it is INT4, or no longer this expert"


def check_parameters_are_what_gptq_s_file_would_hold() -> None:
    """Up to the kernel's own repacking: vLLM's unpacking finds the values, and the zero points."""
    with _one_rank():
        config = _quantized()
        down = _loaded(config)[1]
        method = down.quant_method
        method.packed.create_weights(
            down, *method.sizes, params_dtype=torch.bfloat16, weight_loader=None
        )
        method._fill(down, down.weight.data)
        codes = quant_utils.unpack_quantized_values_into_int32(down.qweight, scalar_types.uint4b8)
        wanted, scales = fit_groups(_matrices()[2])
        assert torch.equal(codes, wanted.t().int())
        assert torch.equal(down.scales.data, scales.t())
        zeros = quant_utils.unpack_quantized_values_into_int32(
            down.qzeros, scalar_types.uint4, packed_dim=1
        )
        assert (zeros == 7).all(), "stored less one"


def check_what_was_not_loaded_or_is_damaged_is_refused_by_name() -> None:
    for damage in (None, float("nan"), float("inf")):
        with _one_rank():
            config = _quantized()
            gate_up, down = _mlp(config) if damage is None else _loaded(config)
            if damage is not None:
                down.weight.data[5, 7] = damage
                _process(gate_up)
            said = refusal(_process, down)
        assert f"{EXPERT}.down_proj" in said, said
