"""The draft vocabulary of a model whose user counted none: over the sample text that is shipped.

What the count will be made of is hashed before it is made, so that a plan can name the overlay. It
is kept by that hash: models with the same tokenizer share it.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

from sparkdeploy.checkpoint.draft_vocabulary import (
    RANKING,
    TOKENIZER_FILE,
    TOKENIZER_LIMIT_BYTES,
    DraftVocabulary,
    count_tokens,
    known_vocabulary,
    read_vocabulary,
    write_vocabulary,
)
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import read_bytes
from sparkdeploy.terminal.console import console

FOLDER = Path(__file__).with_name("draft_sample")
NAME = "sparkdeploy's sample"
"""What stands for the sample's files in a count of it."""


def sample_texts() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


def draft_origin(recipe: Recipe, settings: Settings, files: Path) -> str:
    """The hash of the draft vocabulary that a recipe gets for the model in folder `files`.

    Empty for a recipe without a draft head, and where neither a count of the user's nor a tokenizer
    is.
    """
    if recipe.checkpoint.draft_lm_head is None:
        return ""
    counted = known_vocabulary(recipe.model, settings)
    return counted.origin if counted is not None else sample_inputs(files)


def bring_vocabulary(recipe: Recipe, settings: Settings, files: Path) -> DraftVocabulary | None:
    """Return the user's count, or that of the sample, which is made if it was not yet.

    None for a recipe without a draft head. CheckpointError where the model's tokenizer cannot be
    read. Nothing is written before the count is whole.
    """
    if recipe.checkpoint.draft_lm_head is None:
        return None
    return known_vocabulary(recipe.model, settings) or _sample_vocabulary(settings, files)


def sample_inputs(files: Path) -> str:
    """A sha256 in hex over a model's tokenizer and the sample; empty where no tokenizer is.

    Raises PermissionError for one that this user may not read.
    """
    try:
        found = hashlib.sha256(read_bytes(files / TOKENIZER_FILE, TOKENIZER_LIMIT_BYTES))
    except PermissionError:
        raise
    except OSError:
        return ""
    found.update(str(RANKING).encode())
    for text in sample_texts():
        found.update(hashlib.sha256(text.read_bytes()).digest())
    return found.hexdigest()


def _sample_vocabulary(settings: Settings, files: Path) -> DraftVocabulary:
    inputs = sample_inputs(files)
    kept = settings.data_dir / "m" / "draft" / f"sample-{inputs[:16]}.json"
    found = read_vocabulary(kept)
    if found is not None and found.inputs == inputs:
        return found
    with console.step("frequent tokens of the draft head") as step:
        counted = count_tokens(files, sample_texts(), on_progress=step.progress)
        made = replace(counted, texts=(NAME,), inputs=inputs)
        write_vocabulary(kept, made)
    return made
