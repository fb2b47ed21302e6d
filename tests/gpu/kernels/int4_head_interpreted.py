"""The INT4 head's kernel without a GPU, in Triton's interpreter.

`python tests/gpu/kernels/int4_head_interpreted.py`; exit 0 or 1. Needs torch (a CPU build will do),
NumPy and Triton 3.6, under a minute, and says nothing about speed or about what a compiler makes of
the kernel: its indices, masks and arithmetic are run as they stand, by Python.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"

import os
import sys
from pathlib import Path
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined
PLUGIN = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"
sys.path.insert(0, str(PLUGIN))
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402 - the interpreter looks for it in each file
from sparkdeploy_vllm.int4_head import int4_linear, quantize_head, unpack_head  # noqa: E402
from sparkdeploy_vllm.kernels import head  # noqa: E402
from sparkdeploy_vllm.kernels import int4_head as kernels  # noqa: E402
from sparkdeploy_vllm.kernels.head_configs import shipped_for  # noqa: E402

HEADS = ((200, 512), (130, 256), (7, 128), (65, 3072))
"""Vocabularies and hidden sizes; most fill no tile."""
SUMMATION = 1e-6
DTYPE = torch.float16
"""The interpreter of Triton 3.6 multiplies the bits of BF16 as if they were integers."""


TILES = shipped_for((12, 1), "int4").tiles


@triton.jit
def _plain_values(pairs, dtype: tl.constexpr):  # noqa: ANN001, ANN202
    low = (pairs & 15).to(tl.int32) - 8
    high = (pairs >> 4).to(tl.int32) - 8
    return low.to(dtype), high.to(dtype)


def main() -> int:
    """1 when a tile's logits are not the product, or depend on how the input lies."""
    generator = torch.Generator().manual_seed(4)
    wrong = 0
    with mock.patch.object(kernels, "_values", _plain_values):
        for vocab, hidden in HEADS:
            matrix = quantize_head(torch.randn(vocab, hidden, generator=generator).to(DTYPE))
            bias = torch.randn(vocab, generator=generator)
            for tile in TILES:
                for rows in (1, tile.rows, tile.rows + 1):
                    wide = torch.randn(2 * rows, 3 * hidden, generator=generator).to(DTYPE)
                    x = wide[::2, hidden : 2 * hidden]
                    got = head.head_with_tile(tile, x, (*matrix, bias), torch.float32)
                    wrong += not right(got, x, matrix, bias)
    sys.stdout.write(f"{len(HEADS)} heads, {len(TILES)} tiles, {wrong} wrong\n")
    return int(wrong > 0)


def right(
    got: torch.Tensor,
    x: torch.Tensor,
    head: tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor,
) -> bool:
    """Whether logits are the FP64 product of what the head stands for, as the CPU's are."""
    exact = x.double() @ unpack_head(*head).double().T + bias
    errors = [
        float((logits.double() - exact).norm() / exact.norm())
        for logits in (got, int4_linear(x, *head, bias))
    ]
    return max(errors) < SUMMATION


if __name__ == "__main__":
    raise SystemExit(main())
