"""Measures which share of text a draft head's rows cover, by language, with real vocabularies.

Run: python -m tests.bench.draft_coverage TOKENIZER... [--only KIND...]. A TOKENIZER is a model's
folder, whose tokenizer.json is read, or a wheel of Python's registry that carries a vocabulary:
`pip download --no-deps dashscope litellm mistral-common`.

The shipped sample is cut into sections, each about something else. Every fifth is held out, the
others are counted as for a draft head, and what the first rows have of the held-out tokens is told;
five turns hold out every section once. Beside it stand two simpler orders: by token number alone,
and by count with the number for what was not seen.
"""

from __future__ import annotations

import argparse
import base64
import json
import zipfile
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from sparkdeploy.checkpoint.draft_sample import sample_texts
from sparkdeploy.checkpoint.draft_vocabulary import TOKENIZER_FILE, rank_tokens, scripts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROWS = (32_768, 65_536)
TURNS = 5
SECTION_LINE = "%%"
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""As dashscope/tokenizers/qwen_tokenizer.py says."""
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""As tiktoken_ext/openai_public.py says of o200k_base."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Byte strings by token number, and how text is cut before they are looked for."""

    tokens: Sequence[bytes]
    pattern: str


@dataclass(frozen=True, slots=True)
class Section:
    kind: str
    """The sample's file: a language, or code."""
    counts: Counter[int]


