"""From the flags of others' `vllm serve` to fields of ours; what has none stays a flag."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe import flags
from sparkdeploy.recipe.arguments import CHECKPOINT_SAYS, KIND_OF_CHECKPOINT, OPTIMIZATION
from sparkdeploy.recipe.document import KeyPath, ValueOrigin
from sparkdeploy.recipe.fields import REPOSITORY_PATTERN, WORKSPACE_TEMPLATE
from sparkdeploy.recipe.flags import Given, given_flags
from sparkdeploy.recipe.foreign.command import ServeCommand
from sparkdeploy.recipe.foreign.report import Translation
from sparkdeploy.recipe.foreign.source_recipe import (
    SourceRecipe,
    as_text,
    flag_of_parameter,
    tables,
)
from sparkdeploy.recipe.releases import newest
from sparkdeploy.recipe.words import shown

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
_SNAPSHOT = re.compile(r".*/models--([^/]{1,200})--([^/]{1,200})/snapshots/([^/]+)/?")
"""A model's folder within a hub's cache."""


@dataclass(frozen=True, slots=True)
class SourceFlag:
    """One flag of theirs, and the translation that it goes into."""

    source: SourceRecipe
    given: Given
    made: Translation
    typed_as: str | None = None

    @property
    def flag(self) -> str:
        """The long flag that the spelling means, without the keys behind it."""
        name = self.given.form
        meant = flags.flag_of(name)
        if meant is None or OPTIMIZATION.match(self.given.spelling):
            return name
        return flags.negated(meant) if flags.is_negative(name) else meant

    @property
    def positive(self) -> str:
        """The same flag for `--x` and `--no-x`."""
        return f"--{self.flag.removeprefix('--').removeprefix('no-')}"

    @property
    def identity(self) -> str:
        return ".".join((self.positive, *self.given.keys))

    @property
    def text(self) -> str:
        return " ".join(self.given.values)

    @property
    def words(self) -> str:
        return f"{self.given.spelling} {self.text}".rstrip()

    @property
    def takes(self) -> str | None:
        """How many values the newest release's flag takes; None for a flag that it has not."""
        row = newest().flags.get(self.positive)
        return row.takes if row is not None and not self.given.keys else None

    @property
    def origin(self) -> ValueOrigin:
        if self.typed_as is not None:
            return ValueOrigin(f"--set {self.typed_as}", None)
        if self.source.content.get("command"):
            return self.source.origin_of_word(self.given.spelling)
        names = self.source.mapping("defaults")
        own = (name for name in names if flag_of_parameter(name) == self.flag)
        return self.source.origin("defaults", next(own, ""))

    def put(self, path: KeyPath, value: Any) -> None:  # noqa: ANN401 - a field's value
        self.made.put(path, value, self.origin, self.words)

    def keep(self, *words: str) -> None:
        self.made.append(EXTRA, [*words], self.origin, self.words)

    def drop(self, theirs: str, why: str) -> None:
        self.made.drop(self.origin, theirs, why)


def put_arguments(source: SourceRecipe, command: ServeCommand, made: Translation) -> None:
    """Set what vLLM's arguments say; of a flag that comes again the last counts, as for vLLM."""
    given = list(given_flags(command.arguments))
    free = [item for item in given if not item.spelling.startswith("-")]
    words = [word for item in free for word in (item.spelling, *item.values)]
    found = []
    for item in (SourceFlag(source, it, made) for it in given if it.spelling.startswith("-")):
        end = _count_of_values(item)
        words += item.given.values[end:]
        found.append(replace(item, given=replace(item.given, values=item.given.values[:end])))
    # What was typed and has no place in the command stands as a flag behind it.
    found += (
        SourceFlag(source, Given((), flag_of_parameter(name), [value]), made, typed_as=name)
        for name, value in source.typed.items()
    )
    words += [value for item in found if item.flag == "--model" for value in item.given.values]
    _put_model(source, words, made)
    last = {item.identity: index for index, item in enumerate(found)}
    for index, item in enumerate(found):
        if last[item.identity] == index:
            _put(item)
        else:
            item.drop(item.given.spelling, "it is given again, and the last one counts")
    _put_defaults(source, made)


def _count_of_values(item: SourceFlag) -> int:
    """Return how many of the words behind a flag it takes; others are the command's own."""
    if item.takes == "none":
        # What a parameter said of a switch.
        return sum(word.lower() in ("true", "false") for word in item.given.values[:1])
    return 1 if item.takes in ("one", "optional") else len(item.given.values)


