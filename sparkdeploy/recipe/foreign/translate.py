"""From a recipe of others to a document of ours, with a note for each of its lines."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.consent import NODE_DECIDES
from sparkdeploy.recipe.document import Document, ValueOrigin
from sparkdeploy.recipe.flags import last_given, negated
from sparkdeploy.recipe.foreign.arguments import put_arguments
from sparkdeploy.recipe.foreign.command import PLACEHOLDER, ServeCommand, fill_in, take_apart
from sparkdeploy.recipe.foreign.report import Translation
from sparkdeploy.recipe.foreign.source_recipe import (
    SourceRecipe,
    as_text,
    flag_of_parameter,
    read_source_recipe,
    tables,
)
from sparkdeploy.recipe.mods import mods_setting
from sparkdeploy.recipe.releases import newest, releases
from sparkdeploy.recipe.words import shown
from sparkdeploy.secret_shapes import names_a_secret, text_without_secrets
from sparkdeploy.vllm_plugin.sparkdeploy_vllm.node_variables import belongs_to_node

MAX_TITLE = 200
V1_SIGNS = frozenset({"build_args", "cluster_only", "solo_only"})
"""Keys of eugr's format; a recipe of his may leave out its version."""
PULL_REQUEST = re.compile(r"--apply-vllm-prs?(?:[= ]+(\d+(?:,\d+)*))?")
VLLM_REF = re.compile(r"--vllm-ref[= ]+(\S+)")
RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
RELEASE_IN_NAME = re.compile(
    r"[-_:]v?(\d)\.(\d{1,3})(?:\.(\d{1,3}))?(?![\w.])|[-_:]v?(0)(\d\d)(\d{1,2})?(?![\w.])"
)
MAIN_BRANCH = ("main", "master", "latest", "HEAD")
OUR_ENGINE_KEYS = ("engine", "image")
TRANSLATED = frozenset(
    {
        *("name", "description", "model", "model_revision", "container", "defaults", "env"),
        *("command", "min_nodes", "max_nodes", "cluster_only", "solo_only", "mods", "pre_exec"),
    }
)


def translate(
    document: Document, file: Path, assignments: Sequence[str] = ()
) -> tuple[Translation, list[str]]:
    """Return the recipe as ours, and the assignments that are not for its own parameters."""
    source, rest = read_source_recipe(document, file, assignments)
    runtime = source.text_of("runtime").strip().lower()
    if runtime not in tables()["our_runtimes"]:
        names = (it["name"] for key, it in tables()["runtimes"].items() if runtime.startswith(key))
        raise _other_server(source, "runtime", next(names, shown(runtime)))
    _refuse_pull_requests(source, rest)
    made = Translation(_format_of(source), str(file))
    command = _command(source)
    _put_identity(source, made)
    _put_engine(source, made, rest)
    put_arguments(source, command, made)
    _put_nodes(source, made)
    for origin, words, item in _mod_items(source):
        made.append(("mods",), [item], origin, words)
    _put_environment(source, command, made)
    for words in command.others:
        why = "a shell's command beside vLLM; nothing but vLLM is started"
        made.drop(source.origin_of_word(words.split()[0]), words, why)
    _drop_the_rest(source, made)
    return made, rest


def _format_of(source: SourceRecipe) -> str:
    version = source.text_of("recipe_version") or source.text_of("sparkrun_version")
    if version in ("", "1"):
        is_v1 = version == "1" or bool(V1_SIGNS & source.content.keys())
        return "eugr v1" if is_v1 else "sparkrun v2"
    return f"sparkrun v{shown(version)}"


def _refuse_pull_requests(source: SourceRecipe, assignments: Sequence[str]) -> None:
    """A patch that is fetched while an image is built is another one tomorrow.

    Who says which mods there are (`--set mods=...`) has said what stands for it.
    """
    words = " ".join(as_text(item) for item in source.listed("build_args"))
    found = PULL_REQUEST.findall(words)
    if not found or any(item.partition("=")[0].strip() == "mods" for item in assignments):
        return
    numbers = [number or "N" for numbers in found for number in numbers.split(",")]
    own = [item for _, _, item in _mod_items(source)]
    patches = [{"folder": f"mods/vllm-pr-{number}"} for number in numbers]
    first = patches[0]["folder"]
    raise RecipeError(
        f"{source.origin('build_args')}: build_args: {shown(words)}: patches of vLLM's pull "
        "requests are not fetched while an image is built",
        hint=f"save the patch as {first}/pr.patch, with a run.sh beside it that says "
        "`patch -p1 -d /usr/local/lib/python3.12/dist-packages < pr.patch`, and name it: "
        f"{mods_setting([*own, *patches])}; or do without: {mods_setting(own)}",
    )


def _other_server(source: SourceRecipe, key: str, name: str) -> RecipeError:
    return RecipeError(
        f"{source.origin(key)}: {key}: the recipe is for {name}, and sparkdeploy serves with vLLM",
        hint="look for a vLLM recipe of the same model",
    )


