"""What a recipe from elsewhere may set only with consent, and which consents were given.

A recipe is data: it chooses settings of vLLM, and vLLM runs in a container without rights. A field
of the format says itself, by its `consent`, what it can do beyond that: run code of the recipe's
choice, read files that it was not given, open ports. What was typed (`--set`), and a recipe that
stands wholly in the user's own recipes folder, are the user's words and need none.
"""

import functools
import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkdeploy import yaml_text
from sparkdeploy.about import CONSENT
from sparkdeploy.recipe.document import KeyPath, ValueOrigin, written_part
from sparkdeploy.recipe.flags import VALUE_FLAGS, given_flags, spellings
from sparkdeploy.recipe.mods import MAX_BYTES, MAX_FILES, NOT_TAKEN, FoundMod, files_hash
from sparkdeploy.recipe.paths import is_folder
from sparkdeploy.recipe.rules import Mistake
from sparkdeploy.recipe.schema import Limits, Mod, Recipe, Speculative
from sparkdeploy.recipe.words import shown
from sparkdeploy.stored_json import read_bytes
from sparkdeploy.vllm_plugin.sparkdeploy_vllm.node_variables import belongs_to_node

CONSENT_OPTIONS = {"allow_known_bad": "--allow-known-bad", "allow_unsafe": "--allow-unsafe"}
"""Fields that only an option of the command line sets: no file from elsewhere speaks for you."""
SAFE_LOAD_FORMATS = frozenset({"auto", "safetensors", "fastsafetensors", "instanttensor", "dummy"})
SAMPLING = frozenset(
    (
        *("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "do_sample"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    )
)
AS_ROOT = "a mod runs as root while an image is built"
NODE_DECIDES = "cluster.nodes of config.yaml and the node itself decide it"
DRAFTER_KEY = "it is vLLM's own key of the speculative configuration, and may name code or a file"
MODULE = "a word with `.`, `/` or `:` may name a module or a file"
COMPUTES = "it changes how vLLM computes or counts, and nothing else that is known"


@functools.cache
def dangers(kind: str) -> Mapping[str, str]:
    """Return what flags or variables can do, by how they begin, the longest first."""
    rows = yaml_text.load_file(Path(__file__).with_name("dangers.yaml"))[kind].items()
    found = {begin: danger for danger, begins in rows for begin in begins}
    return dict(sorted(found.items(), key=lambda it: -len(it[0])))


def _danger(name: str, kind: str, otherwise: str) -> str:
    return next((it for begin, it in dangers(kind).items() if name.startswith(begin)), otherwise)


@dataclass(frozen=True, slots=True)
class _Setting:
    path: KeyPath
    value: Any
    danger: str
    is_entry: bool = False
    """Whether it is one of a mapping or a list, or a path: as harmless as its own file's owner."""


def self_consents(
    recipe: Recipe, origins: Mapping[KeyPath, ValueOrigin], foreign_files: frozenset[str]
) -> Iterator[Mistake]:
    """Yield each consent that a recipe gives itself.

    A recipe of the user's own may insist on a release; on foreign code only a command may.
    """
    for field, option in CONSENT_OPTIONS.items():
        origin = origins.get(written_part((field,), origins))
        is_typed = origin is not None and origin.line is None
        is_own = field != "allow_unsafe" and origin is not None and origin.file not in foreign_files
        if getattr(recipe, field) and not is_typed and not is_own:
            yield Mistake(
                (field,),
                "a recipe cannot allow itself what needs your consent",
                f"remove it, and pass {option} on the command line",
            )


def of_the_node(recipe: Recipe, origins: Mapping[KeyPath, ValueOrigin]) -> Iterator[Mistake]:
    """Yield each variable of a file that belongs to a node: a recipe is for every node."""
    for name in filter(belongs_to_node, recipe.serve.env):
        path = ("serve", "env", name)
        origin = origins.get(written_part(path, origins))
        if origin is None or origin.line is not None:
            yield Mistake(
                path,
                f"{name} belongs to each node: {NODE_DECIDES}",
                f"remove it from the recipe; --set serve.env.{name}=VALUE insists, on every node",
            )


def asked(
    recipe: Recipe, origins: Mapping[KeyPath, ValueOrigin], foreign_files: frozenset[str]
) -> Iterator[Mistake]:
    """Yield what needs consent, given or not; nothing where no file is foreign.

    A switch of the user's own recipe counts as well once a stranger's extends it: remote code that
    the user allows one model is another thing when the stranger names the model.
    """
    for item in _settings(recipe, ()) if foreign_files else ():
        origin = origins.get(written_part(item.path, origins))
        is_typed = origin is not None and origin.line is None
        # A value that nobody knows the file of is nobody's own.
        is_foreign = origin is None or origin.file in foreign_files
        if not is_typed and (is_foreign or not item.is_entry):
            yield Mistake(item.path, f"{shown(item.value)}: {item.danger}", "")


def _settings(model: BaseModel, above: KeyPath) -> Iterator[_Setting]:
    """Yield each value of a model that needs consent where a stranger set it; mods as wholes."""
    for name, field in type(model).model_fields.items():
        path, value = (*above, field.alias or name), getattr(model, name)
        extra = field.json_schema_extra
        danger = extra.get(CONSENT) if isinstance(extra, dict) else None
        if isinstance(value, BaseModel):
            yield from _settings(value, path)
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for index, item in enumerate(value):
                if isinstance(item, Mod):
                    yield _Setting((*path, index), item.name, AS_ROOT)
                else:
                    yield from _settings(item, (*path, index))
        elif danger and value is not False and value != _default(field):
            yield from _entries(path, value, str(danger))
        elif path[-1] in VALUE_FLAGS and isinstance(value, str) and set(value) & set("./:"):
            yield _Setting(path, value, MODULE)
    if isinstance(model, Speculative):
        for key, value in model.further.items():
            yield _Setting((*above, key), value, DRAFTER_KEY, is_entry=True)


def _default(field: FieldInfo) -> object:
    return field.get_default(call_default_factory=True)


def _entries(path: KeyPath, value: Any, danger: str) -> Iterator[_Setting]:  # noqa: ANN401 - YAML
    if path[-1] == "extra_args":
        for given in given_flags(value):
            known = COMPUTES if given.flag in spellings().values() else danger
            own = _danger(given.flag or given.form, "flags", known)
            yield _Setting(given.path, " ".join(given.words), own, is_entry=True)
    elif path[-1] == "env":
        for name, text in value.items():
            own = _danger(name, "variables", danger)
            yield _Setting((*path, name), f"{name}={text}", own, is_entry=True)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not (path[-1] == "override_generation_config" and key in SAMPLING):
                yield _Setting((*path, key), item, danger, is_entry=True)
    elif path[-1] in {"path", "chat_template"} or (isinstance(value, str) and is_folder(value)):
        yield _Setting(path, os.path.realpath(os.path.expanduser(value)), danger, is_entry=True)  # noqa: PTH111
    elif not _is_ordinary(path, value):
        yield _Setting(path, value, danger)


def _is_ordinary(path: KeyPath, value: Any) -> bool:  # noqa: ANN401 - YAML
    """Say whether a value of a field that asks for consent is one of those that need none."""
    match path[-1]:
        case "memory_floor_gib":
            return bool(value >= Limits().memory_floor_gib)
        case "load_format":
            return value in SAFE_LOAD_FORMATS
        case "method":
            # vLLM's `custom_class` names code, and `extract_hidden_states` writes files.
            return not value.startswith(("custom", "extract")) and not set(value) & set("./:")
        case "source" | "model":  # a repository; a folder was asked about
            return True
    return False


def judged_mods(mods: Iterable[FoundMod]) -> tuple[FoundMod, ...]:
    """Return mods with the hash of what lies in their folders now: an image takes nothing else."""
    return tuple(
        it if it.folder is None else replace(it, judged=_hash_of_folder(it.folder)) for it in mods
    )


def template_hash(template: str | None) -> str:
    """Return the sha256, in hex, of a chat template; empty for none."""
    if template is None:
        return ""
    path = Path(os.path.realpath(os.path.expanduser(template)))  # noqa: PTH111
    return hashlib.sha256(_content(path, MAX_BYTES)).hexdigest()


def digest(
    asked_for: Iterable[Mistake],
    origins: Mapping[KeyPath, ValueOrigin],
    mods: Iterable[FoundMod],
    template: str,
) -> str:
    """Return the sha256, in hex, over what is asked for and all files that it stands in.

    These are the recipe and what it extends, as they were read, its judged mods, and its chat
    template by its hash.
    """
    parts = [f"{it.path}: {it.message}" for it in asked_for]
    for file, read in sorted(
        {(it.file, it.read) for it in origins.values() if it.line is not None}, key=str
    ):
        parts += [file, read.sha256 if read is not None else os.urandom(16).hex()]
    parts += [text for mod in mods for text in (str(mod.folder), mod.judged)]
    encoded = (os.fsencode(part) for part in (*parts, template))
    return hashlib.sha256(b"".join(hashlib.sha256(it).digest() for it in encoded)).hexdigest()


def _hash_of_folder(folder: Path) -> str:
    """Return its hash; another each time for more files or bytes than an image build takes."""
    files: dict[Path, bytes] = {}
    left_bytes = MAX_BYTES
    for file in _files_below(folder):
        files[file] = _content(file, left_bytes)
        left_bytes -= len(files[file])
        if len(files) > MAX_FILES or left_bytes <= 0:
            return os.urandom(16).hex()
    return files_hash(files)


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, always in the same order; no link is followed."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - NOT_TAKEN)
        yield from (Path(where, name) for name in sorted(set(names) - NOT_TAKEN))


def _content(file: Path, limit_bytes: int) -> bytes:
    """Return what a file holds; something else each time for one that cannot be read whole."""
    try:
        return read_bytes(file, limit_bytes)
    except OSError:
        return os.urandom(16)


def consent_hint(wanted: str, asked_for: Iterable[Mistake] = ()) -> str:
    """Return how to look at what is asked for: `show` has a recipe's values, and no mod's files."""
    name, rest = shlex.quote(shown(wanted)), "--allow-unsafe takes all of the above"
    if any(item.path[:1] == ("mods",) for item in asked_for):
        command = f"sparkdeploy plan {name} --allow-unsafe --show mods"
        return f"`{command}` prints what the mods run and runs nothing; {rest}"
    return f"`sparkdeploy show {name} --allow-unsafe` prints it and runs nothing; {rest}"
