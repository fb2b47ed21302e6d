"""Tune the kernels' tiles on this machine's card: `python -m sparkdeploy_vllm.tune_head`.

Those of an integer LM head, and of attention where the cache is TurboQuant, for the model that the
container serves or another one. Some minutes, once per card and shape, with nothing else at work on
the card; the next start of vLLM uses them. Exit code 0 when all is written, else 1.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparkdeploy_vllm import __version__
from sparkdeploy_vllm.tuning import search
from sparkdeploy_vllm.tuning.tiles import tuned_folder, write_tuned
from sparkdeploy_vllm.turboquant.format import BITS, slot_format
from sparkdeploy_vllm.weights.conversion import BLOCK_KEY

VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of it."""
ROUNDS = 25
FIRST_PROCESS = Path("/proc/1/cmdline")
FAILURES = (RuntimeError, OSError, ValueError, ImportError)
"""CUDA's own are RuntimeErrors."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model's folder, and what of its launch decides the shapes."""

    model: Path
    ranks: int = 1
    cache_dtype: str = "auto"
    query_tokens: int = 1
    """Tokens of a request that a step may verify, the one without a draft included."""


class AttentionShape(NamedTuple):
    """A layer's attention over a TurboQuant cache, as one rank has it."""

    cache_dtype: str
    query_heads: int
    kv_heads: int
    head_dim: int
    query_tokens: int


class HeadShape(NamedTuple):
    vocab: int
    hidden: int
    weights: Literal["int8", "int4"] = "int8"


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


def served(command: bytes) -> Served:
    words = command.decode(errors="replace").split("\0")
    following = dict(pairwise(words))
    model = Path(following.get("serve", ""))
    if not model.is_absolute():
        raise ValueError("this container serves no model: name one with --model")
    drafts = json.loads(following.get("--speculative-config", "{}"))
    return Served(
        model,
        ranks=int(following.get("--tensor-parallel-size", "1")),
        cache_dtype=following.get("--kv-cache-dtype", "auto"),
        query_tokens=1 + int(drafts.get("num_speculative_tokens", 0)),
    )


def head_shapes(config: Mapping[str, Any], *, ranks: int) -> list[HeadShape]:
    """Return the heads' matrices that one of `ranks` ranks holds, from config.json."""
    vocab, hidden = _sizes(config, "vocab_size", "hidden_size")
    padded = -(-vocab // VOCABULARY_PADDING) * VOCABULARY_PADDING
    block = config.get("quantization_config", {}).get(BLOCK_KEY, {})
    weights = "int4" if block.get("lm_head") == "int4" else "int8"
    shapes = [HeadShape(padded // ranks, hidden, weights)]
    draft = block.get("draft_lm_head")
    if draft:
        shapes.append(HeadShape(-(-int(draft["rows"]) // ranks), hidden))
    return shapes


def attention_shape(config: Mapping[str, Any], launch: Served) -> AttentionShape | None:
    """Return None where the cache is no TurboQuant; ValueError when the config names no sizes."""
    if launch.cache_dtype not in BITS:
        return None
    text = config.get("text_config", config)
    query_heads, hidden = _sizes(config, "num_attention_heads", "hidden_size")
    return AttentionShape(
        launch.cache_dtype,
        query_heads // launch.ranks,
        # vLLM gives each rank one where there are fewer than ranks.
        max(1, (text.get("num_key_value_heads") or query_heads) // launch.ranks),
        text.get("head_dim") or hidden // query_heads,
        launch.query_tokens,
    )


def _sizes(config: Mapping[str, Any], first: str, second: str) -> tuple[int, int]:
    text = config.get("text_config", config)
    one, other = text.get(first), text.get(second)
    if not isinstance(one, int) or not isinstance(other, int):
        raise ValueError(f"its config.json names no {first} and {second}")  # noqa: TRY004
    return one, other


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