def _put_identity(source: SourceRecipe, made: Translation) -> None:
    made.put(("schema",), 1, source.origin("recipe_version"), "recipe_version")
    named = source.text_of("name")
    name = slug(named or source.file.stem)
    made.put(("name",), name, source.origin("name"), f"name: {named or source.file.name}")
    own = source.text_of("description")
    words = own or str(source.mapping("metadata").get("description", ""))
    # Characters that are not seen, such as those between the parts of an emoji, have no place here.
    seen = "".join(item for item in words if unicodedata.category(item) != "Cf")
    title = text_without_secrets(" ".join(seen.split()))[:MAX_TITLE]
    title = title or source.text_of("model") or name
    key = ("description",) if own else ("metadata", "description")
    made.put(("title",), title, source.origin(*key), f"{'.'.join(key)}: {title}")


def slug(name: str) -> str:
    """Return a recipe's name of ours: small letters, digits, `.`, `_` and `-`."""
    made = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:63]
    return made.rstrip("._-") or "imported"


def _put_engine(source: SourceRecipe, made: Translation, assignments: Sequence[str]) -> None:
    """Choose what runs it: what the user types, a known stand-in, or the image as it is named."""
    container, origin = source.text_of("container").strip(), source.origin("container")
    words, images = f"container: {container}", tables()["images"]
    known, asked = images.get(container.removesuffix(":latest")), _asked_build(source, container)
    is_chosen = any(item.partition("=")[0].strip() in OUR_ENGINE_KEYS for item in assignments)
    if asked is not None and "/" not in container:
        _put_release(made, asked, origin, words, is_chosen=is_chosen)
    elif not container:
        made.put(("engine",), images["vllm-node"]["engine"], origin, "no container is named")
    elif known is not None:
        why = f"{words} ({known['source']}, {known['date']})"
        made.put(("engine",), known.get("engine", "image"), origin, why)
        if "image" in known:
            made.put(("image",), known["image"], origin, words)
    elif "/" in container or container.startswith("sha256:"):
        made.put(("engine",), "image", origin, words)
        made.put(("image",), container, origin, words)
    elif is_chosen:
        made.drop(origin, words, "an image of its author's machine; --set says what stands for it")
    else:
        raise RecipeError(
            f"{origin}: container: {shown(container)} is an image of its author's own machine, and "
            "nothing is known to stand for it",
            hint="--set engine=cuda-0.33 takes vLLM's own wheels; or --set engine=image --set "
            "image=NAME:TAG where it is published",
        )


def _asked_build(source: SourceRecipe, container: str) -> str | None:
    """Return what of vLLM's the image is built of: a release, else the commit or branch named.

    `--vllm-ref v0.26.0` says it, or the name of a local image: vllm-node-v026, vllm-node:v0.26.0.
    """
    words = " ".join(as_text(item) for item in source.listed("build_args"))
    named = VLLM_REF.findall(words)
    ref = named[-1].strip("'\"") if named else None
    release = RELEASE.fullmatch(ref or "")
    if ref is None and "vllm" in container:
        release = RELEASE_IN_NAME.search(container)
    if release is None:
        return None if ref in (None, *MAIN_BRANCH) else ref
    numbers = [int(it) for it in release.groups() if it is not None]
    return ".".join(map(str, [*numbers, 0][:3]))


def _put_release(
    made: Translation, asked: str, origin: ValueOrigin, words: str, *, is_chosen: bool
) -> None:
    """Choose the engine of ours with that very release; RecipeError names the image that has it."""
    is_release = RELEASE.fullmatch(asked) is not None
    built = f"vLLM {asked}" if is_release else f"vLLM at {shown(asked)}"
    engines = (name for name, it in releases().items() if it.vllm == asked)
    own = next((name for name in engines if name.startswith("cuda")), None)
    if is_chosen:
        made.drop(origin, words, f"it has {built}; --set says what stands for it")
    elif own is not None:
        made.put(("engine",), own, origin, f"{words} ({built}, as this engine has it)")
    else:
        image = f"--set engine=image --set image=vllm/vllm-openai:v{asked}"
        public = f"{image} takes vLLM's own image of that release"
        unknown = "--set engine=image --set image=NAME:TAG takes it where it is published"
        raise RecipeError(
            f"{origin}: {words} is an image of its author's own machine with {built}, which no "
            "engine here has",
            hint=f"{public if is_release else unknown}; --set engine=cuda-0.33 takes another "
            f"release, {newest().vllm}",
        )


def _command(source: SourceRecipe) -> ServeCommand:
    """Return vLLM's command: the recipe's own, or one made from its defaults."""
    template = source.text_of("command")
    if not template.strip():
        if "launch" not in source.content:
            return ServeCommand((source.text_of("model"), *_flags_of_defaults(source)))
        template = as_text(source.content["launch"])
    text, runtimes = fill_in(template, source.parameters()), tables()["runtimes"]
    try:
        command = take_apart(text)
    except RecipeError as error:
        for runtime in runtimes.values():
            if any(words in text for words in runtime["commands"]):
                raise _other_server(source, "command", runtime["name"]) from error
        error.message = f"{source.origin('command')}: {error.message}"
        raise
    if last_given(command.arguments, "--omni") is not None:
        raise _other_server(source, "command", runtimes["vllm-omni"]["name"])
    return command


