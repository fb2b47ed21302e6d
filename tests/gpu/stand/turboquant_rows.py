"""Decode attention for one to three rows of a 122B's layer: ours beside FlashAttention's on BF16.

`PYTHONPATH=PLUGIN:SITE python3 turboquant_rows.py [12.1]`: microseconds in a CUDA graph by context;
layers have caches of their own, more than the card's L2 holds. One JSON line a context. A compute
capability asks for the tiles that are shipped for such a card; tiles are proved first.
"""

import json
import sys
from collections.abc import Callable

import torch
from sparkdeploy_vllm.turboquant import proof
from sparkdeploy_vllm.turboquant.decode import AttentionLayer
from sparkdeploy_vllm.turboquant.format import slot_format
from timing import graph_us
from torch import Tensor

LAYER = AttentionLayer(slot_format("turboquant_4bit_nc", 256), 32, 2, 256**-0.5)
CUDA = torch.device("cuda")
CAPABILITY = (
    tuple(map(int, sys.argv[1].split("."))) if sys.argv[1:] else torch.cuda.get_device_capability()
)
CONTEXTS, ROWS, LAYERS = (8_192, 65_536, 100_000, 131_072), (1, 2, 3), 4
PAGE = 16


def layer_us(layers: Callable[[], object]) -> float:
    return round(graph_us(layers) / LAYERS, 1)


def ours_us(context: int, rows: int) -> float:
    questions = [
        proof.draw(LAYER, (context,), PAGE, torch.bfloat16, rows, CUDA) for _ in range(LAYERS)
    ]
    tile = LAYER.shipped_tile(CAPABILITY, rows)
    into = proof.scratch(LAYER, tile, questions[0], 0.0)
    out = torch.empty_like(questions[0].query)
    return layer_us(lambda: [proof.attend(LAYER, tile, it, out, into) for it in questions])


def flash_us(context: int, rows: int) -> float:
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version

    pages = -(-context // PAGE)
    caches = [
        torch.randn((2, pages, PAGE, 2, 256), device=CUDA, dtype=torch.bfloat16)
        for _ in range(LAYERS)
    ]
    query = torch.randn((rows, 32, 256), device=CUDA, dtype=torch.bfloat16)
    out = torch.empty_like(query)
    starts = torch.tensor([0, rows], device=CUDA, dtype=torch.int32)
    lengths = torch.tensor([context], device=CUDA, dtype=torch.int32)
    table = torch.randperm(pages, device=CUDA).int()[None]
    version = get_flash_attn_version(head_size=256)

    def attend(cache: Tensor) -> None:
        flash_attn_varlen_func(
            q=query, k=cache[0], v=cache[1], out=out, cu_seqlens_q=starts, max_seqlen_q=rows,
            seqused_k=lengths, max_seqlen_k=context, softmax_scale=LAYER.scale, causal=True,
            block_table=table, fa_version=version,
        )  # fmt: skip

    return layer_us(lambda: [attend(cache) for cache in caches])


for rows in ROWS:
    tile = LAYER.shipped_tile(CAPABILITY, rows)
    fault = proof.first_fault(LAYER, tile, PAGE, torch.bfloat16, rows, CUDA)
    print(json.dumps({"rows": rows, "tile": str(tile), "fault": fault}), flush=True)
for context in CONTEXTS:
    found: dict[str, object] = {"context": context}
    for rows in ROWS:
        found[f"{rows}_rows"] = {
            "ours_us": ours_us(context, rows),
            "bf16_us": flash_us(context, rows),
        }
    print(json.dumps(found), flush=True)
