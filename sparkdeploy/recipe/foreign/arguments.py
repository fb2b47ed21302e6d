"""From the flags of others' `vllm serve` to fields of ours; what has none stays a flag."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkdeploy.recipe import flags
from sparkdeploy.recipe.arguments import OPTIMIZATION
from sparkdeploy.recipe.document import ValueOrigin
from sparkdeploy.recipe.fields import WORKSPACE_TEMPLATE
from sparkdeploy.recipe.flags import Given, given_flags
from sparkdeploy.recipe.foreign.tables import tables
from sparkdeploy.recipe.foreign.theirs import flag_of_parameter
from sparkdeploy.recipe.foreign.weights import host_path, put_model
from sparkdeploy.recipe.release import newest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sparkdeploy.recipe.document import KeyPath
    from sparkdeploy.recipe.foreign.command import ServeCommand
    from sparkdeploy.recipe.foreign.draft import Draft
    from sparkdeploy.recipe.foreign.theirs import Theirs

MAX_KEYS = 8
"""In one another; vLLM's own mappings have four."""
WHOLE_NUMBERS = frozenset({"max_model_len", "max_num_batched_tokens", "max_num_seqs"})
PLACES: Mapping[str, KeyPath] = {
    "--data-parallel-size": ("cluster", "data_parallel"),
    "--pipeline-parallel-size": ("cluster", "pipeline_parallel"),
    "--port": ("serve", "port"),
    "--revision": ("model", "revision"),
    "--tensor-parallel-size": ("cluster", "tensor_parallel"),
}
"""Flags with one value whose field is elsewhere than under the flag's own name in `serve`."""
SPECULATIVE = {"num_speculative_tokens": "tokens"}
"""Keys of vLLM's mapping that are called otherwise here."""
EXTRA: KeyPath = ("serve", "extra_args")
DECIMAL = re.compile(r"[0-9]{1,3}([.][0-9]{0,6})?|[.][0-9]{1,6}")
MAX_DIGITS = 17


@dataclass(frozen=True, slots=True)
class Told:
    """One flag of theirs, where it stands, and the draft that it goes into."""

    theirs: Theirs
    given: Given
    draft: Draft
    typed_as: str | None = None
    """The parameter that `--set` gave, where it did."""

    @property
    def flag(self) -> str:
        """The long flag that the spelling means, without the keys behind it."""
        name = self.given.spelling.partition(".")[0]
        name = flags.with_hyphens(flags.SHORT_FORMS.get(name, name))
        # The start of a flag that sparkdeploy decides: `--api-k`.
        meant = flags.flag_of(name)
        return meant if meant in flags.OWNED_FLAGS and not name.startswith("--no-") else name

    @property
    def identity(self) -> str:
        """The same for `--x`, `--no-x` and another spelling; another one for other keys."""
        _, dot, keys = self.given.spelling.partition(".")
        return f"--{self.flag.removeprefix('--').removeprefix('no-')}{dot}{keys}"

    @property
    def keys(self) -> list[str]:
        return self.given.keys

    @property
    def text(self) -> str:
        return " ".join(self.given.values)

    @property
    def said(self) -> str:
        return f"{self.given.spelling} {self.text}".rstrip()

    @property
    def origin(self) -> ValueOrigin:
        if self.typed_as is not None:
            return ValueOrigin(f"--set {self.typed_as}", None)
        if self.theirs.content.get("command"):
            return self.theirs.origin_of_word(self.given.spelling)
        names = self.theirs.mapping("defaults")
        own = (name for name in names if flag_of_parameter(name) == self.flag)
        return self.theirs.origin("defaults", next(own, ""))

    def put(self, path: KeyPath, value: Any) -> None:  # noqa: ANN401 - a field's value
        self.draft.put(path, value, self.origin, self.said)

    def keep(self, words: list[str]) -> None:
        """Keep it as a flag."""
        self.draft.append(EXTRA, words, self.origin, self.said)

    def drop(self, theirs: str, why: str) -> None:
        self.draft.drop(self.origin, theirs, why)


