"""Counts a model's tokens in the user's text, once, for draft heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.draft_vocabulary import DraftVocabulary, rank_tokens, write_vocabulary
from sparkdeploy.checkpoint.known_vocabulary import HINT, vocabulary_file
from sparkdeploy.checkpoint.token_counts import count_tokens
from sparkdeploy.commands.drafting import Request, resolve
from sparkdeploy.console import console
from sparkdeploy.errors import CheckpointError
from sparkdeploy.plan.observe import locate_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkdeploy.settings import Settings


def count_for(
    recipe: str, assignments: Sequence[str], texts: Sequence[Path], settings: Settings
) -> DraftVocabulary:
    """Count the tokens of a recipe's model in files and in the files of folders; keep the order.

    Raises CheckpointError when the model is not here or when there is nothing to count.
    """
    wanted = resolve(Request(recipe, tuple(assignments)), settings).recipe
    source = locate_model(wanted, settings).source
    if source is None:
        raise CheckpointError(
            f"{wanted.model.repo} is not here, and its tokenizer is needed",
            hint=f"sparkdeploy checkpoint pull {recipe}",
        )
    files = [file for text in texts for file in _files(text)]
    with console.step(f"tokens of {len(files)} files") as step:
        seen = count_tokens(source.files_dir, files, on_progress=step.progress)
    if not seen.counts:
        raise CheckpointError("there is no text in what was named", hint=HINT)
    vocabulary = DraftVocabulary(
        tokens=rank_tokens(seen.counts, special=seen.special, vocabulary=seen.vocabulary),
        counted=sum(seen.counts.values()),
        distinct=len(seen.counts),
        texts=tuple(map(str, texts)),
    )
    write_vocabulary(vocabulary_file(wanted.model, settings), vocabulary)
    return vocabulary


def _files(text: Path) -> list[Path]:
    return sorted(path for path in text.rglob("*") if path.is_file()) if text.is_dir() else [text]
