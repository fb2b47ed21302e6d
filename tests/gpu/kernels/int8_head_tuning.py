"""Tune the INT8 head on this card, then serve from the result and hold it against what ships.

`python tests/gpu/kernels/int8_head_tuning.py [FOLDER]` writes the tuned tiles into FOLDER (default:
one that is thrown away) and prints Markdown tables; exit 1 when a check fails. Needs a CUDA GPU
with 8 GB free, torch and Triton; vLLM is not needed.

What it said on an H200 stands in docs/figures/int8-head-h200.md.
"""

# mypy: disable-error-code="import-not-found"

import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch

PLUGIN = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"
sys.path.insert(0, str(PLUGIN))
from sparkdeploy_vllm import tune_head  # noqa: E402
from sparkdeploy_vllm.kernels import head_choice  # noqa: E402
from sparkdeploy_vllm.kernels.head import head_logits, prepare  # noqa: E402
from sparkdeploy_vllm.kernels.head_choice import HeadChoice, choose_tiles  # noqa: E402
from sparkdeploy_vllm.kernels.head_configs import shipped_for, tile_for  # noqa: E402
from sparkdeploy_vllm.kernels.head_stand import CudaStand  # noqa: E402
from sparkdeploy_vllm.kernels.head_tiles_file import tuned_path  # noqa: E402
from sparkdeploy_vllm.maths import quantize_rows  # noqa: E402

SHAPES = ((248_320, 3072), (248_320, 2048), (32_768, 3072))
"""The heads of the 122B and the 35B model, and a draft head."""
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
ROUNDS = 15
SUMMATION = 1e-5


def main() -> int:
    """Tune, check and compare every shape."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else name)
        for vocab, hidden in SHAPES:
            shape = ["--vocab", str(vocab), "--hidden", str(hidden)]
            if tune_head.main([*shape, "--folder", str(folder)]) != 0:
                return 1
            stand = CudaStand(vocab, hidden)
            choice = choose_tiles(stand.key, folder)
            assert choice.source == "tuned", choice
            compare(stand, choice)
        serve(folder)
    return 0


def compare(stand: CudaStand, choice: HeadChoice) -> None:
    """Print what ships beside what was tuned, at every number of rows."""
    shipped = shipped_for(choice.key.capability).tiles
    say(f"\n{choice.line}\n\n| rows | ships, ms | tuned, ms | tuned takes |\n|---|---|---|---|")
    for rows in ROWS:
        pair = tile_for(shipped, rows), tile_for(choice.tiles, rows)
        before, after = stand.times_ms(pair, rows, ROUNDS)
        say(f"| {rows} | {before:.4f} | {after:.4f} | {after / before:.3f} |")


def serve(folder: Path) -> None:
    """Load as vLLM does, capture graphs without another look at a file, give the exact product."""
    vocab, hidden = SHAPES[0]
    drawn = torch.Generator("cuda").manual_seed(3)
    plain = torch.randn(vocab, hidden, device="cuda", generator=drawn).mul_(0.02).bfloat16()
    quantized, scales = quantize_rows(plain)
    choice = prepare(quantized, scales, torch.bfloat16, folder)
    assert choice is not None
    assert choice.source == "tuned", choice
    with mock.patch.object(head_choice, "read_tuned", side_effect=AssertionError("read again")):
        tuned = {rows: captured(quantized, scales, rows) for rows in ROWS}
    tuned_path(choice.key, folder).write_text("{")
    broken = prepare(quantized, scales, torch.bfloat16, folder)
    assert broken is not None
    assert (broken.source, bool(broken.ignored)) == ("shipped", True), broken
    for rows, logits in tuned.items():
        exact = (inputs(rows, hidden).double() @ quantized.double().T) * scales.double()
        for found in (logits, captured(quantized, scales, rows)):
            error = float((found.double() - exact).norm() / exact.norm())
            assert error < SUMMATION, (rows, error)
    say("\nserved from the tuned tiles and, after the file was broken, from those that ship: right")


def captured(quantized: torch.Tensor, scales: torch.Tensor, rows: int) -> torch.Tensor:
    """FP32 logits that a captured graph gives; equal to those of a plain call, bit for bit."""
    x = inputs(rows, quantized.shape[1])
    plain = head_logits(x, quantized, scales, out_dtype=torch.float32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = head_logits(x, quantized, scales, out_dtype=torch.float32)
    graph.replay()
    assert torch.equal(logits, plain)
    return plain


def inputs(rows: int, hidden: int) -> torch.Tensor:
    """BF16 activations, the same for the same shape."""
    drawn = torch.Generator("cuda").manual_seed(rows)
    return torch.randn(rows, hidden, device="cuda", generator=drawn).bfloat16()


def say(line: str) -> None:
    """Print at once, so that a run cut short shows what it measured."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
