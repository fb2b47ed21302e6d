"""Counts a model's tokens in text files: the only door to the tokenizers library."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

TOKENIZER_FILE = "tokenizer.json"
CHUNK_CHARACTERS = 1 << 20
"""Text that is tokenised at once; a chunk ends between lines."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """How often each token was seen, which ones are special, and how many there are."""

    counts: Mapping[int, int]
    special: frozenset[int]
    vocabulary: int


def count_tokens(
    folder: Path, texts: Sequence[Path], *, on_progress: Callable[[int, int], None]
) -> TokenCounts:
    """Tokenise `texts` with the tokenizer of the model in `folder`.

    `on_progress` is told bytes done and bytes in all. Raises CheckpointError when the tokenizer
    or a text cannot be read.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - only this command needs it

    file = folder / TOKENIZER_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder} has no {TOKENIZER_FILE}")
    tokenizer = Tokenizer.from_file(str(file))
    total = sum(_size_bytes(text) for text in texts)
    counts: Counter[int] = Counter()
    done = 0
    for text in texts:
        for chunk in _chunks(text):
            counts.update(tokenizer.encode(chunk, add_special_tokens=False).ids)
            done += len(chunk.encode())
            on_progress(done, total)
    special = frozenset(tokenizer.get_added_tokens_decoder())
    return TokenCounts(counts, special, tokenizer.get_vocab_size(with_added_tokens=True))


def _size_bytes(text: Path) -> int:
    try:
        return text.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{text} cannot be read: {error.strerror}") from error


def _chunks(text: Path) -> Iterator[str]:
    try:
        with text.open(encoding="utf-8", errors="replace") as file:
            while lines := file.readlines(CHUNK_CHARACTERS):
                yield "".join(lines)
    except OSError as error:
        raise CheckpointError(f"{text} cannot be read: {error.strerror}") from error
