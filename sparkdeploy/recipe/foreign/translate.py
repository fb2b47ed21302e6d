"""From a recipe of others to a document of ours, with a note for each of its lines."""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.flags import last_given, negated
from sparkdeploy.recipe.foreign.arguments import put_arguments
from sparkdeploy.recipe.foreign.command import PLACEHOLDER, ServeCommand, fill_in, take_apart
from sparkdeploy.recipe.foreign.draft import Draft, Note
from sparkdeploy.recipe.foreign.tables import tables
from sparkdeploy.recipe.foreign.theirs import as_text, flag_of_parameter, read
from sparkdeploy.recipe.release import newest
from sparkdeploy.recipe.words import shown
from sparkdeploy.secret_shapes import names_a_secret, text_without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.recipe.document import Document, ValueOrigin
    from sparkdeploy.recipe.foreign.theirs import Theirs

MAX_TITLE = 200
V1_SIGNS = frozenset({"build_args", "cluster_only", "solo_only"})
"""Keys of eugr's format; a recipe of his may leave out its version."""
PULL_REQUEST = re.compile(r"--apply-vllm-prs?(?:[= ]+(\d+(?:,\d+)*))?")
PLAIN_FOLDER = re.compile(r"mods/[\w./-]+")
"""What YAML takes for a text without quotes."""
OUR_ENGINE_KEYS = ("engine", "image")
TRANSLATED = frozenset(
    {
        *("name", "description", "model", "model_revision", "container", "defaults", "env"),
        *("command", "min_nodes", "max_nodes", "cluster_only", "solo_only", "mods", "pre_exec"),
    }
)


@dataclass(frozen=True, slots=True)
class Translation:
    """A recipe of others as one of ours, and what became of each of its lines."""

    format: str
    """`eugr v1`, `sparkrun v2`..."""
    file: str
    document: Document
    translated: tuple[Note, ...]
    dropped: tuple[Note, ...]


def translate(
    document: Document, file: Path, assignments: Sequence[str] = ()
) -> tuple[Translation, list[str]]:
    """Return the recipe as ours, and the assignments that are not for its own parameters.

    Raises RecipeError for another server than vLLM, for values of the wrong kind, for an image
    that nothing is known of, and for a command that does not start vLLM.
    """
    theirs, rest = read(document, file, assignments)
    _refuse_other_runtimes(theirs)
    _refuse_pull_requests(theirs, rest)
    draft = Draft()
    command = _command(theirs)
    _identity(theirs, draft)
    _engine(theirs, draft, rest)
    put_arguments(theirs, command, draft)
    _nodes(theirs, draft)
    _mods(theirs, draft)
    _environment(theirs, command, draft)
    _around(theirs, command, draft)
    _left_over(theirs, draft)
    made = Translation(
        format_of(theirs),
        str(file),
        draft.document(),
        tuple(draft.translated),
        tuple(draft.dropped),
    )
    return made, rest


def format_of(theirs: Theirs) -> str:
    version = theirs.text_of("recipe_version") or theirs.text_of("sparkrun_version")
    if version in ("", "1"):
        is_v1 = version == "1" or bool(V1_SIGNS & theirs.content.keys())
        return "eugr v1" if is_v1 else "sparkrun v2"
    return f"sparkrun v{shown(version)}"


def _refuse_other_runtimes(theirs: Theirs) -> None:
    runtime = theirs.text_of("runtime").strip().lower()
    if runtime in tables().our_runtimes:
        return
    names = (row.name for key, row in tables().runtimes.items() if runtime.startswith(key))
    raise _other_server(theirs, "runtime", next(names, shown(runtime)))


def _refuse_pull_requests(theirs: Theirs, assignments: Sequence[str]) -> None:
    """A patch that is fetched while an image is built is another one tomorrow.

    Who says which mods there are (`--set mods=...`) has said what stands for it.
    """
    words = " ".join(as_text(item) for item in theirs.listed("build_args"))
    found = PULL_REQUEST.findall(words)
    is_settled = any(item.partition("=")[0].strip() == "mods" for item in assignments)
    if not found or is_settled:
        return
    numbers = [number or "N" for numbers in found for number in numbers.split(",")]
    own = [item for _, _, item in _mod_items(theirs)]
    patches = [{"folder": f"mods/vllm-pr-{number}"} for number in numbers]
    first = patches[0]["folder"]
    raise RecipeError(
        f"{theirs.origin('build_args')}: build_args: {shown(words)}: patches of vLLM's pull "
        "requests are not fetched while an image is built",
        hint=f"save the patch as {first}/pr.patch, with a run.sh beside it that says "
        "`patch -p1 -d /usr/local/lib/python3.12/dist-packages < pr.patch`, and name it: "
        f"{_typed_mods([*own, *patches])}; or do without: {_typed_mods(own)}",
    )


