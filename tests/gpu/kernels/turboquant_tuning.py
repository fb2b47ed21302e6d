"""Tune the TurboQuant kernel on this card, then choose from the result and hold it against exact
attention.

`python tests/gpu/kernels/turboquant_tuning.py [FOLDER]` writes the tuned tile into FOLDER (default:
one that is thrown away) and prints a Markdown table; exit 1 when a check fails. Needs a Hopper GPU
or newer with 2 GB free, torch and CUDA's Python bindings; vLLM is not needed.
"""

# mypy: disable-error-code="import-not-found"

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

PLUGIN = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"
sys.path.insert(0, str(PLUGIN))
from sparkdeploy_vllm import tune_head  # noqa: E402
from sparkdeploy_vllm.kernels import turboquant_stand  # noqa: E402
from sparkdeploy_vllm.kernels.turboquant_choice import choose_tile, shipped_choice  # noqa: E402
from sparkdeploy_vllm.kernels.turboquant_decode import AttentionLayer  # noqa: E402
from sparkdeploy_vllm.kernels.turboquant_stand import AttentionStand  # noqa: E402
from sparkdeploy_vllm.kernels.turboquant_tiles_file import tuned_path  # noqa: E402
from sparkdeploy_vllm.kernels.turboquant_tuning import candidates  # noqa: E402
from sparkdeploy_vllm.turboquant_format import slot_format  # noqa: E402

CACHE_DTYPE, QUERY_HEADS, KV_HEADS, HEAD_DIM, QUERY_TOKENS = "turboquant_4bit_nc", 32, 2, 256, 3
"""The 122B model with two drafts."""


def main() -> int:
    """Tune, choose, break the file, choose again; each choice is held against exact attention."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else name)
        heads = ["--heads", str(QUERY_HEADS), str(KV_HEADS), str(HEAD_DIM)]
        layer = ["--kv-cache-dtype", CACHE_DTYPE, "--query-tokens", str(QUERY_TOKENS)]
        if tune_head.main([*heads, *layer, "--folder", str(folder)]) != 0:
            return 1
        slot = slot_format(CACHE_DTYPE, HEAD_DIM)
        stand = AttentionStand(
            AttentionLayer(slot, QUERY_HEADS, KV_HEADS, HEAD_DIM**-0.5), QUERY_TOKENS
        )
        check_choices(stand, folder)
        check_the_check(stand)
    say(f"\n{time.monotonic() - began:.0f} s, all checks passed")
    return 0


def check_choices(stand: AttentionStand, folder: Path) -> None:
    """A tuned file is taken, a broken one and one for another layer are not; all are right."""
    tuned = choose_tile(stand.key, folder)
    assert tuned.source == "tuned", tuned
    assert tuned.tiles in set(candidates(stand.key, stand.card)), tuned
    path = tuned_path(stand.key, folder)
    written = path.read_text()
    path.write_text("{")
    broken = choose_tile(stand.key, folder)
    assert (broken.source, bool(broken.ignored)) == ("shipped", True), broken
    path.write_text(written)
    other = choose_tile(replace(stand.key, group=8), folder)
    assert (other.source, other.ignored) == ("shipped", ""), other
    for choice in (tuned, broken, other):
        assert stand.is_right(choice.tiles), choice
    say(f"\n{tuned.line}\n{broken.line}\n{broken.ignored}")


def check_the_check(stand: AttentionStand) -> None:
    """What is wrong is found wrong: a result with one token of 1021 left out, and a crash."""
    tile = shipped_choice(stand.key).tiles
    plain = turboquant_stand.decode_attention

    def forgetting(attention, query, pages, requests, *rest):  # noqa: ANN001, ANN002, ANN202
        shorter = requests.lengths - torch.tensor([0, 0, 1], dtype=torch.int32, device="cuda")
        return plain(attention, query, pages, replace(requests, lengths=shorter), *rest)

    with mock.patch.object(turboquant_stand, "decode_attention", forgetting):
        assert not stand.is_right(tile)
    with mock.patch.object(turboquant_stand, "decode_attention", side_effect=RuntimeError("no")):
        assert not stand.is_right(tile)
    assert stand.is_right(tile)


def say(line: str) -> None:
    """Print at once, so that a run cut short shows what it measured."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
