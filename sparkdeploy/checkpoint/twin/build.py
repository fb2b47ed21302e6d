"""Write a twin to disk, and know what it must answer when it is served."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from sparkdeploy.checkpoint import durable, safetensors
from sparkdeploy.checkpoint.contents import INDEX_FILE, index_content, read_tensors
from sparkdeploy.checkpoint.safetensors import TensorData
from sparkdeploy.checkpoint.twin.config import CHAT_TEMPLATE_FILE, chat_template, config_files
from sparkdeploy.checkpoint.twin.grammar import Grammar
from sparkdeploy.checkpoint.twin.shape import TwinShape
from sparkdeploy.checkpoint.twin.tensors import language_tensors, mtp_tensors, vision_tensors
from sparkdeploy.checkpoint.twin.tokenizer import TwinTokenizer
from sparkdeploy.errors import CheckpointError

TWIN_FILE = "twin.json"
MTP_FILE = "model_extra_tensors.safetensors"

_FORMAT = 4
"""Counts up whenever the same shape and seed give other bytes."""


def build_twin(out: Path, shape: TwinShape, *, seed: int) -> None:
    """Make the folder `out` a twin: the same bytes for the same shape and seed, on any machine.

    It appears all at once, and replaces a different twin. Raises CheckpointError when `out` holds
    anything else.
    """
    if is_twin_of(out, shape, seed=seed):
        return
    if not durable.is_replaceable(out, TWIN_FILE):
        raise CheckpointError(
            f"{out} holds something other than a twin, which would be overwritten.",
            hint="Name an empty or a new folder.",
        )
    try:
        with durable.staged_folder(out) as staging:
            _write_twin(staging, shape, seed)
    except OSError as error:
        raise CheckpointError(f"{out}: the twin cannot be written: {error}") from error


def is_twin_of(folder: Path, shape: TwinShape, *, seed: int) -> bool:
    """Whether `folder` was completed by `build_twin` for this shape and seed."""
    try:
        found = json.loads((folder / TWIN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(found == _identity(shape, seed))


def expected_reply(shape: TwinShape, *, seed: int, token_count: int) -> str:
    """The first tokens of the greedy reply to any chat, thinking included.

    The grammar looks at two tokens, and every chat prompt ends with the same two: `<think>` and a
    line break. Treatments and speculation may not change a letter of this text.
    """
    tokenizer = TwinTokenizer(shape.vocab)
    text = Grammar(shape, seed, tokenizer.printed_ids)
    tokens = [tokenizer.token_id("<think>"), tokenizer.newline_id]
    for _ in range(token_count):
        tokens.append(text.next_token(tokens[-2], tokens[-1]))
    return tokenizer.decode(tokens[2:])


def _identity(shape: TwinShape, seed: int) -> dict[str, object]:
    return {"format": _FORMAT, "seed": seed, "shape": asdict(shape)}


def _write_twin(folder: Path, shape: TwinShape, seed: int) -> None:
    for name, tensors in _shards(shape, seed).items():
        safetensors.write_file(folder / name, tensors)
    files = {
        INDEX_FILE: index_content(read_tensors(folder)),
        **config_files(shape),
        TWIN_FILE: _identity(shape, seed),
    }
    durable.write_text(folder / CHAT_TEMPLATE_FILE, chat_template())
    for name, content in files.items():
        durable.write_json(folder / name, content)


def _shards(shape: TwinShape, seed: int) -> dict[str, Mapping[str, TensorData]]:
    """Two numbered shards, so that nothing relies on one, and the draft layer in Intel's file."""
    text = Grammar(shape, seed, TwinTokenizer(shape.vocab).printed_ids)
    main = {**language_tensors(text), **vision_tensors(shape, seed)}
    names = list(main)
    middle = len(names) // 2
    return {
        "model-00001-of-00002.safetensors": {name: main[name] for name in names[:middle]},
        "model-00002-of-00002.safetensors": {name: main[name] for name in names[middle:]},
        MTP_FILE: mtp_tensors(shape, seed),
    }
