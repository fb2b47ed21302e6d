"""INT4 in groups: what rounding costs, what is refused, and vLLM's own arithmetic and packing."""

import torch
from sparkdeploy_vllm.int4_maths import (
    IN_A_WORD,
    dequantize_groups,
    fit_groups,
    pack_inputs,
    quantize_groups,
)
from sparkdeploy_vllm.treatment import INT4_GROUP
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


def check_a_group_s_scale_says_nothing_of_its_neighbours() -> None:
    weight = _weights(torch.bfloat16)[2]
    codes, scales = quantize_groups(weight)
    changed = weight.clone()
    changed[5, INT4_GROUP : 2 * INT4_GROUP] *= 3
    other_codes, other_scales = quantize_groups(changed)
    kept = torch.ones_like(codes, dtype=torch.bool)
    kept[5, INT4_GROUP : 2 * INT4_GROUP] = False
    assert torch.equal(codes[kept], other_codes[kept])
    assert (scales != other_scales).sum() == 1


def check_parts_of_a_matrix_are_what_the_whole_is() -> None:
    # So ranks hold what one rank would, whichever way a matrix is divided.
    weight = _weights(torch.bfloat16)[4]
    codes, scales = quantize_groups(weight)
    by_rows = [quantize_groups(part) for part in weight.chunk(2)]
    by_columns = [quantize_groups(part) for part in weight.chunk(2, dim=1)]
    assert torch.equal(codes, torch.cat([part for part, _ in by_rows]))
    assert torch.equal(scales, torch.cat([part for _, part in by_rows]))
    assert torch.equal(codes, torch.cat([part for part, _ in by_columns], dim=1))
    assert torch.equal(scales, torch.cat([part for _, part in by_columns], dim=1))


def check_a_group_of_zeros_stays_zeros() -> None:
    weight = _weights(torch.bfloat16)[1]
    weight[3, :INT4_GROUP] = 0
    codes, scales = quantize_groups(weight)
    assert (codes[3, :INT4_GROUP] == 8).all()
    assert scales[3, 0] > 0
    assert (dequantize_groups(codes, scales)[3, :INT4_GROUP] == 0).all()


def check_a_value_that_is_no_finite_number_is_seen_in_its_group_s_scale() -> None:
    for damage in (float("nan"), float("inf"), float("-inf")):
        weight = _weights(torch.bfloat16)[1]
        weight[3, INT4_GROUP + 7] = damage
        _, scales = quantize_groups(weight)
        damaged = ~torch.isfinite(scales)
        assert damaged.sum() == 1, damage
        assert damaged[3, 1]


def check_the_values_are_vllm_s_own() -> None:
    for weight in _weights(torch.bfloat16)[:15]:
        ours, scales = quantize_groups(weight)
        # Its scales are of its input's dtype: FP32 here, which ours are rounded from.
        _, theirs, their_scales, _ = quant_utils.quantize_weights(
            weight.float().t().contiguous(), scalar_types.uint4b8, INT4_GROUP
        )
        wanted = their_scales.t().clamp_min(torch.finfo(torch.bfloat16).tiny)
        assert torch.equal(scales, wanted.bfloat16())
        differ = (ours.int() - theirs.t().int()).abs()
        # A scale that is rounded moves a value by no more than one step, and few of them.
        assert differ.max() <= 1
        assert differ.float().mean() < 0.02


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


def check_parts_of_a_fitted_matrix_are_what_the_whole_is() -> None:
    weight = _drawn_wide()
    codes, scales = fit_groups(weight)
    for ranks in (2, 8):
        parts = [fit_groups(part.contiguous()) for part in weight.chunk(ranks, dim=1)]
        assert torch.equal(codes, torch.cat([part for part, _ in parts], dim=1))
        assert torch.equal(scales, torch.cat([part for _, part in parts], dim=1))
        rows = [fit_groups(part) for part in weight.chunk(ranks)]
        assert torch.equal(codes, torch.cat([part for part, _ in rows]))


def _drawn_wide() -> torch.Tensor:
    """The inputs of the 122B's down_proj, which are a group a rank on eight."""
    generator = torch.Generator().manual_seed(11)
    return (torch.randn(64, 1024, generator=generator) * 0.02).bfloat16()


def check_damage_is_seen_in_a_fitted_scale() -> None:
    for damage in (float("nan"), float("inf"), float("-inf")):
        weight = _weights(torch.bfloat16)[1]
        weight[3, INT4_GROUP + 7] = damage
        damaged = ~torch.isfinite(fit_groups(weight)[1])
        assert damaged.sum() == 1, damage
        assert damaged[3, 1]


def check_a_fitted_group_of_zeros_stays_zeros() -> None:
    weight = _weights(torch.bfloat16)[1]
    weight[3, :INT4_GROUP] = 0
    codes, scales = fit_groups(weight)
    assert (dequantize_groups(codes, scales)[3, :INT4_GROUP] == 0).all()
    assert (scales > 0).all()