@dataclass(frozen=True, slots=True)
class Ranking:
    """What orders a vocabulary's tokens beside their counts."""

    special: frozenset[int]
    scripts: Sequence[str]

    def by_number(self) -> Sequence[int]:
        return rank_tokens({}, special=self.special, vocabulary=len(self.scripts))

    def by_count(self, counts: Mapping[int, int]) -> Sequence[int]:
        """Seen ones by count, the others by number."""
        return rank_tokens(counts, special=self.special, vocabulary=len(self.scripts))

    def by_script(self, counts: Mapping[int, int]) -> Sequence[int]:
        """As a draft head's are ordered."""
        size = len(self.scripts)
        return rank_tokens(counts, special=self.special, vocabulary=size, scripts=self.scripts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizers", nargs="+", type=Path, metavar="TOKENIZER")
    parser.add_argument(
        "--only", nargs="+", metavar="KIND", help="texts of the sample, such as code"
    )
    arguments = parser.parse_args()
    for path in arguments.tokenizers:
        tokenizer = read_tokenizer(path)
        ranking = Ranking(
            special=frozenset(tokenizer.get_added_tokens_decoder()),
            scripts=scripts_of(tokenizer),
        )
        print(f"\n## {path.name}: {len(ranking.scripts):,} tokens\n")
        sections = [
            section
            for section in read_sections(tokenizer)
            if not arguments.only or section.kind in arguments.only
        ]
        print("\n".join(table(sections, ranking)))


def read_sections(tokenizer: Tokenizer) -> Iterator[Section]:
    for path in sample_texts():
        for text in cut(path.read_text(encoding="utf-8")):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            yield Section(path.stem, Counter(ids))


def cut(text: str) -> list[str]:
    """Prose is cut between paragraphs; what has blank lines of its own, at lines of two signs."""
    separator = f"\n{SECTION_LINE}\n" if SECTION_LINE in text.splitlines() else "\n\n"
    return [f"{part.strip()}\n" for part in text.split(separator)]


def table(sections: Sequence[Section], ranking: Ranking) -> Iterator[str]:
    """Markdown lines: each kind's held-out tokens and, in percent, what rows cover of them."""
    held_out, covered = Counter[str](), Counter[tuple[str, int, str]]()
    for turn in range(TURNS):
        rest, held = parted(sections, turn)
        counts = total(section.counts for section in rest)
        orders = {
            "number": ranking.by_number(),
            "count": ranking.by_count(counts),
            "draft head": ranking.by_script(counts),
        }
        held_out.update(total({section.kind: section.counts.total()} for section in held))
        for rows, (name, order) in product(ROWS, orders.items()):
            first = frozenset(order[:rows])
            for section in held:
                covered[section.kind, rows, name] += inside(section.counts, first)
    columns = [*product(ROWS, ("number", "count", "draft head"))]
    heads = [f"{rows:,} by {name}" for rows, name in columns]
    yield f"| text | tokens | {' | '.join(heads)} |"
    yield "|---" * (2 + len(heads)) + "|"
    for kind in sorted(held_out):
        shares = [f"{100 * covered[kind, *column] / held_out[kind]:.1f}" for column in columns]
        yield f"| {kind} | {held_out[kind]:,} | {' | '.join(shares)} |"


def parted(sections: Sequence[Section], turn: int) -> tuple[list[Section], list[Section]]:
    """What is counted in a turn, and what is held out: every fifth section of each kind."""
    rest, held, seen = list[Section](), list[Section](), Counter[str]()
    for section in sections:
        (held if seen[section.kind] % TURNS == turn else rest).append(section)
        seen[section.kind] += 1
    return rest, held


def total(counts: Iterable[Mapping[Any, int]]) -> Counter[Any]:
    found = Counter[Any]()
    for item in counts:
        found.update(item)
    return found


def inside(counts: Mapping[int, int], tokens: frozenset[int]) -> int:
    return sum(count for token, count in counts.items() if token in tokens)


def read_tokenizer(path: Path) -> Tokenizer:
    """A model's own, or one made of the vocabulary in a wheel."""
    if path.is_dir():
        return Tokenizer.from_file(str(path / TOKENIZER_FILE))
    with zipfile.ZipFile(path) as wheel:
        return made_of(read_vocabulary(wheel))


def read_vocabulary(wheel: zipfile.ZipFile) -> Vocabulary:
    for name in sorted(wheel.namelist(), reverse=True):
        if name.endswith("qwen.tiktoken"):
            return Vocabulary(tiktoken_lines(wheel.read(name)), QWEN_PATTERN)
        # The name of tiktoken's cache: the sha1 of the address of o200k_base.
        if name.endswith("/fb374d419588a4632f3f557e76b4b70aebbca790"):
            return Vocabulary(tiktoken_lines(wheel.read(name)), O200K_PATTERN)
        if name.endswith(".json") and "/tekken_" in name:
            return tekken(json.loads(wheel.read(name)))
    raise SystemExit(f"{wheel.filename} carries no vocabulary that is known here")


def tiktoken_lines(content: bytes) -> list[bytes]:
    return [base64.b64decode(line.split()[0]) for line in content.splitlines() if line]


def tekken(content: Mapping[str, Any]) -> Vocabulary:
    """Mistral's, without the special tokens that come before the others."""
    config = content["config"]
    kept = config["default_vocab_size"] - config["default_num_special_tokens"]
    tokens = [base64.b64decode(item["token_bytes"]) for item in content["vocab"][:kept]]
    return Vocabulary(tokens, config["pattern"])


def made_of(vocabulary: Vocabulary) -> Tokenizer:
    """Return a tokenizer that cuts as tiktoken does, from byte strings in order of their merges."""
    letters = byte_letters()
    spelt = ["".join(letters[byte] for byte in token) for token in vocabulary.tokens]
    number = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges = [
        ("".join(letters[byte] for byte in left), "".join(letters[byte] for byte in right))
        for left, right in filter(None, (parts_of(token, number) for token in vocabulary.tokens))
    ]
    ids = {text: index for index, text in enumerate(spelt)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(vocabulary.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def parts_of(token: bytes, number: Mapping[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens of which the last merge makes `token`; None for a byte, or if there are none.

    Merges with lower numbers than its own are done until two parts are left.
    """
    parts = [token[index : index + 1] for index in range(len(token))]
    while len(parts) > 2:
        pairs = [
            (number[parts[i] + parts[i + 1]], i)
            for i in range(len(parts) - 1)
            if number.get(parts[i] + parts[i + 1], number[token]) < number[token]
        ]
        if not pairs:
            return None
        _, first = min(pairs)
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level vocabulary, as GPT-2's does it."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printed]
    letters = {byte: chr(byte) for byte in printed}
    return letters | {byte: chr(256 + index) for index, byte in enumerate(hidden)}


if __name__ == "__main__":
    main()
