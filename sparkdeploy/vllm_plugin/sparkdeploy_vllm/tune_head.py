"""Tune the INT8 head on this machine's card: `python -m sparkdeploy_vllm.tune_head`.

For the model that the container serves, unless another one is named. Some minutes, once per card
and shape, with nothing else at work on the card. Each tile is held against the exact product before
it is timed. The result goes into the cache folder, where the next start of vLLM finds it. Exit code
0 when it is written, 1 when it is not.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from sparkdeploy_vllm import __version__
from sparkdeploy_vllm.kernels.head_tiles_file import tuned_folder, write_tuned
from sparkdeploy_vllm.kernels.head_tuning import tune
from sparkdeploy_vllm.treatment import BLOCK_KEY

VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of it."""
ROUNDS = 25
FIRST_PROCESS = Path("/proc/1/cmdline")


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.vocab and not options.hidden:
        parser.error("--vocab needs --hidden")
    try:
        shapes = [(options.vocab, options.hidden)] if options.vocab else _shapes_of(options)
        for vocab, hidden in shapes:
            _tune_shape(vocab, hidden, options)
    except (RuntimeError, OSError, ValueError) as error:  # CUDA's own are RuntimeErrors
        sys.stderr.write(f"tune_head: {error}; nothing was written for this shape\n")
        return 1
    return 0


def head_shapes(config: Mapping[str, Any], *, ranks: int) -> list[tuple[int, int]]:
    """Return [V, K] of the INT8 matrices that one of `ranks` ranks holds, from config.json.

    The draft model's own head is among them, except under tensor parallelism, where each rank's
    share of the frequent tokens is another one. ValueError when the config names no sizes.
    """
    text = config.get("text_config", config)
    vocab, hidden = text.get("vocab_size"), text.get("hidden_size")
    if not isinstance(vocab, int) or not isinstance(hidden, int):
        raise ValueError("its config.json names no vocab_size and hidden_size")  # noqa: TRY004
    padded = -(-vocab // VOCABULARY_PADDING) * VOCABULARY_PADDING
    shapes = [(padded // ranks, hidden)]
    draft = config.get("quantization_config", {}).get(BLOCK_KEY, {}).get("draft_lm_head")
    if draft and ranks == 1:
        shapes.append((int(draft["rows"]), hidden))
    return shapes


def served(command: bytes) -> tuple[Path, int]:
    """Return the model's folder and the tensor-parallel ranks; ValueError where none is served."""
    words = command.decode(errors="replace").split("\0")
    following = dict(pairwise(words))
    model = Path(following.get("serve", ""))
    if not model.is_absolute():
        raise ValueError("this container serves no model: name one with --model")
    return model, int(following.get("--tensor-parallel-size", "1"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sparkdeploy_vllm.tune_head")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--model", type=Path, help="a model's folder (default: the one served here)")
    shape.add_argument("--vocab", type=int, help="rows of the matrix, with --hidden")
    parser.add_argument("--hidden", type=int, help="columns of the matrix, with --vocab")
    parser.add_argument("--tensor-parallel", type=int, help="ranks that share the model's rows")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="replays per figure (median)")
    parser.add_argument("--folder", type=Path, help="where to write (default: the cache folder)")
    return parser


def _shapes_of(options: argparse.Namespace) -> list[tuple[int, int]]:
    model, ranks = (options.model, 1) if options.model else served(FIRST_PROCESS.read_bytes())
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return head_shapes(config, ranks=options.tensor_parallel or ranks)


def _tune_shape(vocab: int, hidden: int, options: argparse.Namespace) -> None:
    try:
        import torch

        from sparkdeploy_vllm.kernels.head_stand import CudaStand
    except ImportError as error:
        raise RuntimeError(f"{error}; run this inside the image") from error
    if not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA card here")
    stand = CudaStand(vocab, hidden)
    key = stand.key
    _say(f"\n{key.card}, {vocab} x {hidden}, kernel {key.kernel}, Triton {key.triton}\n")
    _say("| rows | right | ships | ms | fastest | ms |\n|---|---|---|---|---|---|")
    tuned = tune(stand.card, stand, rounds=options.rounds, say=_say)
    made_with = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "plugin": __version__,
        "activations": str(stand.dtype),
    }
    _say(f"\nwritten: {write_tuned(key, tuned, made_with, options.folder or tuned_folder())}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # a run cut short shows what it measured


if __name__ == "__main__":
    raise SystemExit(main())