def _typed_mods(items: Sequence[Mapping[str, str]]) -> str:
    """Return the option that sets a recipe's mods, for a shell."""
    pairs = [pair for item in items for pair in item.items()]
    flow = ", ".join(f"{{{key}: {_in_flow(value)}}}" for key, value in pairs)
    return f"--set {shlex.quote(f'mods=[{flow}]') if items else 'mods=[]'}"


def _in_flow(value: str) -> str:
    return value if PLAIN_FOLDER.fullmatch(value) else json.dumps(value, ensure_ascii=False)


def _other_server(theirs: Theirs, key: str, name: str) -> RecipeError:
    return RecipeError(
        f"{theirs.origin(key)}: {key}: the recipe is for {name}, and sparkdeploy serves with vLLM",
        hint="look for a vLLM recipe of the same model",
    )


def _identity(theirs: Theirs, draft: Draft) -> None:
    start = theirs.origin("recipe_version")
    draft.put(("schema",), 1, start, "recipe_version")
    named = theirs.text_of("name")
    name = slug(named or theirs.file.stem)
    draft.put(("name",), name, theirs.origin("name"), f"name: {named or theirs.file.name}")
    words = theirs.text_of("description") or str(theirs.mapping("metadata").get("description", ""))
    # Characters that are not seen, such as those between the parts of an emoji, have no place here.
    seen = "".join(item for item in words if unicodedata.category(item) != "Cf")
    title = (
        text_without_secrets(" ".join(seen.split()))[:MAX_TITLE] or theirs.text_of("model") or name
    )
    key = ("description",) if theirs.text_of("description") else ("metadata", "description")
    draft.put(("title",), title, theirs.origin(*key), f"{'.'.join(key)}: {title}")


def slug(name: str) -> str:
    """Return a recipe's name of ours: small letters, digits, `.`, `_` and `-`."""
    made = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:63]
    return made.rstrip("._-") or "imported"


def _engine(theirs: Theirs, draft: Draft, assignments: Sequence[str]) -> None:
    """Choose what runs it: what the user types, a known stand-in, or the image as it is named."""
    container, origin = theirs.text_of("container").strip(), theirs.origin("container")
    said = f"container: {container}"
    known = tables().images.get(container.removesuffix(":latest"))
    if not container:
        draft.put(("engine",), tables().images["vllm-node"].engine, origin, "no container is named")
    elif known is not None and known.engine is not None:
        draft.put(("engine",), known.engine, origin, f"{said} ({known.source}, {known.date})")
    elif known is not None:
        draft.put(("engine",), "image", origin, f"{said} ({known.source}, {known.date})")
        draft.put(("image",), known.image, origin, said)
    elif "/" in container or container.startswith("sha256:"):
        draft.put(("engine",), "image", origin, said)
        draft.put(("image",), container, origin, said)
    elif any(item.partition("=")[0].strip() in OUR_ENGINE_KEYS for item in assignments):
        draft.drop(origin, said, "an image of its author's machine; --set says what stands for it")
    else:
        raise RecipeError(
            f"{origin}: container: {shown(container)} is an image of its author's own machine, and "
            "nothing is known to stand for it",
            hint="--set engine=cuda-0.33 takes vLLM's own wheels; or --set engine=image --set "
            "image=NAME:TAG where it is published",
        )


def _command(theirs: Theirs) -> ServeCommand:
    """Return vLLM's command: the recipe's own, or one made from its defaults."""
    template = theirs.text_of("command")
    if not template.strip():
        if "launch" in theirs.content:
            template = as_text(theirs.content["launch"])
        else:
            return ServeCommand((theirs.text_of("model"), *_flags_of_defaults(theirs)))
    text = fill_in(template, theirs.parameters())
    try:
        command = take_apart(text)
    except RecipeError as error:
        name = next(tables().runtime_of_command(text), None)
        if name is not None:
            raise _other_server(theirs, "command", name) from error
        error.message = f"{theirs.origin('command')}: {error.message}"
        raise
    if last_given(command.arguments, "--omni") is not None:
        raise _other_server(theirs, "command", tables().runtimes["vllm-omni"].name)
    return command


def _flags_of_defaults(theirs: Theirs) -> Iterator[str]:
    known = newest().spellings
    for name, value in theirs.mapping("defaults").items():
        flag = flag_of_parameter(name)
        if flag not in known and flag != "--host":
            continue
        if value is True or value is False:
            yield flag if value else negated(flag)
        elif value is not None:
            yield from (flag, *_values_of(flag, value))


