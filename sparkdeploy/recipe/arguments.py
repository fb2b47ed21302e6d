"""Hold what a recipe tells vLLM against what that very release takes.

A flag that the release has not, a choice that is none, a value of another type, the name of a
parser that nobody registered: vLLM says each of them after the download, and stops.
"""

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from sparkdeploy.recipe import flags
from sparkdeploy.recipe.document import KeyPath
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.flags import Given, given_flags
from sparkdeploy.recipe.image_pins import InspectedEngine, is_unknown
from sparkdeploy.recipe.releases import (
    Flag,
    Release,
    arguments_folder,
    newest,
    parse_version,
    read_release,
    releases,
)
from sparkdeploy.recipe.rules import Mistake, drafting_of
from sparkdeploy.recipe.schema import Recipe, Serve, Speculative
from sparkdeploy.recipe.words import nearest, shown
from sparkdeploy.settings import resources

NAMES = {
    "--attention-backend": "attention_backends",
    "--kv-cache-dtype": "kv_cache_formats",
    "--load-format": "load_formats",
    "--quantization": "quantizations",
    "--reasoning-parser": "reasoning_parsers",
    "--tool-call-parser": "tool_parsers",
}
"""Flags that the parser takes any word for, and the list that the word has to be on."""
PLUGGED_IN = {
    "--reasoning-parser": "--reasoning-parser-plugin",
    "--tool-call-parser": "--tool-parser-plugin",
}
"""A flag that names code of one's own, which registers further names."""
SPECULATIVE_CONFIG = "--speculative-config"
OPTIMIZATION = re.compile(r"-O(\d|\.|=|$)")
"""vLLM rewrites `-O3` and `-O.mode` before its parser sees them."""
PATTERNS = {
    "int": r"-?\d+",
    "size": r"-?\d+|\d+(\.\d+)?[kKmMgGtT]",
    "auto": r"auto|-?\d+|\d+(\.\d+)?[kKmMgGtT]",
    "float": r"-?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?",
}
WORDS = {
    "int": "a whole number",
    "size": "a number, such as 4096 or 64K",
    "auto": "a number of tokens, such as 4096 or 64K, or auto",
    "float": "a number",
    "json": "JSON",
}
LOWERED = frozenset({"load_formats", "quantizations"})
"""Names that vLLM reads in small letters."""
PACKAGE_OF: dict[tuple[str, ...], str] = {
    ("--attention-backend", "b12x"): "b12x",
    ("--linear-backend", "b12x"): "b12x",
    ("--load-format", "fastsafetensors"): "fastsafetensors",
    ("--load-format", "instanttensor"): "instanttensor",
    ("--load-format", "runai_streamer"): "runai-model-streamer",
    ("--load-format", "runai_streamer_sharded"): "runai-model-streamer",
    ("--load-format", "tensorizer"): "tensorizer",
    ("--moe-backend", "b12x"): "b12x",
}
"""The optional packages of vLLM's own metadata (0.33.0), by what asks for them."""
SHOWN_CHOICES = 12
KIND_OF_CHECKPOINT = re.compile(r"fp4|int[48]|w\d{1,2}a\d{1,2}|[48]-?bit")
"""What people call a checkpoint's weights by, where vLLM has names of methods."""
CHECKPOINT_SAYS = "config.json of the checkpoint says how it is quantised"
_NO_JSON = object()


def argument_mistakes(recipe: Recipe, engine: Engine) -> tuple[list[Mistake], bool]:
    """Return what the engine's vLLM would refuse, and whether its own parser was asked.

    Where another build's was, the nearest release's, the mistakes are warnings.
    """
    release, is_its_own = release_of(engine)
    given = given_of(recipe.serve)
    forms = {item.form for item in given}
    found = [mistake for item in given for mistake in _flag_mistakes(item, release, forms)]
    for path, drafting in drafting_of(recipe):
        found += _drafting(path, drafting, release)
    return found, is_its_own


