"""Check the INT8 head on a CUDA GPU against FP64, at its edges, in graphs and for independence.

`python tests/gpu/kernels/int8_head_accuracy.py [name ...]`; exit 0 or 1. Needs a CUDA GPU with
16 GB free, torch and Triton; vLLM is not needed.
"""

# mypy: disable-error-code="import-not-found"

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

PLUGIN = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"
sys.path.insert(0, str(PLUGIN))
from sparkdeploy_vllm.int4_head import quantize_head, unpack_head  # noqa: E402
from sparkdeploy_vllm.kernels import int4_head as int4_kernels  # noqa: E402
from sparkdeploy_vllm.kernels import int8_head as kernels  # noqa: E402
from sparkdeploy_vllm.kernels.head import compile_tiles, head_logits  # noqa: E402
from sparkdeploy_vllm.kernels.head_configs import GB10, shipped_for  # noqa: E402
from sparkdeploy_vllm.maths import device_product, quantize_rows, row_chunks  # noqa: E402

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 200)
HEADS = ((16_384, 3072), (12_345, 2048), (1_000, 2000), (63, 1040), (65, 64), (7, 16))
"""Vocabularies and hidden sizes, most of them divisible by no tile."""

SUMMATION = 1e-5
"""Relative error that the order and width of FP32 sums on tensor cores may add."""


def check_the_fall_back_in_torch_is_rounded_once_and_keeps_large_sums() -> None:
    for hidden in (3072, 2001):
        quantized, scales = quantize_rows(weights(1000, hidden))
        for dtype in (torch.bfloat16, torch.float16):
            x = inputs(8, hidden).to(dtype)
            exact = exact_product(x, quantized, scales)
            got = device_product(x, quantized) * scales
            assert relative_error(got, exact) < SUMMATION, (hidden, dtype)
    large = torch.full((2, 3072), 8.0, dtype=torch.float16, device="cuda")
    most = torch.full((5, 3072), 127, dtype=torch.int8, device="cuda")
    assert (device_product(large, most) == 8.0 * 127 * 3072).all()


def check_errors_stay_near_those_of_exact_int8_rounding() -> None:
    for kind in ("random", "outliers"):
        worst = 0.0
        for vocab, hidden in HEADS:
            plain = weights(vocab, hidden, kind=kind)
            quantized, scales = quantize_rows(plain)
            for rows in ROWS:
                x = inputs(rows, hidden, kind=kind)
                truth = x.double() @ plain.double().T
                exact = exact_product(x, quantized, scales)
                for dtype in (torch.bfloat16, torch.float32):
                    # In the toy head, rounding to BF16 alone is 12 times the INT8 error.
                    toy = vocab * hidden < 1000
                    rounded = relative_error(exact.to(dtype) if toy else exact, truth)
                    ours = head_logits(x, quantized, scales, out_dtype=dtype)
                    worst = max(worst, relative_error(ours, truth) / rounded)
        say(f"  {kind}: error at most {worst:.4f} x that of exact INT8 rounding")
        assert worst <= 1.5


def check_fp32_logits_are_the_exact_product_up_to_summation() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for vocab, hidden in HEADS:
            quantized, scales = quantize_rows(weights(vocab, hidden))
            for rows in ROWS:
                x = inputs(rows, hidden).to(dtype)
                ours = head_logits(x, quantized, scales, out_dtype=torch.float32)
                assert relative_error(ours, exact_product(x, quantized, scales)) < SUMMATION


def check_the_first_choice_agrees_with_bf16() -> None:
    plain = weights(248_320, 3072)
    quantized, scales = quantize_rows(plain)
    agreed = counted = 0
    for x, logits, clear in clear_choices(plain, quantized, scales):
        same = head_logits(x, quantized, scales).argmax(dim=1) == logits.argmax(dim=1)
        agreed += int((same & clear).sum())
        counted += int(clear.sum())
    say(f"  {agreed} of {counted} clear choices of {64 * 64} agree")
    assert counted > 1000
    assert agreed >= 0.999 * counted


