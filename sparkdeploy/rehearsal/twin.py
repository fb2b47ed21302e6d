"""What a rehearsal needs beside the twin: FP8 tensors, a finished hybrid, a draft vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.draft_vocabulary import (
    DraftVocabulary,
    rank_tokens,
    vocabulary_file,
    write_vocabulary,
)
from sparkdeploy.checkpoint.fp8_shard import Order, fetch_shard, shard_folder
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.source import open_folder, source_identity
from sparkdeploy.checkpoint.standalone import build_standalone
from sparkdeploy.checkpoint.twin.fp8 import build_fp8_twin
from sparkdeploy.checkpoint.twin.tokenizer import TwinTokenizer
from sparkdeploy.recipe.paths import is_folder

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings


def twin_to_serve(resolved: Resolved, twin: Path) -> Path:
    """The twin itself; for a recipe with a finished hybrid, the one that is made of it here."""
    if not resolved.recipe.checkpoint.fp8_dense.is_finished:
        return twin
    fp8, finished = (twin.with_name(f"{twin.name}-{part}") for part in ("fp8", "finished"))
    build_fp8_twin(fp8, twin)
    origin = f"the twin {source_identity(open_folder(fp8))}"
    order = Order(model_sizes(read_config(twin)), origin, model=twin)
    folder = shard_folder(twin.with_name(f"{twin.name}-shards"), order)
    shard = fetch_shard(FolderRanges(fp8), order, folder, _unseen)
    build_standalone(
        open_folder(twin), shard, finished, replaces=lambda _out: True, on_progress=_unseen
    )
    return finished


def with_fp8_twin(resolved: Resolved, twin: Path) -> Resolved:
    """Let a recipe with prebuilt FP8 tensors take them from a twin of its FP8 repository."""
    recipe = resolved.recipe
    fp8 = recipe.checkpoint.fp8_dense
    if fp8.mode != "prebuilt" or fp8.source is None or is_folder(fp8.source):
        return resolved
    folder = twin.with_name(f"{twin.name}-fp8")
    build_fp8_twin(folder, twin)
    checkpoint = recipe.checkpoint.model_copy(
        update={"fp8_dense": fp8.model_copy(update={"source": str(folder)})}
    )
    return replace(resolved, recipe=recipe.model_copy(update={"checkpoint": checkpoint}))


def count_twin(resolved: Resolved, twin: Path, settings: Settings) -> None:
    """Write the draft vocabulary of a twin, for a recipe with a draft head.

    What its grammar says comes first, as it would in a list counted over its texts.
    """
    recipe = resolved.recipe
    if recipe.checkpoint.draft_lm_head is None:
        return
    size = model_sizes(read_config(twin)).vocab
    spoken = dict.fromkeys(TwinTokenizer(size).printed_ids, 1)
    tokens = rank_tokens(spoken, special=(), vocabulary=size)
    counted = DraftVocabulary(tokens, len(spoken), len(spoken), ("the twin's grammar",))
    model = recipe.model.model_copy(update={"path": str(twin)})
    write_vocabulary(vocabulary_file(model, settings), counted)


def _unseen(_done_bytes: int, _total_bytes: int) -> None:
    """A twin is made in a second; nobody needs to watch."""
