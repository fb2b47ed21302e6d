"""The tile of a TurboQuant layer: chosen once, named in the log, and given to every launch."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import sparkdeploy_vllm.kernels
import torch
from check_vllm_hooks import _vllm_log
from sparkdeploy_vllm.kernels.turboquant_tiles import AttentionTile
from sparkdeploy_vllm.kernels.turboquant_tiles_file import (
    AttentionKey,
    TunedAttention,
    tuned_folder,
    tuned_path,
    write_tuned,
)
from sparkdeploy_vllm.turboquant_backend import _kernel_of

KEY = AttentionKey("NVIDIA GB10", (12, 1), 4, 4, 256, 2, 16, 3, kernel="of-now", nvrtc="13.0")
SHIPPED, TUNED = AttentionTile(16, 4, 3), AttentionTile(16, 4, 2)
LAYER = SimpleNamespace(
    kv_cache_dtype="turboquant_4bit_nc",
    head_size=256,
    num_heads=32,
    num_kv_heads=2,
    scale=0.0625,
    most_tokens=3,
)


@contextlib.contextmanager
def _a_card() -> Iterator[mock.MagicMock]:
    """The kernel's module as it is on a GB10, and an empty cache folder."""
    kernels = mock.MagicMock()
    kernels.key_of.return_value = KEY
    kernels.unfit.return_value = None
    with (
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict(os.environ, XDG_CACHE_HOME=cache),
        mock.patch.object(torch.cuda, "current_device", return_value=0),
        mock.patch.object(sparkdeploy_vllm.kernels, "turboquant_decode", kernels, create=True),
        mock.patch.object(sparkdeploy_vllm.kernels, "turboquant_proof", create=True),
    ):
        yield kernels


def _tune() -> Path:
    times = {4096: 0.02}
    return write_tuned(KEY, TunedAttention(TUNED, times, times), {}, tuned_folder())


def check_a_layer_takes_what_was_tuned_and_else_what_ships_and_says_so() -> None:
    with _a_card(), _vllm_log() as log:
        tiles = [_kernel_of(LAYER).tile, _kernel_of(LAYER).tile]  # type: ignore[arg-type,union-attr]
        path = _tune()
        tiles.append(_kernel_of(LAYER).tile)  # type: ignore[arg-type,union-attr]
        tuned_path(KEY, tuned_folder()).write_text("{")
        tiles.append(_kernel_of(LAYER).tile)  # type: ignore[arg-type,union-attr]
    assert tiles == [SHIPPED, SHIPPED, TUNED, SHIPPED]
    shipped, tuned, ignored = log.getvalue().splitlines()
    said = "sparkdeploy: TurboQuant decodes by our kernel: tiles="
    assert shipped.startswith(f"{said}shipped (sm_12x: derived")
    assert tuned == f"{said}tuned ({path})"
    assert ignored.startswith(f"sparkdeploy: {path} is not used: it is not JSON")


def check_every_launch_has_the_layer_s_tile_and_looks_at_no_file() -> None:
    query = torch.zeros(3, 32, 256)
    metadata = SimpleNamespace(seq_lens=torch.ones(1), query_start_loc=None, block_table=None)
    with _a_card() as kernels:
        _tune()
        kernel = _kernel_of(LAYER)  # type: ignore[arg-type]
        assert kernel is not None
        with mock.patch.object(Path, "open", side_effect=AssertionError("a file was read")):
            kernel.decode(query, query, metadata, 3)
    assert kernels.decode_attention.call_args.args[-1] == TUNED


def check_a_machine_without_the_compiler_is_served_by_vllm_s_own_kernel() -> None:
    with _a_card() as kernels, _vllm_log() as log:
        kernels.key_of.side_effect = RuntimeError("no NVRTC here")
        assert _kernel_of(LAYER) is None  # type: ignore[arg-type]
    assert "by vLLM's own kernel: no NVRTC here" in log.getvalue()
