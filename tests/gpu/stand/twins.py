"""Make the widened twins of the GPU proofs, and their overlays.

`wide` has the 122B's vocabulary, hidden size, attention and draft layer, and 32 of its experts; a
grammar decides its text by wide margins, about half of its drafts are accepted. `nervous` has eight
full-attention layers that matter and no margins at all: nonsense in its attention shows in its text
at once. `narrow` is as wide as the 35B, with the wide one's grammar. `small` has heads that a made
DFlash drafter, `drafter` beside it, can have too. Those of formats.py have other architectures.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.draft_vocabulary import DraftVocabulary, rank_tokens
from sparkdeploy.checkpoint.fp8_shard import Fp8Shard, Order, fetch_shard
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.safetensors import TensorData
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.tiny_model import build, grammar, tensors, values
from sparkdeploy.checkpoint.tiny_model.build import build_drafter, build_tiny_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from tests.gpu.stand import formats

SEED = 7
WIDE = TinyShape(
    layers=8,
    hidden=3072,
    vocab=248_320,
    experts=32,
    experts_per_token=8,
    expert_intermediate=1024,
    shared_expert_intermediate=1024,
    attention_heads=32,
    kv_heads=2,
    linear_key_heads=4,
    linear_value_heads=8,
    expert_format="int4",
)
NERVOUS = TinyShape(
    layers=32,
    hidden=1024,
    vocab=512,
    experts=8,
    experts_per_token=2,
    expert_intermediate=512,
    shared_expert_intermediate=512,
    attention_heads=8,
    kv_heads=2,
    linear_key_heads=4,
    linear_value_heads=8,
    expert_format="int4",
)
NARROW = replace(
    WIDE, hidden=2048, expert_intermediate=512, shared_expert_intermediate=512, attention_heads=16
)
SMALL = TinyShape(hidden=256, expert_format="int4")
"""A made drafter has one head as wide as the stream, and GPUs have kernels for 256 at most."""
DRAFT_ROWS = 65_536
DRAFT = DraftVocabulary(rank_tokens({}, special=(), vocabulary=WIDE.vocab), 0, 0, ())
"""By token number alone: this grammar says nearly every token there is, so any list is as good."""
SHARD_ORIGIN = "the wide twin"
V2 = Conversion(fp8_mode="online", lm_head="int8", mtp="required")
V2_DRAFT = replace(V2, draft_rows=DRAFT_ROWS, draft_origin=DRAFT.origin)
V3 = replace(V2_DRAFT, mtp_weights="int4-fp8")
TREATMENTS = {
    "hybrid": replace(V2, lm_head="bf16"),
    "hybrid-fused": replace(V2, lm_head="bf16", fp8_kernel="fused", routing="fused"),
    "v2": V2,
    "v2-fused": replace(V2, fp8_kernel="fused", routing="fused"),
    "v2-draft": V2_DRAFT,
    "v3": V3,
    "v3-fast": replace(V3, fp8_mode="off", shared_experts="int4", lm_head="int4"),
    "prebuilt": replace(V2, fp8_mode="prebuilt", lm_head="bf16", fp8_origin=SHARD_ORIGIN),
}


def make(which: str, root: Path) -> None:
    """Write `root`/twins/WHICH and, where it has some, its overlays in `root`/m/ck."""
    started = time.monotonic()
    if which in formats.FORMATS:
        formats.make(which, root)
    elif which == "narrow":
        _scale_grammar(NARROW)
        _build(root, which, NARROW)
        build_overlay(open_folder(root / "twins" / which), V2, root / "m" / "ck" / "35b-v2")
    elif which == "small":
        _scale_grammar(SMALL)
        _build(root, which, SMALL)
        build_drafter(root / "twins" / "drafter", SMALL, seed=SEED)
        dflash = replace(V2, mtp="off")
        build_overlay(open_folder(root / "twins" / which), dflash, root / "m" / "ck" / "small-v2")
    elif which == "wide":
        _scale_grammar(WIDE)
        _build(root, which, WIDE)
        source = open_folder(root / "twins" / which)
        for name, conversion in TREATMENTS.items():
            shard = _prebuilt_shard(root) if conversion.fp8_origin else None
            draft = DRAFT if conversion.draft_rows else None
            built = build_overlay(source, conversion, root / "m" / "ck" / name, shard, draft)
            _say(f"{name}: {built.fp8_layer_count} fp8, {built.mtp_tensor_count} mtp tensors")
    else:
        _make_attention_matter(NERVOUS)
        _build(root, which, NERVOUS)
    _say(f"{which} took {time.monotonic() - started:.0f} s")


def _build(root: Path, which: str, shape: TinyShape) -> None:
    (root / "twins").mkdir(parents=True, exist_ok=True)
    build_tiny_model(root / "twins" / which, shape, seed=SEED)


def _prebuilt_shard(root: Path) -> Fp8Shard:
    """The shared experts as the official FP8 repository has them, quantised on the GPU."""
    build.quantize = _quantize
    wide, repository = root / "twins" / "wide", root / "twins" / "wide-fp8"
    build.build_tiny_fp8_model(repository, wide)
    order = Order(model_sizes(read_config(wide)), SHARD_ORIGIN, model=wide)
    return fetch_shard(
        FolderRanges(repository), order, root / "m" / "fp8", lambda _done, _total: None
    )


def _quantize(content: bytes, rows: int, columns: int) -> tuple[bytes, bytes]:
    # The product's own takes minutes for matrices of this size.
    import torch

    exact = torch.frombuffer(bytearray(content), dtype=torch.bfloat16).float()
    tiles = exact.view(rows // build.BLOCK, build.BLOCK, columns // build.BLOCK, build.BLOCK)
    amax = tiles.abs().amax(dim=(1, 3), keepdim=True).clamp_min(1e-4)
    scales = (amax / build.FP8_MAX).bfloat16()
    codes = (tiles / scales.float()).to(torch.float8_e4m3fn)
    return (codes.view(torch.uint8).numpy().tobytes(), scales.view(torch.int16).numpy().tobytes())


def _scale_grammar(shape: TinyShape) -> None:
    """Logits of the size they have at hidden 128, where BF16 still tells the sides apart."""
    factor = 128 / shape.hidden
    grammar._HEAD_SIZE *= factor
    grammar._UNPRINTED_SIZE *= factor


def _make_attention_matter(shape: TinyShape) -> None:
    plain_linears = tensors._attention_linears

    def linears(of: TinyShape) -> Iterator[tuple[str, int, int, float]]:
        for name, outputs, inputs, gain in plain_linears(of):
            yield name, outputs, inputs, 1.5 if name == "o_proj" else gain

    def norms(make: tensors._Maker, attention: str) -> Mapping[str, TensorData]:
        names = (f"{attention}.q_norm.weight", f"{attention}.k_norm.weight")
        return {n: make.normal(n, (make.shape.head_dim,), std=0.05, mean=0.8) for n in names}

    def matrix(name: str, std: float) -> Callable[[grammar.Grammar], bytes]:
        count = shape.vocab * shape.hidden
        return lambda _self: values.normal_bf16(SEED, name, count=count, std=std)

    tensors._attention_linears = linears
    tensors._attention_norms = norms
    tensors._BLOCK_GAIN = 0.02
    grammar.Grammar.embeddings = matrix("nervous embeddings", 1.0)
    grammar.Grammar.head = matrix("nervous head", 2 / shape.hidden**0.5)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
