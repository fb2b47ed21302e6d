"""The tokens a draft model may propose: counted once over the user's own text, most frequent first.

A draft head over these rows reads a fraction of the whole head's bytes. Which tokens they are is a
matter of speed alone: the target model verifies every draft with its whole head.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint import durable
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

OVERLAY_FILE = "draft_vocabulary.json"
"""Beside an overlay's config.json, for the plugin."""
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
    return tuple(
        sorted(
            range(vocabulary), key=lambda token: (token not in first, -counts.get(token, 0), token)
        )
    )


def read_vocabulary(path: Path) -> DraftVocabulary | None:
    """Return what `write_vocabulary` wrote, None where nothing usable is."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.pop("version", None) != _VERSION:
        return None
    tokens, texts = tuple(content.pop("tokens")), tuple(content.pop("texts"))
    return DraftVocabulary(tokens=tokens, texts=texts, **content)


def write_vocabulary(path: Path, vocabulary: DraftVocabulary) -> None:
    """Write the file whole, or leave the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(path, json.dumps({"version": _VERSION, **asdict(vocabulary)}) + "\n")
