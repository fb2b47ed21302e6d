"""What may stand where the cursor is, by the words before it. Nothing is looked up here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sparkdeploy.cli.completion.words import Command, Value, Words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NOTHING = Value(())
NODE = "node"


class Candidate(NamedTuple):
    text: str
    help: str = ""


class Wanted(NamedTuple):
    """What the word at the cursor may become."""

    word: str
    """What has been typed of it."""
    value: Value = NOTHING
    lead: str = ""
    """Of the word, what stands before the value: `--fits=`."""
    words: Sequence[Candidate] = ()
    """Commands and options."""
    is_elsewhere: bool = False
    """Whether `--on` names another machine, whose names nobody knows here."""


class _Place(NamedTuple):
    """How far the words before the cursor lead."""

    path: str
    arguments: int = 0
    """How many were given."""
    pending: Value | None = None
    """Of an option that still lacks its value."""
    is_after_options: bool = False
    is_elsewhere: bool = False


def wanted(words: Words, before: Sequence[str], word: str) -> Wanted | None:
    """Return what `word` may become behind the words `before`; None where those make no sense."""
    place = _Place("")
    for earlier in before:
        behind = _behind(words, place, earlier)
        if behind is None:
            return None
        place = behind
    return _at(words, place, word)


def _behind(words: Words, place: _Place, word: str) -> _Place | None:
    if _is_value(place, word):
        return place._replace(pending=None)
    place = place._replace(pending=None)
    command = words.commands[place.path]
    below = f"{place.path} {word}".strip()
    if below in words.commands:
        return _Place(below, is_elsewhere=place.is_elsewhere)
    if command.default:
        return _behind(words, _by_default(place, command), word)
    if _is_option(place, word):
        return _behind_option(command, place, word)
    is_of_a_group = any(words.below(place.path))
    return None if is_of_a_group else place._replace(arguments=place.arguments + 1)


def _behind_option(command: Command, place: _Place, word: str) -> _Place:
    if word == "--":
        return place._replace(is_after_options=True)
    name, equals, _ = word.partition("=")
    option = command.option(name)
    if option is None or option.value is None:
        return place
    place = place._replace(is_elsewhere=place.is_elsewhere or "--on" in option.names)
    return place if equals else place._replace(pending=option.value)


def _at(words: Words, place: _Place, word: str) -> Wanted:
    command = words.commands[place.path]
    here = Wanted(word, is_elsewhere=place.is_elsewhere)
    if place.pending is not None and _is_value(place, word):
        return here._replace(value=place.pending)
    names = [Candidate(name, below.help) for name, below in words.below(place.path)]
    if command.default:
        default = _at(words, _by_default(place, command), word)
        return default._replace(words=[*names, *default.words])
    if _is_option(place, word):
        return _at_option(command, here)
    if names:
        return here._replace(words=names)
    value = _argument(command, place.arguments)
    is_over = value is None and not word and not place.is_after_options
    return here._replace(value=value or NOTHING, words=list(_options(command)) if is_over else ())


def _at_option(command: Command, here: Wanted) -> Wanted:
    name, equals, _ = here.word.partition("=")
    if not equals:
        return here._replace(words=list(_options(command)))
    option = command.option(name)
    value = option.value if option is not None else None
    return here._replace(value=value or NOTHING, lead=f"{name}=")


def _is_value(place: _Place, word: str) -> bool:
    """Say whether a word is the value of the option before it."""
    value = place.pending
    return value is not None and not (value.may_be_missing and word.startswith("-"))


def _by_default(place: _Place, command: Command) -> _Place:
    return place._replace(path=f"{place.path} {command.default}".strip())


def _is_option(place: _Place, word: str) -> bool:
    return word.startswith("-") and not place.is_after_options


def _options(command: Command) -> Iterator[Candidate]:
    for option in command.options:
        # The long spelling says what it is.
        yield Candidate(max(option.names, key=len), option.help)


def _argument(command: Command, given: int) -> Value | None:
    if given < len(command.arguments):
        return command.arguments[given]
    last = command.arguments[-1] if command.arguments else NOTHING
    return last if last.is_repeated else None