def _put(item: SourceFlag) -> None:
    field = flags.FIELD_OF_FLAG.get(item.positive)
    if item.flag in HANDLERS:
        HANDLERS[item.flag](item)
    elif item.flag in PLACES:
        path = PLACES[item.flag]
        item.put(path, item.text if path[0] == "model" else _whole(item.text))
    elif item.flag in tables()["flags"]:
        # A key or a token that somebody left in a recipe has no place in a report.
        item.drop(item.given.spelling, tables()["flags"][item.flag])
    elif OPTIMIZATION.match(item.given.spelling) and not item.given.keys:
        # vLLM rewrites `-O3` before its parser looks.
        item.keep("--optimization-level", item.given.spelling[2:] or item.text)
    elif item.takes == "none":
        _put_switch(item, field)
    elif field is None or not _fits_field(item, field):
        item.keep(item.given.spelling, *item.given.values)
    elif item.given.keys:
        item.put(("serve", field, *item.given.keys), _scalar(item.text))
    else:
        value, before = _value(field, item.text), item.made.content.get("serve", {}).get(field)
        # Keys that stood before a mapping stay, as vLLM adds them behind it.
        is_joined = isinstance(value, dict) and isinstance(before, dict)
        item.put(("serve", field), {**value, **before} if is_joined else value)


def _fits_field(item: SourceFlag, field: str) -> bool:
    """Say whether a field can hold it: one value, and keys that name one value of a mapping."""
    keys = item.given.keys
    # `--x.list+ item` adds to a list, which only vLLM has.
    fits = not keys or (
        field in flags.JSON_FLAGS and len(keys) <= MAX_KEYS and not keys[-1].endswith("+")
    )
    return fits and len(item.given.values) == 1


def _put_switch(item: SourceFlag, field: str | None) -> None:
    """Set a switch; `true` and `false` behind it are what a parameter said."""
    words = [word.lower() for word in item.given.values]
    is_on = not item.flag.startswith("--no-")
    if words in (["false"], ["true"]):
        is_on = is_on == (words == ["true"])
    else:
        for word in item.given.values:
            item.drop(word, f"{item.given.spelling} takes no value")
    if field is not None:
        item.put(("serve", field), is_on)
    elif words:
        item.keep(item.identity if is_on else flags.negated(item.identity))
    else:
        item.keep(item.given.spelling)


def _value(field: str, text: str) -> Any:  # noqa: ANN401 - a field's value
    """Read a field's value from a flag's; another type is left to the format to refuse."""
    if field in flags.JSON_FLAGS:
        return _mapping(text)
    if field in WHOLE_NUMBERS:
        return "auto" if text == "-1" else _whole(text)
    if field == "gpu_memory_utilization" and DECIMAL.fullmatch(text):
        return float(text)
    return text


def _whole(text: str) -> int | str:
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else text


def _json(text: str) -> Any:  # noqa: ANN401 - JSON content
    """Return what a JSON text stands for, and any other text as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _mapping(text: str) -> Any:  # noqa: ANN401 - JSON content
    """Read JSON; braces that nobody undoubled are undoubled."""
    undoubled = text.replace("{{", "{").replace("}}", "}")
    return next((it for form in (text, undoubled) if (it := _json(form)) is not form), text)


def _scalar(text: str) -> Any:  # noqa: ANN401 - a value of a mapping
    """Read a value behind dotted keys as vLLM does: JSON, or else a text."""
    return text.lower() == "true" if text.lower() in ("true", "false") else _json(text)


def _put_defaults(source: SourceRecipe, made: Translation) -> None:
    """Set what a command leaves out: names, which sparkrun adds, and that nothing is divided."""
    names = source.mapping("defaults").get("served_model_name")
    if names is not None and "served_name" not in made.content["model"]:
        origin = source.origin("defaults", "served_model_name")
        words = f"served_model_name: {as_text(names)}"
        made.put(("model", "served_name"), _one_or_all(as_text(names).split()), origin, words)
    if "tensor_parallel" not in made.content.get("cluster", {}):
        origin = source.origin("command")
        made.put(("cluster", "tensor_parallel"), 1, origin, "no --tensor-parallel-size")


def _one_or_all(names: Sequence[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else list(names)


def _names(item: SourceFlag) -> None:
    item.put(("model", "served_name"), _one_or_all(item.given.values))


def _template(item: SourceFlag) -> None:
    host = host_path(item.source, item.text) or item.text
    place = item.source.file.parent / os.path.expanduser(host)  # noqa: PTH111 - a home of nobody
    if os.path.isfile(place):  # noqa: PTH113 - never raises
        item.put(("serve", "chat_template"), host)
        return
    has_mods = any(item.source.listed(key) for key in ("mods", "pre_exec"))
    # Scripts that run mods start vLLM in the folder that mods write to.
    in_workspace = item.text.removeprefix("/workspace/").removeprefix("./")
    if has_mods and re.fullmatch(WORKSPACE_TEMPLATE, in_workspace):
        item.put(("serve", "chat_template_of_mod"), in_workspace)
        return
    why = "no such file beside the recipe (its image may have it); the model's own template is used"
    item.drop(item.words, why)


def _speculative(item: SourceFlag) -> None:
    path: KeyPath = ("serve", "speculative")
    if keys := item.given.keys:
        item.put((*path, SPECULATIVE.get(keys[0], keys[0]), *keys[1:]), _scalar(item.text))
        return
    content = _mapping(item.text)
    if isinstance(content, dict):
        content = {SPECULATIVE.get(key, key): value for key, value in content.items()}
    item.put(path, content)


def _speculative_part(item: SourceFlag) -> None:
    """vLLM's short forms of three keys: `--spec-method mtp`."""
    item.put(("serve", "speculative", item.flag.removeprefix("--spec-")), _scalar(item.text))