def release_of(engine: Engine) -> tuple[Release, bool]:
    """Return what decides about an engine's arguments, and whether it is that very build's."""
    if isinstance(engine, InspectedEngine) and engine.contents.release is not None:
        return engine.contents.release, True
    own = arguments_folder() / f"{engine.lock or engine.name}.json"
    if own.is_file() and engine.kind != "image":
        return read_release(own), True
    if is_unknown(engine):
        # What others build is nearest to the newest.
        return newest(), False
    wanted = parse_version(engine.vllm)

    def distance(release: Release) -> list[int]:
        pairs = zip(parse_version(release.vllm), wanted, strict=True)
        return [abs(one - other) for one, other in pairs]

    return min(releases().values(), key=distance), False


def given_of(serve: Serve) -> list[Given]:
    known = flags.field_arguments(serve)
    fields = (Given(("serve", field), flag, values) for field, (flag, *values) in known)
    return [*fields, *given_flags(serve.extra_args)]


def _flag_mistakes(given: Given, release: Release, all_forms: Collection[str]) -> Iterator[Mistake]:
    # A word before every flag is a question of consent, not of a release.
    if OPTIMIZATION.match(given.spelling) or not given.spelling.startswith("-"):
        return
    name = release.spellings.get(given.form) or _beginning(given.form, release.spellings)
    if name is None:
        yield _unknown(given, release)
        return
    flag = release.flags[name]
    if given.keys:
        yield from _keys(given.path, name, given.keys[:1], release)
    elif wrong := _wrong_count(flag, given):
        yield Mistake(given.path, f"{given.spelling}: {wrong}", f"as vLLM {release.vllm} reads it")
    elif PLUGGED_IN.get(name) not in all_forms:
        for value in given.values:
            yield from _value(given.path, name, flag, value, release)


def _beginning(form: str, spellings: Mapping[str, str]) -> str | None:
    """Return the flag of which a word is the beginning: argparse takes it where it fits one."""
    fits = {name for spelling, name in spellings.items() if spelling.startswith(form)}
    return fits.pop() if len(fits) == 1 and form.startswith("--") and len(form) > 2 else None


def _wrong_count(flag: Flag, given: Given) -> str | None:
    count = len(given.values)
    if flag.takes == "none" and count:
        return f"it takes no value, and {shown(given.values[0])} follows"
    if flag.takes in ("one", "many") and not count:
        return "it needs a value"
    if flag.takes in ("one", "optional") and count > 1:
        return f"it takes one value, and {shown(given.values[1])} follows as well"
    return None


def _value(path: KeyPath, name: str, flag: Flag, value: str, release: Release) -> Iterator[Mistake]:
    kind = NAMES.get(name)
    if flag.choices:
        if value not in flag.choices:
            yield _no_choice(path, name, value, release)
    elif kind is not None:
        if not _is_known(value, kind, release.names[kind]):
            yield _no_name(path, name, value, kind, release)
    elif name in release.keys or flag.type == "json":
        yield from _mapping(path, name, value, release)
    elif value == "None":
        # vLLM reads it as nothing where a flag may have none.
        return
    elif (pattern := PATTERNS.get(flag.type or "")) and not re.fullmatch(pattern, value):
        yield Mistake(path, f"{name} {shown(value)}: {WORDS[flag.type or '']} is expected", "")


def _is_known(value: str, kind: str, known: Iterable[str]) -> bool:
    """vLLM looks back ends up in capitals and most other names in small letters."""
    if kind == "attention_backends":
        return value.upper() in (*known, "AUTO")
    return value in known or (kind in LOWERED and value.lower() in known)


def _mapping(path: KeyPath, name: str, text: str, release: Release) -> Iterator[Mistake]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = _NO_JSON
    if isinstance(content, dict):
        yield from _keys(path, name, content, release)
    elif content is _NO_JSON and release.flags[name].type == "json":
        yield Mistake(path, f"{name} {shown(text)}: {WORDS['json']} is expected", "")