def put_arguments(theirs: Theirs, command: ServeCommand, draft: Draft) -> None:
    """Set what vLLM's arguments say; of a flag that comes again the last counts, as for vLLM."""
    given = list(given_flags(command.arguments))
    free = [item for item in given if not item.spelling.startswith("-")]
    words = [word for item in free for word in (item.spelling, *item.values)]
    told = [Told(theirs, item, draft) for item in given if item.spelling.startswith("-")]
    words += [word for item in told for word in _beyond(item)]
    told = [*(replace(item, given=_own(item)) for item in told), *_typed(theirs, draft)]
    words += [value for item in told if item.flag == "--model" for value in item.given.values]
    put_model(theirs, words, draft)
    for item in _last_ones(told):
        _put(item)
    _put_defaults(theirs, draft)


def _typed(theirs: Theirs, draft: Draft) -> Iterator[Told]:
    """Yield parameters that were typed and have no place in the command, as flags behind it."""
    for name, value in theirs.typed.items():
        yield Told(theirs, Given((), flag_of_parameter(name), [value]), draft, typed_as=name)


def _beyond(told: Told) -> Sequence[str]:
    """Return the words behind a flag that takes one value: they are the command's own."""
    return told.given.values[1:] if _takes(told) in ("one", "optional") else ()


def _own(told: Told) -> Given:
    values = told.given.values[: len(told.given.values) - len(_beyond(told))]
    return replace(told.given, values=values)


def _put_value(told: Told, field: str) -> None:
    """Set a field; keys that stood before a mapping stay, as vLLM adds them behind it."""
    value, before = _value(field, told.text), told.draft.content.get("serve", {}).get(field)
    both = isinstance(value, dict) and isinstance(before, dict)
    told.put(("serve", field), {**value, **before} if both else value)


def _takes(told: Told) -> str | None:
    """Return how many values the newest release's flag takes; None for no flag of its."""
    row = newest().flags.get(told.identity.partition(".")[0])
    return row.takes if row is not None and not told.keys else None


def _last_ones(told: Sequence[Told]) -> Iterator[Told]:
    last = {item.identity: index for index, item in enumerate(told)}
    for index, item in enumerate(told):
        if last[item.identity] == index:
            yield item
        else:
            item.drop(item.given.spelling, "it is given again, and the last one counts")


def _put(told: Told) -> None:
    field = flags.FIELD_OF_FLAG.get(told.identity.partition(".")[0])
    if told.flag in HANDLERS:
        HANDLERS[told.flag](told)
    elif told.flag in PLACES:
        path = PLACES[told.flag]
        told.put(path, told.text if path[0] == "model" else _whole(told.text))
    elif told.flag in tables().flags:
        # A key or a token that somebody left in a recipe has no place in a report.
        told.drop(told.given.spelling, tables().flags[told.flag])
    elif OPTIMIZATION.match(told.given.spelling) and not told.keys:
        # vLLM rewrites `-O3` before its parser looks.
        told.keep(["--optimization-level", told.given.spelling[2:] or told.text])
    elif _takes(told) == "none":
        _put_switch(told, field)
    elif field is None or not _is_a_fields(told, field):
        told.keep([told.given.spelling, *told.given.values])
    elif told.keys:
        told.put(("serve", field, *told.keys), _scalar(told.text))
    else:
        _put_value(told, field)


def _is_a_fields(told: Told, field: str) -> bool:
    """Whether a field can hold it: one value, and keys that name one value of a mapping."""
    if not told.keys:
        return len(told.given.values) == 1
    # `--x.list+ item` adds to a list, which only vLLM has.
    names_a_value = len(told.keys) <= MAX_KEYS and not told.keys[-1].endswith("+")
    return field in flags.JSON_FLAGS and len(told.given.values) == 1 and names_a_value


def _put_switch(told: Told, field: str | None) -> None:
    """Set a switch; `true` and `false` behind it are what a parameter said."""
    words = [word.lower() for word in told.given.values]
    is_on = not told.flag.startswith("--no-")
    if words in (["false"], ["true"]):
        is_on = is_on == (words == ["true"])
    else:
        for word in told.given.values:
            told.drop(word, f"{told.given.spelling} takes no value")
    if field is None:
        name = told.identity.removeprefix("--")
        told.keep([told.given.spelling if not words else f"--{'' if is_on else 'no-'}{name}"])
    else:
        told.put(("serve", field), is_on)


