"""Tune the kernels' tiles on this machine's card: `python -m sparkdeploy_vllm.tune_head`.

Those of an INT8 or INT4 LM head, and of attention where the cache is TurboQuant. For the model that
the container serves, unless another one is named. Some minutes, once per card and shape, with
nothing else at work on the card. Each tile is held against the exact result before it is timed.
What is found goes into the cache folder, where the next start of vLLM finds it. Exit code 0 when
all is written, 1 when something is not.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sparkdeploy_vllm import __version__
from sparkdeploy_vllm.tuning import search
from sparkdeploy_vllm.tuning.served_model import (
    AttentionShape,
    HeadShape,
    Served,
    attention_shape,
    head_shapes,
    served,
)
from sparkdeploy_vllm.tuning.tiles import tuned_folder, write_tuned
from sparkdeploy_vllm.turboquant.format import BITS, slot_format

ROUNDS = 25
FIRST_PROCESS = Path("/proc/1/cmdline")
FAILURES = (RuntimeError, OSError, ValueError, ImportError)
"""CUDA's own are RuntimeErrors."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    found: list[Callable[[], None]] = []
    code = _exit_code(lambda: found.extend([*_searches(options)]))
    # One that fails keeps no other from being done.
    return max([code, *map(_exit_code, found)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sparkdeploy_vllm.tune_head")
    parser.add_argument(
        "--model", type=Path, help="a folder with a config.json (default: the model served here)"
    )
    parser.add_argument("--tensor-parallel", type=int, help="ranks that share rows and heads")
    parser.add_argument("--kv-cache-dtype", choices=list(BITS), help="(default: as served)")
    parser.add_argument(
        "--query-tokens", type=int, help="tokens that a step verifies, 1 + drafts (default: served)"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="replays per figure (median)")
    parser.add_argument("--folder", type=Path, help="where to write (default: the cache folder)")
    return parser


def _searches(options: argparse.Namespace) -> Iterator[Callable[[], None]]:
    launch = _launch(options)
    config = json.loads((launch.model / "config.json").read_text(encoding="utf-8"))
    for shape in head_shapes(config, ranks=launch.ranks):
        yield partial(_tune_head, shape, options)
    if attention := attention_shape(config, launch):
        yield partial(_tune_attention, attention, options)


def _launch(options: argparse.Namespace) -> Served:
    launch = Served(options.model) if options.model else served(FIRST_PROCESS.read_bytes())
    return replace(
        launch,
        ranks=options.tensor_parallel or launch.ranks,
        cache_dtype=options.kv_cache_dtype or launch.cache_dtype,
        query_tokens=options.query_tokens or launch.query_tokens,
    )


def _exit_code(search: Callable[[], None]) -> int:
    try:
        search()
    except FAILURES as error:
        where = "; run this inside the image" if isinstance(error, ImportError) else ""
        sys.stderr.write(f"tune_head: {error}{where}; nothing was written for this shape\n")
        return 1
    return 0


def _tune_head(shape: HeadShape, options: argparse.Namespace) -> None:
    _require_card()
    from sparkdeploy_vllm.tuning.stands import HeadStand

    stand = HeadStand(*shape)
    key = stand.key
    _say(f"\n{key.card}, {key.subject}, kernel {key.kernel}, Triton {key.triton}\n")
    _tune("rows", search.tune_head, stand, options)


def _tune_attention(shape: AttentionShape, options: argparse.Namespace) -> None:
    capability = _require_card()
    from sparkdeploy_vllm.tuning.stands import AttentionStand
    from sparkdeploy_vllm.turboquant.decode import AttentionLayer, unfit

    slot = slot_format(shape.cache_dtype, shape.head_dim)
    attention = AttentionLayer(slot, shape.query_heads, shape.kv_heads, shape.head_dim**-0.5)
    if why_not := unfit(attention, capability, shape.query_tokens):
        raise RuntimeError(f"our kernel does not decode this attention: {why_not}")
    stand = AttentionStand(attention, shape.query_tokens)
    key = stand.key
    heads = f"{shape.query_heads} query and {shape.kv_heads} KV heads of {shape.head_dim}"
    tokens = f"up to {shape.query_tokens} query tokens"
    _say(f"\n{key.card}, {shape.cache_dtype}, {heads}, {tokens}, kernel {key.kernel}\n")
    _tune("context", search.tune_attention, stand, options)


def _tune(size: str, tune: Callable[..., Any], stand: Any, options: argparse.Namespace) -> None:
    import torch

    _say(f"| {size} | right | ships | ms | fastest | ms |\n|---|---|---|---|---|---|")
    key = stand.key
    tuned = tune(key, stand, rounds=options.rounds, say=_say)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    made_with = {"at": at, "torch": torch.__version__, "plugin": __version__}
    folder = options.folder or tuned_folder(key)
    _say(f"\nwritten: {write_tuned(key, tuned, made_with, folder)}")


def _require_card() -> tuple[int, int]:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA card here")
    return torch.cuda.get_device_capability()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # a run cut short shows what it measured


if __name__ == "__main__":
    raise SystemExit(main())
