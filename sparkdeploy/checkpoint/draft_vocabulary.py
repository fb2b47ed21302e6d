"""The tokens a draft model may propose: counted once over text, most frequent first.

A draft head over these rows reads a fraction of the whole head's bytes. Which tokens they are is a
matter of speed alone: the target model verifies every draft with its whole head.
"""

import hashlib
import io
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from sparkdeploy.checkpoint import durable
from sparkdeploy.checkpoint.durable import Progress
from sparkdeploy.checkpoint.repo_files import printable
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.schema import Model, Recipe
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import open_regular, read_bytes, read_json
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from tokenizers import Tokenizer

OVERLAY_FILE = "draft_vocabulary.json"
"""Beside an overlay's config.json, for the plugin."""
HINT = "count it once over text of yours: sparkdeploy checkpoint draft-vocab RECIPE FILE..."
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_LIMIT_BYTES = 128 << 20
"""What is read of it; one of 250,000 tokens has 20 million bytes."""
CHUNK_CHARACTERS = 1 << 20
RANKING = 1
"""Counts up whenever the same counts give another order."""
SAMPLE_FOLDER = Path(__file__).with_name("draft_sample")
SAMPLE_NAME = "sparkdeploy's sample"
_LESS_THAN_ONCE = 0.99


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """All tokens of a tokenizer in the order in which they are worth drafting."""

    tokens: tuple[int, ...]
    counted: int
    """Tokens of text that were counted; 0 ranks by token number alone."""
    distinct: int
    texts: tuple[str, ...]
    inputs: str = ""
    """A sha256 in hex over tokenizer and text where that was known before the count."""

    @property
    def origin(self) -> str:
        """A sha256 in hex: `inputs`, or over the order of the tokens."""
        return self.inputs or hashlib.sha256(json.dumps(self.tokens).encode()).hexdigest()

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
    counts: Mapping[int, int],
    *,
    special: Iterable[int],
    vocabulary: int,
    scripts: Sequence[str] = (),
) -> tuple[int, ...]:
    """Order token numbers 0 to `vocabulary` - 1: special ones, then by expected count, by number.

    Special tokens (ends of turns, tags of thoughts and tool calls) stand in no user's text and in
    every reply. `scripts` says which letters a token has, by its number; without it all are alike.
    """
    first = frozenset(special)
    expected = _expected_counts(counts, scripts or [""] * vocabulary)
    order = sorted(range(vocabulary), key=lambda token: (token not in first, -expected[token]))
    return tuple(order)


def _expected_counts(counts: Mapping[int, int], scripts: Sequence[str]) -> list[float]:
    """Tell how often each token would stand in as much text again: its count, if it has one.

    Of a script's tokens that were not seen, those that were seen once tell how many there would be
    (I. J. Good, Biometrika 40, 1953). Byte-pair merges are numbered as they were learnt, so among
    them a low number is the best guess, which falls by one over the rank (Zipf). By number alone a
    vocabulary that was extended for a script would have its letters last.
    """
    seen = Counter(scripts[token] for token, count in counts.items() if count)
    # One more: a script of which there was nothing is not impossible.
    once = Counter(dict.fromkeys(scripts, 1))
    once.update(scripts[token] for token, count in counts.items() if count == 1)
    expected = []
    for token, script in enumerate(scripts):
        count = float(counts.get(token, 0))
        if not count:
            seen[script] += 1
            count = min(once[script] / seen[script], _LESS_THAN_ONCE)
        expected.append(count)
    return expected


def scripts_of(tokenizer: "Tokenizer") -> list[str]:
    """Name the script of each token's first letter, in Unicode's first word: LATIN, CJK."""
    numbers = range(tokenizer.get_vocab_size(with_added_tokens=True))
    texts = tokenizer.decode_batch([[number] for number in numbers], skip_special_tokens=False)
    letters = (next(filter(str.isalpha, text), "") for text in texts)
    return [unicodedata.name(letter, "").partition(" ")[0] if letter else "" for letter in letters]


def read_vocabulary(path: Path) -> DraftVocabulary | None:
    try:
        return TypeAdapter(DraftVocabulary).validate_python(read_json(path))
    except (OSError, ValueError):
        return None


def write_vocabulary(path: Path, vocabulary: DraftVocabulary) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(path, json.dumps(asdict(vocabulary)) + "\n")


def vocabulary_file(model: Model, settings: Settings) -> Path:
    name = model.known_as.replace("/", "--")
    if model.path is not None:
        digest = hashlib.sha256(str(Path(model.path).absolute()).encode()).hexdigest()[:12]
        name = f"{Path(model.path).name}-{digest}"
    return settings.data_dir / "m" / "draft" / f"{name}.json"


def count_tokens(folder: Path, texts: Sequence[Path], *, on_progress: Progress) -> DraftVocabulary:
    """Tokenise `texts` with the tokenizer of the model in `folder`; CheckpointError without."""
    tokenizer = _read_tokenizer(folder)
    counts: Counter[int] = Counter()
    done_bytes = 0
    try:
        total_bytes = sum(text.stat().st_size for text in texts)
        for text in texts:
            with io.TextIOWrapper(open_regular(text), "utf-8", "replace") as file:
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
    tokens = rank_tokens(counts, special=special, vocabulary=size, scripts=scripts_of(tokenizer))
    return DraftVocabulary(tokens, counts.total(), len(counts), tuple(map(str, texts)))


def _read_tokenizer(folder: Path) -> "Tokenizer":
    from tokenizers import Tokenizer  # noqa: PLC0415 - only a count needs it

    path = folder / TOKENIZER_FILE
    try:
        return Tokenizer.from_buffer(read_bytes(path, TOKENIZER_LIMIT_BYTES))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} has no {TOKENIZER_FILE}") from error
    except Exception as error:  # the library has no class of its own for a damaged file
        raise CheckpointError(
            f"{path} cannot be read: {printable(error)}", hint="download the model again"
        ) from error


def sample_texts() -> list[Path]:
    return sorted(SAMPLE_FOLDER.glob("*.txt"))


def draft_origin(recipe: Recipe, settings: Settings, files: Path) -> str:
    """Return the hash of a recipe's draft vocabulary; empty without a draft head or tokenizer."""
    if recipe.checkpoint.draft_lm_head is None:
        return ""
    counted = read_vocabulary(vocabulary_file(recipe.model, settings))
    return counted.origin if counted is not None else sample_inputs(files)


def ensure_vocabulary(recipe: Recipe, settings: Settings, files: Path) -> DraftVocabulary | None:
    """Return the user's count, else that of the sample; None for a recipe without a draft head."""
    if recipe.checkpoint.draft_lm_head is None:
        return None
    counted = read_vocabulary(vocabulary_file(recipe.model, settings))
    return counted or _sample_vocabulary(settings, files)


def sample_inputs(files: Path) -> str:
    """A sha256 in hex over a model's tokenizer and the sample; empty where no tokenizer is."""
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
        made = replace(counted, texts=(SAMPLE_NAME,), inputs=inputs)
        write_vocabulary(kept, made)
    return made
