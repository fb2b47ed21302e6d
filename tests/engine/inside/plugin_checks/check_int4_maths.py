"""INT4 in groups: what rounding costs, what is refused, and vLLM's own arithmetic and packing."""

import torch
from sparkdeploy_vllm.weights.conversion import INT4_GROUP
from sparkdeploy_vllm.weights.int4_groups import IN_A_WORD, fit_groups, pack_inputs, quantize_groups
from vllm.model_executor.layers.quantization.utils import quant_utils
from vllm.scalar_type import scalar_types

SHAPES = ((1, 128), (8, 256), (64, 384), (513, 128), (16, 3072))
SIZES = (1e-30, 1e-4, 0.05, 1.0, 300.0)
"""Of a weight: from what BF16 can hardly hold to what no model has."""
DRAWS = 6


def _weights(dtype: torch.dtype) -> list[torch.Tensor]:
    """Normal, uneven, one-sided and half empty matrices of many shapes and sizes."""
    drawn = []
    for seed, (rows, columns) in enumerate(SHAPES * DRAWS):
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(rows, columns, generator=generator) * SIZES[seed % len(SIZES)]
        if seed % 3 == 1:
            weight[::3, ::17] *= 40
        if seed % 3 == 2:
            weight = weight.abs() if seed % 2 else -weight.abs()
        weight[:, : columns // 4] *= seed % 4 != 3
        drawn.append(weight.clamp(-60_000, 60_000).to(dtype))
    return drawn


def check_a_value_is_at_most_half_a_step_from_the_weight() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for weight in _weights(dtype):
            codes, scales = quantize_groups(weight)
            assert codes.dtype == torch.uint8
            assert scales.shape == (weight.shape[0], weight.shape[1] // INT4_GROUP)
            assert scales.dtype == dtype
            assert int(codes.max()) <= 15
            steps = scales.double().repeat_interleave(INT4_GROUP, 1)
            error = ((codes.double() - 8) * steps - weight.double()).abs()
            assert (error <= steps * 0.5000001).all()


def check_a_scale_is_the_least_that_reaches_every_value() -> None:
    for weight in _weights(torch.bfloat16):
        _, scales = quantize_groups(weight)
        groups = weight.double().view(weight.shape[0], -1, INT4_GROUP)
        reach = torch.maximum(groups.amax(2) / 7, groups.amin(2) / -8)
        normal = torch.finfo(torch.bfloat16).tiny
        assert ((scales.double() / reach.clamp_min(normal) - 1).abs() <= 2**-8).all()


def check_a_value_that_is_no_finite_number_is_seen_in_its_group_s_scale() -> None:
    for damage in (float("nan"), float("inf"), float("-inf")):
        weight = _weights(torch.bfloat16)[1]
        weight[3, INT4_GROUP + 7] = damage
        _, scales = quantize_groups(weight)
        damaged = ~torch.isfinite(scales)
        assert damaged.sum() == 1, damage
        assert damaged[3, 1]


def check_exact_scales_give_vllm_s_codes_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(1, 15, (64, 512), generator=generator, dtype=torch.uint8)
    codes[:, ::INT4_GROUP] = 0  # -8 steps, which alone decide the scale
    scales = torch.rand(64, 4, generator=generator).bfloat16() * 0.1
    weight = ((codes.float() - 8).view(64, 4, -1) * scales.float().unsqueeze(2)).view(64, 512)
    ours, our_scales = quantize_groups(weight.bfloat16())
    _, theirs, _, _ = quant_utils.quantize_weights(
        weight.t().contiguous(), scalar_types.uint4b8, INT4_GROUP
    )
    assert torch.equal(ours.int(), theirs.t().int())
    assert torch.equal(ours, codes)
    assert torch.equal(our_scales, scales)


def check_packing_is_gptq_s() -> None:
    for rows, columns in SHAPES:
        generator = torch.Generator().manual_seed(rows)
        codes = torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.uint8)
        packed = pack_inputs(codes)
        assert packed.dtype == torch.int32
        assert packed.shape == (columns // IN_A_WORD, rows)
        theirs = quant_utils.gptq_pack(codes.t().contiguous(), 4, columns, rows)
        assert torch.equal(packed, theirs)
        back = quant_utils.unpack_quantized_values_into_int32(packed, scalar_types.uint4b8)
        assert torch.equal(back, codes.t().int())


def _squares(weight: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Squared errors of groups, [N, K / 128], in FP64."""
    steps = scales.double().repeat_interleave(INT4_GROUP, 1)
    error = (codes.double() - 8) * steps - weight.double()
    return error.square().view(*scales.shape, INT4_GROUP).sum(2)


def check_a_fitted_scale_is_never_worse_and_of_normal_weights_better() -> None:
    for weight in _weights(torch.bfloat16):
        reaching = _squares(weight, *quantize_groups(weight))
        fitted = _squares(weight, *fit_groups(weight))
        assert (fitted <= reaching * (1 + 1e-5)).all()
    normal = _drawn_wide()
    left = _squares(normal, *fit_groups(normal)).sum()
    assert left < 0.9 * _squares(normal, *quantize_groups(normal)).sum()


def check_a_fitted_value_is_half_a_step_away_unless_it_is_cut_off() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for weight in _weights(dtype):
            codes, scales = fit_groups(weight)
            assert codes.dtype == torch.uint8
            assert scales.dtype == dtype
            assert int(codes.max()) <= 15
            steps = scales.double().repeat_interleave(INT4_GROUP, 1)
            error = ((codes.double() - 8) * steps - weight.double()).abs()
            is_cut = (weight.double() > 7 * steps) | (weight.double() < -8 * steps)
            assert (is_cut | (error <= steps * 0.5000001)).all()
            assert torch.isin(codes[is_cut], torch.tensor([0, 15], dtype=torch.uint8)).all()


def _drawn_wide() -> torch.Tensor:
    """The inputs of the 122B's down_proj, which are a group a rank on eight."""
    generator = torch.Generator().manual_seed(11)
    return (torch.randn(64, 1024, generator=generator) * 0.02).bfloat16()