def _flags_of_defaults(source: SourceRecipe) -> Iterator[str]:
    for name, value in source.mapping("defaults").items():
        flag = flag_of_parameter(name)
        if value is None or (flag not in newest().spellings and flag != "--host"):
            continue
        if isinstance(value, bool):
            yield flag if value else negated(flag)
        elif isinstance(value, list):
            yield from (flag, *map(as_text, value))
        else:
            # Several names stand in one text, as they would in a command.
            is_names = flag == "--served-model-name"
            yield from (flag, *(str(value).split() if is_names else [as_text(value)]))


def _put_nodes(source: SourceRecipe, made: Translation) -> None:
    """Set how many nodes serve it; the older keys and `mode` say one or several."""
    content = source.content
    for key in ("min_nodes", "max_nodes"):
        count = content.get(key)
        if count is not None and (key, count) != ("min_nodes", 1):
            made.put(("cluster", key), count, source.origin(key), f"{key}: {count}")
    for older, mode, name, count in (
        ("cluster_only", "cluster", "min_nodes", 2),
        ("solo_only", "solo", "max_nodes", 1),
    ):
        key = older if content.get(older) is True else "mode"
        if key == "mode" and source.text_of("mode") != mode:
            continue
        line = f"{key}: {as_text(content[key])}"
        if name in made.content.get("cluster", {}):
            made.drop(source.origin(key), line, f"{name} says how many")
        else:
            made.put(("cluster", name), count, source.origin(key), line)
    for key in ("min_nodes", "max_nodes", "cluster_only", "solo_only"):
        value = content.get(key)
        if key in content and (value in (None, False) or (key, value) == ("min_nodes", 1)):
            made.drop(source.origin(key), f"{key}: {value}", "it limits nothing")


def _mod_items(source: SourceRecipe) -> Iterator[tuple[ValueOrigin, str, dict[str, str]]]:
    """Yield where each mod of theirs stands, what stands there, and the same as one of ours."""
    for index, mod in enumerate(source.listed("mods")):
        yield source.origin("mods", index), f"mods: {as_text(mod)}", {"folder": as_text(mod)}
    for index, step in enumerate(source.listed("pre_exec")):
        if isinstance(step, dict):
            item = {"folder": as_text(step.get("copy", step))}
        else:
            item = {"run": _filled(as_text(step), source.parameters())}
        yield source.origin("pre_exec", index), f"pre_exec: {as_text(step)}", item


def _filled(step: str, parameters: dict[str, str]) -> str:
    """A shell's braces are no parameters: what has no value stays as it is written."""
    names = PLACEHOLDER.findall(" ".join((step, *parameters.values())))
    return fill_in(step, {name: f"{{{name}}}" for name in names} | parameters)


def _put_environment(source: SourceRecipe, command: ServeCommand, made: Translation) -> None:
    own = source.mapping("env").items()
    named = [(name, value, source.origin("env", name)) for name, value in own]
    named += [(name, value, source.origin_of_word(name)) for name, value in command.env]
    for name, value, origin in named:
        if (reason := _reason_against(name, value)) is not None:
            # A token that somebody left in a recipe has no place in a report.
            made.drop(origin, name, reason)
        else:
            text = as_text(value)
            made.put(("serve", "env", name), text, origin, f"{name}={text}")


def _reason_against(name: str, value: Any) -> str | None:  # noqa: ANN401 - YAML content
    if name in tables()["env"]:
        return str(tables()["env"][name])
    if belongs_to_node(name):
        return NODE_DECIDES
    if names_a_secret(name):
        return "a key or a token never enters a container"
    if value is None:
        return "it has no value"
    is_variable = "$" in as_text(value)
    return "its value is a variable of the machine that runs the command" if is_variable else None


def _drop_the_rest(source: SourceRecipe, made: Translation) -> None:
    """Name every key that has no counterpart, and every parameter that nothing uses."""
    used = source.used_parameters() if source.content.get("command") else None
    for name, value in source.mapping("defaults").items():
        flag, origin = flag_of_parameter(name), source.origin("defaults", name)
        is_shown = flag not in tables()["flags"] and not names_a_secret(name)
        words = f"{name}: {as_text(value)}" if is_shown else name
        if used is None:
            if flag not in newest().spellings:
                made.drop(origin, words, "no flag of vLLM's is called so")
        elif name not in used and name != "served_model_name":
            made.drop(origin, words, "the command has no place for it")
    is_said = {
        "launch": not source.content.get("command"),
        "mode": any(it.theirs.startswith("mode: ") for it in (*made.translated, *made.dropped)),
    }
    for key in source.content:
        if key in TRANSLATED or is_said.get(key):
            continue
        why = tables()["keys"].get(key, "no key of its format, and nothing here is called so")
        made.drop(source.origin(key), key, why)