def check_fp32_logits_are_nearer_to_fp64_than_bf16_ones() -> None:
    plain = weights(248_320, 3072)
    quantized, scales = quantize_rows(plain)
    int4 = quantize_head(plain)
    told: dict[str, list[torch.Tensor]] = {}
    for x, stock, clear in clear_choices(plain, quantized, scales):
        truth = exact_logits(x, plain)
        heads = {
            "stock BF16": stock,
            "INT8, BF16 out": head_logits(x, quantized, scales, out_dtype=torch.bfloat16),
            "INT8, FP32 out": head_logits(x, quantized, scales),
            "INT4, FP32 out": head_logits(x, *int4),
        }
        for name, logits in heads.items():
            parts = told.setdefault(name, [])
            parts.append(torch.stack([*held_against(truth, logits), clear.double()]))
    figures = {name: torch.cat(parts, dim=1) for name, parts in told.items()}
    say("  | head | rows | KL, mean | KL, 99 % | KL, largest | same first choice | tied first |")
    for name, figure in figures.items():
        say_figure(f"{name} | all", figure)
        say_figure(f"{name} | clear", figure[:, figure[3] > 0])
    rounded, exact = figures["INT8, BF16 out"], figures["INT8, FP32 out"]
    assert exact[0].mean() < rounded[0].mean(), "KL"
    assert exact[1].sum() >= rounded[1].sum(), "first choices"
    assert exact[2].sum() < rounded[2].sum(), "ties"


def check_int4_logits_are_the_exact_product_up_to_summation() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for vocab, hidden in ((248_320, 3072), (12_345, 2048), (65, 128)):
            head = quantize_head(weights(vocab, hidden).to(dtype))
            exact_head = unpack_head(*head).double()
            for rows in ROWS:
                x = inputs(rows, hidden).to(dtype)
                ours = head_logits(x, *head)
                assert relative_error(ours, x.double() @ exact_head.T) < SUMMATION
                assert all(torch.equal(head_logits(x, *head), ours) for _ in range(20))


def check_int4_strides_tails_and_biases_are_followed_and_graphs_agree() -> None:
    for vocab, hidden in ((12_345, 3072), (65, 256), (7, 128)):
        head = quantize_head(weights(vocab, hidden))
        bias = torch.randn(vocab, device="cuda").bfloat16()
        compile_tiles(*head, torch.bfloat16, bias)
        for rows in ROWS:
            x = inputs(2 * rows, 3 * hidden)[::2, hidden : 2 * hidden]
            exact = x.double() @ unpack_head(*head).double().T + bias
            assert relative_error(head_logits(x, *head, bias), exact) < SUMMATION
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = head_logits(x, *head, bias)
            graph.replay()
            assert torch.equal(logits, head_logits(x, *head, bias))


def check_an_int4_row_does_not_depend_on_the_other_rows() -> None:
    head = quantize_head(weights(12_345, 3072))
    for tile in shipped_for(torch.cuda.get_device_capability(), "int4").tiles:
        x = inputs(tile.rows, 3072)
        whole = head_logits(x, *head)
        others = x.clone()
        others[1:] = float("nan")
        assert torch.equal(head_logits(others, *head)[0], whole[0])


def say_figure(name: str, figure: torch.Tensor) -> None:
    divergence, same, tied, _ = figure
    spread = " | ".join(
        f"{float(value):.3e}"
        for value in (divergence.mean(), divergence.quantile(0.99), divergence.max())
    )
    say(
        f"  | {name} {len(same)} | {spread} | {int(same.sum())} ({float(same.mean()):.2%})"
        f" | {int(tied.sum())} |"
    )


def check_rows_of_zeros_give_zeros() -> None:
    plain = weights(1000, 2048)
    plain[::3] = 0
    quantized, scales = quantize_rows(plain)
    for rows in ROWS:
        x = inputs(rows, 2048)
        x[0] = 0
        logits = head_logits(x, quantized, scales)
        assert logits.dtype == torch.float32
        assert (logits[:, ::3] == 0).all()
        assert (logits[0] == 0).all()


def check_infinities_in_padding_reach_nothing() -> None:
    quantized, scales = quantize_rows(weights(1024, 2048))
    padded_scales = scales.clone()
    padded_scales[1000:] = float("inf")
    for rows in ROWS:
        around = torch.full((rows + 64, 2048 + 64), float("inf"), device="cuda").bfloat16()
        x = around[:rows, :2048]
        x.copy_(inputs(rows, 2048))
        clean = head_logits(x.contiguous(), quantized, scales)
        padded = head_logits(x, quantized, padded_scales)
        assert torch.equal(padded[:, :1000], clean[:, :1000])


def check_small_scales_survive() -> None:
    plain = weights(1000, 2048).float()
    quantized, scales = quantize_rows(plain)
    x = inputs(5, 2048)
    tiny = scales * 1e-12
    ours = head_logits(x, quantized, tiny, out_dtype=torch.float32)
    assert relative_error(ours, exact_product(x, quantized, tiny)) < SUMMATION