def _value(field: str, text: str) -> Any:  # noqa: ANN401 - a field's value
    """Read a field's value from a flag's; what is none of its type is left to the format."""
    if field in flags.JSON_FLAGS:
        return _mapping(text)
    if field in WHOLE_NUMBERS:
        return "auto" if text == "-1" else _whole(text)
    if field == "gpu_memory_utilization" and DECIMAL.fullmatch(text):
        return float(text)
    return text


def _whole(text: str) -> int | str:
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else text


def _mapping(text: str) -> Any:  # noqa: ANN401 - JSON content
    """Read JSON; braces that nobody undoubled are undoubled."""
    for candidate in (text, text.replace("{{", "{").replace("}}", "}")):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    return text


def _scalar(text: str) -> Any:  # noqa: ANN401 - a value of a mapping
    """Read a value behind dotted keys as vLLM does: JSON, or else a text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _put_defaults(theirs: Theirs, draft: Draft) -> None:
    """Set what a command leaves out: names, which sparkrun adds, and that nothing is divided."""
    names = theirs.mapping("defaults").get("served_model_name")
    if names is not None and "served_name" not in draft.content["model"]:
        origin = theirs.origin("defaults", "served_model_name")
        said = f"served_model_name: {names}"
        draft.put(("model", "served_name"), _one_or_all(str(names).split()), origin, said)
    if "tensor_parallel" not in draft.content.get("cluster", {}):
        origin = theirs.origin("command")
        draft.put(("cluster", "tensor_parallel"), 1, origin, "no --tensor-parallel-size")


def _one_or_all(names: Sequence[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else list(names)


def _names(told: Told) -> None:
    told.put(("model", "served_name"), _one_or_all(told.given.values))


def _model(_told: Told) -> None:
    """`--model` was read before the other flags."""


def _template(told: Told) -> None:
    host = host_path(told.theirs, told.text) or told.text
    place = told.theirs.file.parent / os.path.expanduser(host)  # noqa: PTH111 - a home of nobody
    if os.path.isfile(place):  # noqa: PTH113 - never raises
        told.put(("serve", "chat_template"), host)
        return
    has_mods = any(told.theirs.listed(key) for key in ("mods", "pre_exec"))
    # Scripts that run mods start vLLM in the folder that mods write to.
    in_workspace = told.text.removeprefix("/workspace/").removeprefix("./")
    if has_mods and re.fullmatch(WORKSPACE_TEMPLATE, in_workspace):
        told.put(("serve", "chat_template_of_mod"), in_workspace)
        return
    why = "no such file beside the recipe (its image may have it); the model's own template is used"
    told.drop(told.said, why)


def _speculative(told: Told) -> None:
    path: KeyPath = ("serve", "speculative")
    if told.keys:
        name = SPECULATIVE.get(told.keys[0], told.keys[0])
        told.put((*path, name, *told.keys[1:]), _scalar(told.text))
        return
    content = _mapping(told.text)
    if isinstance(content, dict):
        content = {SPECULATIVE.get(key, key): value for key, value in content.items()}
    told.put(path, content)


def _speculative_part(told: Told) -> None:
    """vLLM's short forms of three keys: `--spec-method mtp`."""
    key = told.flag.removeprefix("--spec-")
    told.put(("serve", "speculative", key), _scalar(told.text))


def _lora(told: Told) -> None:
    adapters = [_adapter(told, word) for word in told.given.values]
    told.draft.append(("serve", "lora"), adapters, told.origin, told.said)


def _adapter(told: Told, word: str) -> dict[str, str]:
    """Read `NAME=PLACE`, or JSON with both."""
    content = _mapping(word) if word.startswith("{") else None
    if isinstance(content, dict):
        name, place = str(content.get("name", "")), str(content.get("path", ""))
        for key in content.keys() - {"name", "path"}:
            told.drop(key, "an adapter has a name and a place here")
    else:
        name, _, place = word.partition("=")
    theirs = told.theirs
    path = host_path(theirs, place)
    return {"name": name, "repo": place} if path is None else {"name": name, "path": path}


HANDLERS: Mapping[str, Callable[[Told], None]] = {
    "--chat-template": _template,
    "--lora-modules": _lora,
    "--model": _model,
    "--served-model-name": _names,
    "--spec-method": _speculative_part,
    "--spec-model": _speculative_part,
    "--spec-tokens": _speculative_part,
    "--speculative-config": _speculative,
}
"""Flags that are more than one field of ours."""
