"""The kernel of FP8 shared experts alone: right for one to eight rows, and how long it takes.

`PYTHONPATH=PLUGIN python3 shared_expert.py [--check]`: each size's greatest difference from FP32 in
plain torch, whether a row's bits depend on its neighbours, and microseconds a step in a CUDA graph
over layers with weights of their own, beside a copy of the same bytes. Prints one JSON line a size.
"""

import json
import sys

import torch
from sparkdeploy_vllm.weights.conversion import MOST_ROWS
from sparkdeploy_vllm.weights.reference import dequantize_blocks, quantize_blocks
from sparkdeploy_vllm.weights.shared_expert_kernel import Fp8Matrix, shared_expert
from timing import graph_us, median_us
from torch import Tensor

SIZES = ((3072, 1024, 48), (2048, 512, 40), (3072, 512, 48), (256, 128, 2))
"""Hidden and inner width, and layers: the 122B, the 35B, half of the 122B, a tiny model."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Layer = tuple[Fp8Matrix, Fp8Matrix, Tensor]


def layer(hidden: int, inner: int) -> Layer:
    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device=DEVICE) * 0.05

    gate_up, down = (quantize_blocks(it) for it in (drawn(2 * inner, hidden), drawn(hidden, inner)))
    return Fp8Matrix(*gate_up), Fp8Matrix(*down), drawn(1, hidden).bfloat16()


def plain(x: Tensor, gate_up: Fp8Matrix, down: Fp8Matrix, own_gate: Tensor) -> Tensor:
    gate, up = (x.float() @ dequantize_blocks(*gate_up).T).chunk(2, 1)
    product = (torch.nn.functional.silu(gate) * up) @ dequantize_blocks(*down).T
    return product * torch.sigmoid(x.float() @ own_gate.float().T)


def check(hidden: int, inner: int) -> dict[str, object]:
    """Return the greatest difference of a norm, and whether each row's bits are its own alone."""
    made, x = layer(hidden, inner), torch.randn((MOST_ROWS, hidden), device=DEVICE).bfloat16()
    wanted, whole = plain(x, *made), shared_expert(x, *made)
    differences, is_own = [], True
    for rows in range(1, MOST_ROWS + 1):
        got = shared_expert(x[:rows], *made)
        differences.append(float((got.float() - wanted[:rows]).norm() / wanted[:rows].norm()))
        is_own = is_own and torch.equal(got, whole[:rows])
    return {"largest_difference": max(differences), "rows_are_independent": is_own}


def step_us(layers: list[Layer], x: Tensor) -> float:
    return graph_us(lambda: [shared_expert(x, *made) for made in layers])


def copy_us(size_bytes: int) -> float:
    source = torch.empty(size_bytes, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    # A copy reads and writes: half of its time is what reading takes.
    return median_us(lambda: target.copy_(source)) / 2


def main() -> int:
    good = True
    for hidden, inner, count in SIZES:
        found: dict[str, object] = {"hidden": hidden, "inner": inner} | check(hidden, inner)
        good = good and found["rows_are_independent"] is True and found["largest_difference"] < 0.01
        if "--check" not in sys.argv:
            layers = [layer(hidden, inner) for _ in range(count)]
            for rows in (1, 3, 8):
                x = torch.randn((rows, hidden), device=DEVICE).bfloat16()
                found[f"step_us_{rows}_rows"] = round(step_us(layers, x), 1)
            found |= {"layers": count, "copy_us": round(copy_us(3 * hidden * inner * count), 1)}
        print(json.dumps(found), flush=True)
    return 0 if good else 1


raise SystemExit(main())
