"""On a CPU without AVX-512, INT4 layers compute what their packed weights say."""

from types import SimpleNamespace

import torch
from sparkdeploy_vllm import register
from sparkdeploy_vllm.cpu.engine import INT4_OPERATOR, apply_weights, unpack_weights
from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
from vllm.platforms import current_platform
from vllm.scalar_type import scalar_types

INPUTS, OUTPUTS, GROUP = 256, 96, 128


def _pack(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Eight 4-bit values along `dim` to an int32, the lowest bits first."""
    parts = values.long().unflatten(dim, (-1, 8)).movedim(dim + 1, -1)
    packed = (parts << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).int()


def _parameter(data: torch.Tensor, **dims: int) -> torch.nn.Parameter:
    made = torch.nn.Parameter(data.contiguous(), requires_grad=False)
    made.__dict__.update(dims)
    return made


def _layer(*, has_zeros: bool, is_transposed: bool) -> tuple[SimpleNamespace, torch.nn.Module]:
    values = torch.randint(0, 16, (INPUTS, OUTPUTS))
    zeros = torch.randint(0, 16, (INPUTS // GROUP, OUTPUTS))
    scales = (torch.rand(INPUTS // GROUP, OUTPUTS) * 0.1).bfloat16()
    layer = torch.nn.Module()
    packed, stored_zeros = _pack(values, 0), _pack(zeros, 1)
    if is_transposed:
        layer.w = _parameter(packed.t(), input_dim=1, packed_dim=1, output_dim=0)
        layer.s = _parameter(scales.t(), output_dim=0)
        layer.z = _parameter(stored_zeros.t(), output_dim=0)
    else:
        layer.w = _parameter(packed, input_dim=0, packed_dim=0, output_dim=1)
        layer.s = _parameter(scales, output_dim=1)
        layer.z = _parameter(stored_zeros, output_dim=1)
    centred = values - (zeros.repeat_interleave(GROUP, 0) if has_zeros else 8)
    layer.exact = centred.double() * scales.double().repeat_interleave(GROUP, 0)
    kind = scalar_types.uint4 if has_zeros else scalar_types.uint4b8
    config = SimpleNamespace(weight_type=kind, zero_points=has_zeros, act_type=torch.bfloat16)
    return SimpleNamespace(w_q_name="w", w_s_name="s", w_zp_name="z", config=config), layer


def check_packed_weights_are_multiplied_as_they_say() -> None:
    for has_zeros in (False, True):
        for is_transposed in (False, True):
            kernel, layer = _layer(has_zeros=has_zeros, is_transposed=is_transposed)
            unpack_weights(kernel, layer)
            x, bias = torch.randn(2, 3, INPUTS).bfloat16(), torch.randn(OUTPUTS).bfloat16()
            got = apply_weights(kernel, layer, x, bias)
            expected = x.double() @ layer.exact + bias.double()
            assert got.shape == (2, 3, OUTPUTS)
            assert got.dtype == torch.bfloat16
            assert torch.allclose(got.double(), expected, rtol=2**-7, atol=1e-3)


def check_it_stands_in_exactly_where_vllm_has_no_operator() -> None:
    register()
    if not current_platform.is_cpu():
        return
    from vllm import _custom_ops  # noqa: F401

    is_replaced = CPUWNA16LinearKernel.apply_weights is apply_weights
    assert is_replaced is not hasattr(torch.ops._C, INT4_OPERATOR)