def check_strides_and_leading_dimensions_are_followed() -> None:
    quantized, scales = quantize_rows(weights(1000, 2048))
    for rows in (1, 3, 16, 20, 64, 100):
        wide = inputs(2 * rows, 3 * 2048)
        slices = wide[::2, 2048:4096], wide[:rows, ::3], wide[rows:, 8:2056], wide[rows:, 1:2049]
        for x in slices:
            assert torch.equal(
                head_logits(x, quantized, scales), head_logits(x.contiguous(), quantized, scales)
            )
        cube = inputs(4 * rows, 2048).view(2, 2 * rows, 2048)[:, :rows]
        assert torch.equal(
            head_logits(cube, quantized, scales).view(2 * rows, -1),
            head_logits(cube.reshape(2 * rows, 2048), quantized, scales),
        )
    assert head_logits(inputs(0, 2048), quantized, scales).shape == (0, 1000)


def check_a_bias_is_added() -> None:
    quantized, scales = quantize_rows(weights(1000, 2048))
    bias = torch.randn(1000, device="cuda").bfloat16()
    for rows in ROWS:
        x = inputs(rows, 2048)
        ours = head_logits(x, quantized, scales, bias, out_dtype=torch.float32)
        expected = exact_product(x, quantized, scales) + bias
        assert relative_error(ours, expected) < SUMMATION


def check_a_captured_graph_gives_what_a_plain_call_gives() -> None:
    quantized, scales = quantize_rows(weights(16_384, 3072))
    compile_tiles(quantized, scales, torch.bfloat16)
    for rows in ROWS:
        x = inputs(rows, 3072)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = head_logits(x, quantized, scales)
        for seed in range(3):
            x.copy_(inputs(rows, 3072, seed=seed))
            graph.replay()
            assert torch.equal(logits, head_logits(x, quantized, scales))


def check_the_tiles_of_smaller_cards_are_right_on_this_card_too() -> None:
    for vocab, hidden in HEADS:
        quantized, scales = quantize_rows(weights(vocab, hidden))
        for tile in GB10.tiles:
            for rows in (1, tile.rows, 3 * tile.rows + 1):
                x = inputs(rows, hidden)
                logits = torch.empty(rows, vocab, device="cuda")
                kernels.launch_gathered(tile, x, (quantized, scales, None), logits)
                assert relative_error(logits, exact_product(x, quantized, scales)) < SUMMATION


def check_a_row_does_not_depend_on_the_other_rows() -> None:
    quantized, scales = quantize_rows(weights(12_345, 3072))
    for tile in shipped_for(torch.cuda.get_device_capability()).tiles:
        x = inputs(tile.rows, 3072)
        whole = head_logits(x, quantized, scales, out_dtype=torch.float32)
        others = x.clone()
        others[1:] = float("nan")
        first = head_logits(others, quantized, scales, out_dtype=torch.float32)
        assert torch.equal(first[0], whole[0])
        order = torch.randperm(tile.rows, device="cuda")
        assert torch.equal(
            head_logits(x[order], quantized, scales, out_dtype=torch.float32), whole[order]
        )


def check_which_tiles_agree_bit_for_bit() -> None:
    quantized, scales = quantize_rows(weights(16_384, 3072))
    x = inputs(128, 3072)
    tiles = shipped_for(torch.cuda.get_device_capability()).tiles

    def alone(rows: int) -> torch.Tensor:
        parts = [
            head_logits(part, quantized, scales, out_dtype=torch.float32) for part in x.split(rows)
        ]
        return torch.cat(parts)

    results = {tile.rows: alone(tile.rows) for tile in tiles}
    assert torch.equal(alone(1), results[tiles[0].rows])
    for rows, logits in results.items():
        for others, reference in results.items():
            if others < rows:
                moved = float((logits != reference).float().mean())
                rounded = int((logits.bfloat16() != reference.bfloat16()).sum())
                say(
                    f"  tile of {rows} rows against {others}: {moved:.4f} of FP32 logits differ,"
                    f" {rounded} of {logits.numel()} after rounding to BF16"
                )


def check_repeated_calls_agree_bit_for_bit() -> None:
    quantized, scales = quantize_rows(weights(248_320, 2048))
    for rows in ROWS:
        x = inputs(rows, 2048)
        expected = head_logits(x, quantized, scales)
        for _ in range(20):
            assert torch.equal(head_logits(x, quantized, scales), expected)


def check_tensor_cores_have_read_their_registers_before_the_next_step() -> None:
    quantized, scales = quantize_rows(weights(1000, 3072))
    compile_tiles(quantized, scales, torch.bfloat16)
    compile_tiles(*quantize_head(weights(1000, 3072)), torch.bfloat16)
    texts = [
        compiled.asm["ttgir"]
        for kernel in (kernels._gathered, kernels._streamed, int4_kernels._packed)
        for compiled in kernel.device_caches[torch.cuda.current_device()][0].values()
    ]
    assert texts
    for text in texts:
        assert text.count("pendings =") == text.count("pendings = 0")
        assert "isAsync = true" not in text or "pendings = 0" in text


