"""The tokens a draft model may propose: counted once over the user's own text, most frequent first.

A draft head over these rows reads a fraction of the whole head's bytes. Which tokens they are is a
matter of speed alone: the target model verifies every draft with its whole head.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint import durable
from sparkdeploy.checkpoint.durable import Progress
from sparkdeploy.checkpoint.repo_files import printable
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.schema import Model, Recipe
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import read_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

OVERLAY_FILE = "draft_vocabulary.json"
"""Beside an overlay's config.json, for the plugin."""
HINT = "count it once over text of yours: sparkdeploy checkpoint draft-vocab RECIPE FILE..."
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_LIMIT_BYTES = 128 << 20
"""What is read of it; one of 250,000 tokens has 20 million bytes."""
CHUNK_CHARACTERS = 1 << 20
"""Text that is tokenised at once; a chunk ends between lines."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """All tokens of a tokenizer in the order in which they are worth drafting."""

    tokens: tuple[int, ...]
    counted: int
    """Tokens of text that were counted; 0 ranks by token number alone."""
    distinct: int
    """Different tokens among them."""
    texts: tuple[str, ...]
    """What was counted, as the user named it."""

    @property
    def origin(self) -> str:
        """A sha256 in hex over the order of the tokens."""
        return hashlib.sha256(json.dumps(self.tokens).encode()).hexdigest()

    def first(self, rows: int) -> list[int]:
        """The `rows` most frequent tokens in ascending order; CheckpointError if there are less."""
        if rows > len(self.tokens):
            raise CheckpointError(
                f"a draft head of {rows} rows was asked for, and the tokenizer has "
                f"{len(self.tokens)} tokens",
                hint="set checkpoint.draft_lm_head.rows lower",
            )
        return sorted(self.tokens[:rows])


def rank_tokens(
    counts: Mapping[int, int], *, special: Iterable[int], vocabulary: int
) -> tuple[int, ...]:
    """Order token numbers 0 to `vocabulary` - 1: special ones, then by count, then by number.

    Special tokens (ends of turns, tags of thoughts and tool calls) stand in no user's text and in
    every reply. Byte-pair merges are numbered as they were learnt, so a low number is the best
    guess for a token that was not seen.
    """
    first = frozenset(special)
    order = sorted(range(vocabulary), key=lambda token: (token not in first, -counts.get(token, 0)))
    return tuple(order)


def read_vocabulary(path: Path) -> DraftVocabulary | None:
    """Return what `write_vocabulary` wrote, None where nothing usable is."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content.pop("version")
        lists = {name: tuple(content[name]) for name in ("tokens", "texts")}
        vocabulary = DraftVocabulary(**{**content, **lists})
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None
    return vocabulary if version == _VERSION else None


def write_vocabulary(path: Path, vocabulary: DraftVocabulary) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(path, json.dumps({"version": _VERSION, **asdict(vocabulary)}) + "\n")


def vocabulary_file(model: Model, settings: Settings) -> Path:
    name = model.known_as.replace("/", "--")
    if model.path is not None:
        digest = hashlib.sha256(str(Path(model.path).absolute()).encode()).hexdigest()[:12]
        name = f"{Path(model.path).name}-{digest}"
    return settings.data_dir / "m" / "draft" / f"{name}.json"


def known_vocabulary(recipe: Recipe, settings: Settings) -> DraftVocabulary | None:
    """Return what was counted for a recipe's draft head; None without one, or without a count."""
    if recipe.checkpoint.draft_lm_head is None:
        return None
    return read_vocabulary(vocabulary_file(recipe.model, settings))


def bring_vocabulary(recipe: Recipe, settings: Settings) -> DraftVocabulary | None:
    """None for a recipe without a draft head; CheckpointError when it was never counted."""
    found = known_vocabulary(recipe, settings)
    if found is None and recipe.checkpoint.draft_lm_head is not None:
        raise CheckpointError(f"no draft vocabulary of {recipe.model.repo} is here", hint=HINT)
    return found


def count_tokens(folder: Path, texts: Sequence[Path], *, on_progress: Progress) -> DraftVocabulary:
    """Tokenise `texts` with the tokenizer of the model in `folder`; CheckpointError without."""
    tokenizer = _read_tokenizer(folder)
    counts: Counter[int] = Counter()
    done_bytes = 0
    try:
        total_bytes = sum(text.stat().st_size for text in texts)
        for text in texts:
            with text.open(encoding="utf-8", errors="replace") as file:
                while lines := file.readlines(CHUNK_CHARACTERS):
                    chunk = "".join(lines)
                    counts.update(tokenizer.encode(chunk, add_special_tokens=False).ids)
                    done_bytes += len(chunk.encode())
                    on_progress(done_bytes, total_bytes)
    except OSError as error:
        named = error.filename or "a text"
        raise CheckpointError(f"{named} cannot be read: {error.strerror}") from error
    special = tokenizer.get_added_tokens_decoder()
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    tokens = rank_tokens(counts, special=special, vocabulary=size)
    return DraftVocabulary(tokens, counts.total(), len(counts), tuple(map(str, texts)))


def _read_tokenizer(folder: Path) -> "Tokenizer":
    from tokenizers import Tokenizer  # noqa: PLC0415 - only this command needs it

    path = folder / TOKENIZER_FILE
    try:
        return Tokenizer.from_buffer(read_bytes(path, TOKENIZER_LIMIT_BYTES))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} has no {TOKENIZER_FILE}") from error
    except Exception as error:  # the library has no class of its own for a damaged file
        raise CheckpointError(
            f"{path} cannot be read: {printable(str(error))}", hint="download the model again"
        ) from error
