"""The plain-torch arithmetic against FP64, and its independence of the batch."""

import torch
from said import error, refusal
from sparkdeploy_vllm.weights.reference import (
    dequantize_blocks,
    dequantize_gather,
    device_product,
    fp8_block_linear,
    int8_linear,
    linear_per_row,
    quantize_blocks,
    quantize_rows,
    requantize_activations,
    row_chunks,
)

SHAPES = ((128, 512), (256, 128), (512, 128), (100, 77), (129, 257), (1024, 300))


def _weight(columns: int, rows: int, *, outliers: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1009 + columns)
    weight = torch.randn(rows, columns, generator=generator) * 0.05
    if outliers:
        weight[::7, ::13] *= 50
    return weight.bfloat16()


def _rows(columns: int, count: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(columns)
    return torch.randn(count, columns, generator=generator).bfloat16()


def check_fp8_weights_equal_vllm_s_own_online_method() -> None:
    from vllm.utils.deep_gemm import per_block_cast_to_fp8

    for columns, rows in SHAPES:
        weight = _weight(columns, rows, outliers=True)
        ours, our_scales = quantize_blocks(weight)
        # Theirs is compiled anew for each shape, which takes ten seconds.
        with torch.compiler.set_stance("force_eager"):
            theirs, their_scales = per_block_cast_to_fp8(
                weight, block_size=[128, 128], use_ue8m0=False
            )
        assert torch.equal(our_scales, their_scales)
        # Their product is rounded to the weight's dtype only when both factors have it.
        assert torch.equal(ours.float(), theirs.float())


def check_fp8_linear_is_as_exact_as_its_inputs() -> None:
    for columns, rows in SHAPES:
        weight, x = _weight(columns, rows), _rows(columns)
        quantized, scales = quantize_blocks(weight)
        rounded = requantize_activations(x).double()
        exact = rounded @ dequantize_blocks(quantized, scales).double().T
        got = fp8_block_linear(x, quantized, scales, None)
        assert got.dtype == torch.bfloat16
        assert error(got, exact) < 2**-8  # BF16 output
        assert error(got, x.double() @ weight.double().T) < 0.06  # FP8 itself


def check_int8_rows_are_within_half_a_step() -> None:
    for columns, rows in SHAPES:
        weight = _weight(columns, rows, outliers=True)
        quantized, scales = quantize_rows(weight)
        back = quantized.double() * scales.double().unsqueeze(1)
        step = weight.double().abs().amax(dim=1, keepdim=True) / 127
        assert ((back - weight.double()).abs() <= step * 0.50001).all()
        assert (quantized.abs().amax(dim=1) == 127).all()


def check_int8_linear_is_as_exact_as_its_weights() -> None:
    for columns, rows in SHAPES:
        weight, x = _weight(columns, rows), _rows(columns)
        quantized, scales = quantize_rows(weight)
        exact = x.double() @ (quantized.double() * scales.double().unsqueeze(1)).T
        got = int8_linear(x, quantized, scales, None)
        assert got.dtype == torch.float32
        assert error(got, exact) < 2**-20
        assert error(got, x.double() @ weight.double().T) < 0.015
        rounded = int8_linear(x, quantized, scales, None, out_dtype=torch.bfloat16)
        assert torch.equal(rounded, got.bfloat16()), "rounded once"


def check_logits_that_differ_by_less_than_a_bf16_step_are_no_tie() -> None:
    weight = torch.full((2, 128), 127, dtype=torch.int8)
    x = torch.ones(1, 128, dtype=torch.bfloat16)
    scales = torch.tensor([20.0, 20.03]) / (127 * 128)
    got = int8_linear(x, weight, scales, None)
    assert got.argmax(dim=1).tolist() == [1]
    assert abs(got[0, 1] - got[0, 0] - 0.03) < 1e-4
    assert got.bfloat16().unique().numel() == 1, "they are one in BF16"


def check_a_row_that_is_no_finite_number_is_refused_in_any_chunk() -> None:
    weight = _weight(1024, 24_000)
    assert len(row_chunks(weight)) > 1
    for row in (0, 11_000, 23_999):
        for damage in (float("nan"), float("inf"), float("-inf")):
            kept = weight[row, 3].clone()
            weight[row, 3] = damage
            assert f"row {row} of 24000" in refusal(quantize_rows, weight), (row, damage)
            weight[row, 3] = kept
    assert refusal(quantize_rows, weight) == "nothing was refused"


def check_the_product_on_a_gpu_keeps_sums_beyond_fp16() -> None:
    x = torch.full((2, 3072), 8.0, dtype=torch.float16)
    weight = torch.full((5, 3072), 127, dtype=torch.int8)
    assert torch.equal(device_product(x, weight), torch.full((2, 5), 8.0 * 127 * 3072))


def check_the_product_on_a_gpu_is_rounded_once() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        quantized, scales = quantize_rows(_weight(3072, 512))
        x = _rows(3072).to(dtype)
        exact = x.double() @ (quantized.double() * scales.double().unsqueeze(1)).T
        got = device_product(x, quantized).double() * scales.double()
        assert error(got, exact) < 2**-18, dtype


def check_bias_is_added() -> None:
    weight, x = _weight(128, 64), _rows(128)
    bias = torch.arange(64).bfloat16()
    for quantize, linear in ((quantize_rows, int8_linear), (quantize_blocks, fp8_block_linear)):
        quantized, scales = quantize(weight)
        plain = linear(x, quantized, scales, None).float()
        assert torch.allclose(
            linear(x, quantized, scales, bias).float(), plain + bias.float(), atol=0.5
        )


def check_embedding_rows_are_the_dequantised_weights() -> None:
    weight = _weight(128, 64)
    quantized, scales = quantize_rows(weight)
    ids = torch.tensor([[3, 63], [0, 3]])
    got = dequantize_gather(ids, quantized, scales, torch.bfloat16)
    assert got.shape == (2, 2, 128)
    assert error(got, weight[ids].double()) < 0.01


def check_a_row_does_not_depend_on_its_batch() -> None:
    for columns, rows in SHAPES:
        weight, x = _weight(columns, rows), _rows(columns)
        for quantize, linear in ((quantize_rows, int8_linear), (quantize_blocks, fp8_block_linear)):
            quantized, scales = quantize(weight)
            alone = torch.cat([linear(x[i : i + 1], quantized, scales, None) for i in range(8)])
            for count in range(1, 9):
                for start in range(9 - count):
                    batch = linear(x[start : start + count], quantized, scales, None)
                    assert torch.equal(batch, alone[start : start + count]), (columns, rows, count)


def check_torch_compile_takes_the_fp8_operator_whole() -> None:
    quantized, scales = quantize_blocks(_weight(128, 64))
    compiled = torch.compile(
        lambda x: fp8_block_linear(x * 2, quantized, scales, None) + 1,
        backend="aot_eager",
        fullgraph=True,
        dynamic=True,
    )
    for count in (1, 3, 8):
        x = _rows(128, count)
        assert torch.equal(compiled(x), fp8_block_linear(x * 2, quantized, scales, None) + 1)


def check_a_compiler_sees_one_graph_for_any_number_of_rows() -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    weight = _weight(64, 32).float()
    compiled = torch.compile(
        lambda x: linear_per_row(x, weight) * 2, backend=count, dynamic=True, fullgraph=True
    )
    for rows in (2, 3, 7, 40):
        x = _rows(64, rows).float()
        assert torch.equal(compiled(x), linear_per_row(x, weight) * 2)
    assert len(graphs) == 1
