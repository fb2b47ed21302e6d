"""What a shell's completion is answered: the candidates, and whether files may stand there too.

The first line says what the shell completes itself: `files`, `folders` or `-`. Each other line is
a candidate, a tab and what it is. Nothing of it is obeyed by a terminal or expanded by a shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.cli.completion import names
from sparkdeploy.cli.completion.line import Candidate, Wanted, wanted
from sparkdeploy.cli.completion.words import load_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.cli.completion.words import Words

HELP_CHARACTERS = 60
NOTHING = "-"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:@,+%")


def answer(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the lines for `words WORD...`, or for `line LINE BREAKS` of a shell that splits none.

    BREAKS are the characters at which that shell takes a new word to begin.
    """
    way, *rest = arguments
    if way == "words":
        yield from _answered(rest[:-1], rest[-1])
        return
    line, breaks = rest
    before, word, is_quoted = split(line)
    own, *candidates = _answered(before[1:], word)
    yield own
    for candidate in candidates:
        text, tab, told = candidate.partition("\t")
        behind = text[_kept_length(word, breaks) :]
        # Within a quote nothing is escaped, and a shell would obey what it holds.
        if is_quoted and not _PLAIN.issuperset(behind.replace(" ", "")):
            continue
        yield f"{behind if is_quoted else escaped(behind)}{tab}{told}"


def split(line: str) -> tuple[list[str], str, bool]:
    """Return the words of a line before its end, the one at its end, and whether a quote is open.

    As shells do it, without what they would expand.
    """
    found: list[str] = []
    word, is_word, quote = "", False, ""
    letters = iter(line)
    for letter in letters:
        if letter == "\\" and quote != "'":
            word, is_word = word + next(letters, ""), True
        elif quote:
            word, quote = (word, "") if letter == quote else (word + letter, quote)
        elif letter in "'\"":
            quote, is_word = letter, True
        elif letter.isspace():
            found += [word] if is_word else []
            word, is_word = "", False
        else:
            word, is_word = word + letter, True
    return found, word, bool(quote)


def escaped(text: str) -> str:
    """Return a word as it is typed in a shell."""
    return "".join(letter if letter in _PLAIN else f"\\{letter}" for letter in text)


def _kept_length(word: str, breaks: str) -> int:
    """Return how much of a word the shell takes for words before it."""
    return max((word.rfind(letter) + 1 for letter in "=:" if letter in breaks), default=0)


def _answered(before: Sequence[str], word: str) -> list[str]:
    words = load_words()
    found = wanted(words, before, word)
    if found is None:
        return [NOTHING]
    shown = [
        f"{candidate.text}\t{_short(candidate.help)}"
        for candidate in dict.fromkeys(_candidates(found, words))
        if candidate.text.startswith(word) and _is_showable(candidate.text)
    ]
    return [_of_the_shell(found), *shown]


def _candidates(found: Wanted, words: Words) -> Iterator[Candidate]:
    """Yield whole words, of which some do not begin as the one at the cursor does."""
    yield from found.words
    for candidate in _values(found, words):
        yield candidate._replace(text=f"{found.lead}{candidate.text}")


def _values(found: Wanted, words: Words) -> Iterator[Candidate]:
    yield from (Candidate(choice) for choice in found.value.choices)
    typed = found.word.removeprefix(found.lead)
    for kind in found.value.kinds:
        path, equals, _ = typed.partition("=")
        if kind == "setting" and equals:
            yield from names.setting_values(path, words)
        elif not (found.is_elsewhere and kind in names.OF_A_MACHINE):
            yield from names.names_of(kind, words)


def _of_the_shell(found: Wanted) -> str:
    kinds = found.value.kinds
    return "files" if "file" in kinds else "folders" if "folder" in kinds else NOTHING


def _is_showable(text: str) -> bool:
    return text.isprintable() and bool(text)


def _short(text: str) -> str:
    told = "".join(letter for letter in text if letter.isprintable())
    return told if len(told) <= HELP_CHARACTERS else f"{told[: HELP_CHARACTERS - 3]}..."