def _values_of(flag: str, value: Any) -> list[str]:  # noqa: ANN401 - YAML content
    if isinstance(value, list):
        return [as_text(item) for item in value]
    # Several names stand in one text, as they would in a command.
    return str(value).split() if flag == "--served-model-name" else [as_text(value)]


def _nodes(theirs: Theirs, draft: Draft) -> None:
    """Set how many nodes serve it; the older keys and `mode` say one or several."""
    content = theirs.content
    for key in ("min_nodes", "max_nodes"):
        count = content.get(key)
        if count is not None and (key, count) != ("min_nodes", 1):
            draft.put(("cluster", key), count, theirs.origin(key), f"{key}: {count}")
    for older, mode, name, count in (
        ("cluster_only", "cluster", "min_nodes", 2),
        ("solo_only", "solo", "max_nodes", 1),
    ):
        key = older if content.get(older) is True else "mode"
        if key == "mode" and theirs.text_of("mode") != mode:
            continue
        line = f"{key}: {as_text(content[key])}"
        if name in draft.content.get("cluster", {}):
            draft.drop(theirs.origin(key), line, f"{name} says how many")
        else:
            draft.put(("cluster", name), count, theirs.origin(key), line)
    for key in ("min_nodes", "cluster_only", "solo_only"):
        value = content.get(key)
        if key in content and (value in (None, False) or (key, value) == ("min_nodes", 1)):
            draft.drop(theirs.origin(key), f"{key}: {value}", "it limits nothing")


def _mods(theirs: Theirs, draft: Draft) -> None:
    for origin, said, item in _mod_items(theirs):
        draft.append(("mods",), [item], origin, said)


def _mod_items(theirs: Theirs) -> Iterator[tuple[ValueOrigin, str, dict[str, str]]]:
    """Yield where each mod of theirs stands, what stands there, and the same as one of ours."""
    for index, mod in enumerate(theirs.listed("mods")):
        yield theirs.origin("mods", index), f"mods: {as_text(mod)}", {"folder": as_text(mod)}
    for index, step in enumerate(theirs.listed("pre_exec")):
        if isinstance(step, dict):
            item = {"folder": as_text(step.get("copy", step))}
        else:
            item = {"run": _filled(as_text(step), theirs.parameters())}
        yield theirs.origin("pre_exec", index), f"pre_exec: {as_text(step)}", item


def _filled(step: str, parameters: dict[str, str]) -> str:
    """A shell's braces are no parameters: what has no value stays as it is written."""
    names = PLACEHOLDER.findall(" ".join((step, *parameters.values())))
    return fill_in(step, {name: f"{{{name}}}" for name in names} | parameters)


def _environment(theirs: Theirs, command: ServeCommand, draft: Draft) -> None:
    told = [
        (name, value, theirs.origin("env", name)) for name, value in theirs.mapping("env").items()
    ]
    told += [(name, value, theirs.origin_of_word(name)) for name, value in command.env]
    for name, value, origin in told:
        reason = _no_variable(name, value)
        said = f"{name}={as_text(value)}"
        if reason is not None:
            # A token that somebody left in a recipe has no place in a report.
            draft.drop(origin, name, reason)
        else:
            draft.put(("serve", "env", name), as_text(value), origin, said)


def _no_variable(name: str, value: Any) -> str | None:  # noqa: ANN401 - YAML content
    """Say why a variable is not taken over; None where it is."""
    if name in tables().env:
        return tables().env[name]
    if names_a_secret(name):
        return "a key or a token never enters a container"
    if value is None:
        return "it has no value"
    if "$" in as_text(value):
        return "its value is a variable of the machine that runs the command"
    return None


def _around(theirs: Theirs, command: ServeCommand, draft: Draft) -> None:
    for words in command.others:
        origin = theirs.origin_of_word(words.split()[0])
        draft.drop(origin, words, "a shell's command beside vLLM; nothing but vLLM is started")


def _left_over(theirs: Theirs, draft: Draft) -> None:
    """Name every key that has no counterpart, and every parameter that nothing uses."""
    used = theirs.used_parameters() if theirs.content.get("command") else None
    for name, value in theirs.mapping("defaults").items():
        is_told = flag_of_parameter(name) not in tables().flags and not names_a_secret(name)
        said = f"{name}: {as_text(value)}" if is_told else name
        origin = theirs.origin("defaults", name)
        if used is None:
            if flag_of_parameter(name) not in newest().spellings:
                draft.drop(origin, said, "no flag of vLLM's is called so")
        elif name not in used and name != "served_model_name":
            draft.drop(origin, said, "the command has no place for it")
    for key in theirs.content:
        if key in TRANSLATED or (key == "launch" and not theirs.content.get("command")):
            continue
        why = tables().keys.get(key, "no key of its format, and nothing here is called so")
        draft.drop(theirs.origin(key), key, why)