def _lora(item: SourceFlag) -> None:
    adapters = [_adapter(item, word) for word in item.given.values]
    item.made.append(("serve", "lora"), adapters, item.origin, item.words)


def _adapter(item: SourceFlag, word: str) -> dict[str, str]:
    """Read `NAME=PLACE`, or JSON with both."""
    content = _mapping(word) if word.startswith("{") else None
    if isinstance(content, dict):
        name, place = str(content.get("name", "")), str(content.get("path", ""))
        for key in [it for it in content if it not in ("name", "path")]:
            item.drop(key, "an adapter has a name and a place here")
    else:
        name, _, place = word.partition("=")
    path = host_path(item.source, place)
    return {"name": name, "repo": place} if path is None else {"name": name, "path": path}


def _quantization(item: SourceFlag) -> None:
    """Leave out what vLLM has no method of: `nvfp4` is a kind of checkpoint, which says so."""
    word = item.text.lower()
    if KIND_OF_CHECKPOINT.search(word) and word not in newest().names["quantizations"]:
        item.drop(item.words, CHECKPOINT_SAYS)
    else:
        item.put(("serve", "quantization"), item.text)


HANDLERS: Mapping[str, Callable[[SourceFlag], None]] = {
    "--chat-template": _template,
    "--lora-modules": _lora,
    "--model": lambda _: None,  # it was read before the other flags
    "--quantization": _quantization,
    "--served-model-name": _names,
    "--spec-method": _speculative_part,
    "--spec-model": _speculative_part,
    "--spec-tokens": _speculative_part,
    "--speculative-config": _speculative,
}
"""Flags that are more than one field of ours."""


def _put_model(source: SourceRecipe, words: Sequence[str], made: Translation) -> None:
    """Set the model: what the command serves, by a word or `--model`, or what the recipe names."""
    named = source.text_of("model").strip()
    served = words[0] if words else named
    if not served:
        raise RecipeError(f"{source.file}: no model is named", hint="add model: ORG/NAME")
    for word in words[1:]:
        made.drop(source.origin_of_word(word), word, "a word that follows no flag")
    origin = source.origin("model") if served == named else source.origin_of_word(served)
    _put_weights(source, served, origin, made)
    revision = source.content.get("model_revision")
    if revision is not None:
        text = f"model_revision: {revision}"
        made.put(("model", "revision"), str(revision), source.origin("model_revision"), text)
    repo = made.content["model"].get("repo")
    if re.search(REPOSITORY_PATTERN, named) and repo is None:
        made.put(("model", "repo"), named, source.origin("model"), f"model: {named}")
    elif named and named not in (served, repo):
        made.drop(source.origin("model"), f"model: {named}", f"the command serves {shown(served)}")


def _put_weights(source: SourceRecipe, served: str, origin: ValueOrigin, made: Translation) -> None:
    path, snapshot = host_path(source, served), _SNAPSHOT.fullmatch(served)
    if snapshot is not None:
        made.put(("model", "repo"), f"{snapshot[1]}/{snapshot[2]}", origin, served)
        made.put(("model", "revision"), snapshot[3], origin, served)
        return
    if path is not None:
        # A folder that is not here may be elsewhere; one that is here has to be a model's.
        place = source.file.parent / os.path.expanduser(path)  # noqa: PTH111 - a home of nobody
        if os.path.exists(place) and not os.path.isfile(place / "config.json"):  # noqa: PTH110, PTH113
            raise RecipeError(
                f"{origin}: {shown(path)} has no config.json: it is no model's folder",
                hint="--set model.path=FOLDER names another one",
            )
    made.put(("model", "repo" if path is None else "path"), path or served, origin, served)


def host_path(source: SourceRecipe, place: str) -> str | None:
    """Return the path on this machine, as `volumes` say; None for a name that is no path."""
    if not place.startswith(("/", "~", ".")):
        return None
    mounts = []
    for volume in source.listed("volumes"):
        host, _, rest = str(volume).partition(":")
        inside = rest.partition(":")[0].rstrip("/")
        if inside and (place.rstrip("/") + "/").startswith(inside + "/"):
            mounts.append((inside, host))
    if not mounts:
        return place
    # Of mounts within one another the innermost counts.
    inside, host = max(mounts)
    return host.rstrip("/") + place.rstrip("/")[len(inside) :]