def _drafting(path: KeyPath, drafting: Speculative, release: Release) -> Iterator[Mistake]:
    methods = release.names["speculative_methods"]
    if drafting.method is not None and drafting.method not in methods:
        yield _no_name((*path, "method"), "method", drafting.method, "speculative_methods", release)
    yield from _keys(path, SPECULATIVE_CONFIG, drafting.further, release)


def _keys(path: KeyPath, name: str, keys: Iterable[str], release: Release) -> Iterator[Mistake]:
    known = release.keys.get(name)
    if known is None:
        return
    for key in keys:
        # `--x.list+ item` adds to a list.
        if key.rstrip("+") not in known:
            near = nearest(key, known)
            yield Mistake(path, f"{name} of vLLM {release.vllm} has no key {shown(key)}", near)


def _unknown(given: Given, release: Release) -> Mistake:
    what = f"vLLM {release.vllm} has no flag {shown(given.spelling)}"
    return Mistake(given.path, what, _fix(given.form, release, lambda it: it.spellings))


def _no_name(path: KeyPath, name: str, value: str, kind: str, release: Release) -> Mistake:
    wanted = value.upper() if kind == "attention_backends" else value
    what = f"{name} {shown(value)}: vLLM {release.vllm} knows no such "
    what += kind.removesuffix("s").replace("_", " ")
    fix = _fix(wanted, release, lambda it: it.names[kind])
    if kind == "quantizations" and KIND_OF_CHECKPOINT.search(value.lower()):
        # The nearest word is another format.
        fix = f"leave it out: {CHECKPOINT_SAYS}"
    return Mistake(path, what, fix or f"one of {', '.join(release.names[kind])}")


def _no_choice(path: KeyPath, name: str, value: str, release: Release) -> Mistake:
    choices = release.flags[name].choices
    listed = ", ".join(choices[:SHOWN_CHOICES]) + (", ..." if choices[SHOWN_CHOICES:] else "")
    what = f"{name} {shown(value)}: vLLM {release.vllm} takes {listed}"
    fix = _fix(value, release, lambda it: it.flags[name].choices if name in it.flags else ())
    return Mistake(path, what, fix)


def _fix(word: str, release: Release, known: Callable[[Release], Collection[str]]) -> str:
    """Return a fix: the engines for GPUs that know a word, or the near one of this release."""
    engines = (name for name, it in releases().items() if word in known(it))
    on_gpus = " or ".join(name for name in engines if not name.startswith("cpu"))
    return f"set engine to {on_gpus}" if on_gpus else nearest(word, known(release))


def package_mistakes(recipe: Recipe, engine: Engine) -> Iterator[Mistake]:
    """Yield what a recipe asks of an engine without its package; images are not looked into."""
    packages = packages_of(engine.lock or engine.name)
    if engine.kind == "image" or not packages:
        return
    drafts = (
        Given((*path, key), flags.with_hyphens(f"--{key}"), [value])
        for path, drafting in drafting_of(recipe)
        for key, value in drafting.further.items()
        if isinstance(value, str)
    )
    for given in (*given_of(recipe.serve), *drafts):
        package = PACKAGE_OF.get((given.form, *(it.lower() for it in given.values[:1])))
        if package is not None and package not in packages:
            what = f"{given.form} {given.values[0]} takes the package {package}, which engine "
            what += f"{engine.name} does not hold"
            yield Mistake(given.path, what, _instead(package, given.form))


@functools.cache
def packages_of(lock: str) -> frozenset[str]:
    """Return the packages of a lock, of whatever platform; empty where there is none."""
    files = (_locks_folder() / lock).glob("*-py*.txt")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    return frozenset(re.findall(r"^([A-Za-z0-9_.-]+)==", text, re.MULTILINE))


def _locks_folder() -> Path:
    return resources() / "recipes" / "engines" / "locks"


def _instead(package: str, form: str) -> str:
    locks = sorted(path.name for path in _locks_folder().iterdir())
    names = [name for name in locks if package in packages_of(name)]
    others = "safetensors" if form == "--load-format" else "auto"
    choice = f"choose {form} {others}"
    return f"set engine to {names[-1]}, or {choice}" if names else choice