def weights(vocab: int, hidden: int, *, kind: str = "random") -> torch.Tensor:
    """A BF16 head; with `kind` outliers, every 13th column of every 7th row is 50 times larger."""
    generator = torch.Generator("cuda").manual_seed(vocab + hidden)
    plain = torch.randn(vocab, hidden, device="cuda", generator=generator) * 0.02
    if kind == "outliers":
        plain[::7, ::13] *= 50
    return plain.bfloat16()


def inputs(rows: int, hidden: int, *, kind: str = "random", seed: int = 0) -> torch.Tensor:
    """BF16 activations; with `kind` outliers, every 17th column is 100 times larger."""
    generator = torch.Generator("cuda").manual_seed(seed * 1000 + rows)
    x = torch.randn(rows, hidden, device="cuda", generator=generator)
    if kind == "outliers":
        x[:, ::17] *= 100
    return x.bfloat16()


def leaning_inputs(plain: torch.Tensor, *, rows: int, seed: int) -> torch.Tensor:
    """Activations that lean towards a random token, some hardly and some strongly."""
    generator = torch.Generator("cuda").manual_seed(seed)
    token = torch.randint(plain.shape[0], (rows,), device="cuda", generator=generator)
    noise = torch.randn(rows, plain.shape[1], device="cuda", generator=generator)
    lean = torch.rand(rows, 1, device="cuda", generator=generator) * 8
    return (noise + lean * plain[token].float()).bfloat16()


def clear_choices(
    plain: torch.Tensor, quantized: torch.Tensor, scales: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """64 batches of 64 rows: BF16 activations, the BF16 head's logits, and which choices are clear.

    Clear: the first two differ by more than 4 standard deviations of INT8's error and a BF16 step.
    """
    for batch in range(64):
        x = leaning_inputs(plain, rows=64, seed=batch)
        logits = torch.nn.functional.linear(x, plain)
        first, second = logits.float().topk(2, dim=1).values.unbind(dim=1)
        error = head_logits(x, quantized, scales, out_dtype=torch.float32) - logits.float()
        yield x, logits, first - second > 4 * error.std(dim=1) + first.abs() * 2**-8


def exact_logits(x: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """FP64 logits of the BF16 matrix, in parts: as FP64 it takes four times its memory."""
    return torch.cat([x.double() @ plain[rows].double().T for rows in row_chunks(plain)], dim=1)


def held_against(
    truth: torch.Tensor, logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of FP64 and any logits [M, V], by row [M]: KL(truth || logits) in nats, 1 where the first
    choice is the same, 1 where more than one token has the largest logit. All FP64.
    """
    expected, found = truth.log_softmax(dim=1), logits.double().log_softmax(dim=1)
    divergence = (expected.exp() * (expected - found)).sum(dim=1)
    same = logits.argmax(dim=1) == truth.argmax(dim=1)
    tied = (logits == logits.amax(dim=1, keepdim=True)).sum(dim=1) > 1
    return divergence, same.double(), tied.double()


def exact_product(x: torch.Tensor, quantized: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """FP64 logits of the INT8 head."""
    return (x.double() @ quantized.double().T) * scales.double()


def relative_error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """Norm of the difference over the norm of `truth`."""
    return float((got.double() - truth).norm() / truth.norm())


def main(names: list[str]) -> int:
    """Run the checks whose names contain one of `names` (all without)."""
    say(f"card: {torch.cuda.get_device_name()}; torch {torch.__version__}")
    return 1 if sum(fails(name, check) for name, check in checks(names)) else 0


def checks(names: list[str]) -> list[tuple[str, Callable[[], None]]]:
    """The check_* functions of this file, in order."""
    return [
        (name, member)
        for name, member in globals().items()
        if name.startswith("check_") and (not names or any(part in name for part in names))
    ]


def fails(name: str, check: Callable[[], None]) -> bool:
    """Run one check and report it."""
    begin_s = time.monotonic()
    try:
        check()
    except Exception:  # noqa: BLE001 - whatever a check raises is its finding
        say(traceback.format_exc())
        say(f"FAILED {name}")
        return True
    say(f"ok     {name} ({time.monotonic() - begin_s:.1f} s)")
    return False


def say(line: str) -> None:
    """Print at once, so that a run cut short shows what it found."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
