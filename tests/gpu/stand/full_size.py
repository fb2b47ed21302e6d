"""Make full-size models without weights: `full_size.py ROOT 122b 35b part`.

ROOT/full/NAME is as the published INT4 checkpoint to the byte, but for its vision tower, and takes
no room: its files have true headers and holes for tensors. ROOT/full/NAME-WAY are our overlays.
vLLM serves them with `--load-format dummy`; margins/ gives them weights whose texts say something.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sparkdeploy.checkpoint import safetensors
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.draft_vocabulary import DraftVocabulary, rank_tokens
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.tiny_model import build
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape

LARGE = TinyShape(
    layers=48, hidden=3072, vocab=248_320, experts=256, experts_per_token=8,
    expert_intermediate=1024, shared_expert_intermediate=1024, attention_heads=32, kv_heads=2,
    linear_key_heads=16, linear_value_heads=64, expert_format="int4",
)  # fmt: skip
MIDDLE = replace(
    LARGE, layers=40, hidden=2048, expert_intermediate=512, shared_expert_intermediate=512,
    attention_heads=16, linear_value_heads=32,
)  # fmt: skip
"""Sizes of Qwen3.5-122B-A10B's and Qwen3.5-35B-A3B's public configurations."""
PART = replace(LARGE, layers=8, experts=32)
"""The large one's attention, where a prompt and a context of 100,000 tokens are asked about."""
SHAPES = {"122b": LARGE, "35b": MIDDLE, "part": PART}
DRAFT = DraftVocabulary(rank_tokens({}, special=(), vocabulary=LARGE.vocab), 0, 0, ())
PLAIN_V2 = Conversion(fp8_mode="online", lm_head="int8", mtp="required")
V2 = replace(PLAIN_V2, fp8_kernel="fused", routing="fused")
HYBRID = replace(V2, lm_head="bf16")
INT4_DRAFTS = replace(V2, mtp_weights="int4-fp8")
WAYS = {
    "122b": {"hybrid": HYBRID, "v2": V2},
    "part": {"v2": V2},
    "35b": {
        "hybrid": HYBRID,
        "v2": V2,
        "v2-vllm": PLAIN_V2,
        "v2-shared": replace(PLAIN_V2, fp8_kernel="fused"),
        "v2-routing": replace(PLAIN_V2, routing="fused"),
        "int4-head": replace(V2, lm_head="int4"),
        "int4-drafts": replace(INT4_DRAFTS, lm_head="int4"),
        "fast": replace(
            INT4_DRAFTS, lm_head="int4", draft_rows=32_768, draft_origin=DRAFT.origin
        ),
    },
}  # fmt: skip


def write_holes(path: Path, tensors: Mapping[str, safetensors.TensorData]) -> None:
    order = sorted(tensors, key=lambda it: (-safetensors.DTYPE_BITS[tensors[it][0]], it))
    sizes = ((it, *tensors[it][:2], safetensors._size_bytes(*tensors[it][:2])) for it in order)
    infos = safetensors.placed(sizes)
    head = safetensors.header_bytes(infos, {"format": "pt"})
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + infos[-1].end)


def make(which: str, root: Path) -> None:
    started = time.monotonic()
    base = root / "full" / which
    base.parent.mkdir(parents=True, exist_ok=True)
    build.build_tiny_model(base, SHAPES[which], seed=7)
    for name, conversion in WAYS[which].items():
        draft = DRAFT if conversion.draft_rows else None
        build_overlay(open_folder(base), conversion, root / "full" / f"{which}-{name}", None, draft)
    sys.stdout.write(f"{which} took {time.monotonic() - started:.0f} s\n")


if __name__ == "__main__":
    build.write_file = write_holes
    for name in sys.argv[2:]:
        make(name, Path(sys.argv[1]))
