"""Which vLLM flag each `serve` field becomes, and which flags sparkdeploy sets itself."""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.recipe.document import KeyPath
from sparkdeploy.recipe.releases import releases
from sparkdeploy.recipe.schema import Serve


def _by_field(*fields: str) -> dict[str, str]:
    return {field: "--" + field.replace("_", "-") for field in fields}


VALUE_FLAGS = _by_field(
    "max_model_len",
    "gpu_memory_utilization",
    "attention_backend",
    "kv_cache_dtype",
    "mamba_ssm_cache_dtype",
    "quantization",
    "reasoning_parser",
    "tool_call_parser",
    "load_format",
    "max_num_batched_tokens",
    "max_num_seqs",
    "runner",
    "convert",
    "generation_config",
)
"""Fields whose value follows the flag, in the order in which they are written."""
SWITCH_FLAGS = _by_field(
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "enable_auto_tool_choice",
    "enable_expert_parallel",
    "enforce_eager",
    "trust_remote_code",
)
"""Fields that are on (`--x`), off (`--no-x`) or left to vLLM (null)."""
JSON_FLAGS = _by_field(
    "default_chat_template_kwargs",
    "hf_overrides",
    "override_generation_config",
    "compilation_config",
)
FIELD_OF_FLAG = {flag: field for field, flag in (VALUE_FLAGS | SWITCH_FLAGS | JSON_FLAGS).items()}

_DECIDED = yaml_text.load_file(Path(__file__).with_name("decided.yaml"))
OWNED_FLAGS: dict[str, str] = _DECIDED["flags"]
"""Flags that sparkdeploy decides, and where a user changes them instead."""

NOT_DUMPED = {"-O": "--compilation-config"}
"""Short forms that vLLM rewrites before its parser sees them."""

FORBIDDEN_ENV: dict[str, str] = _DECIDED["variables"]
"""Environment names a recipe may not set, and why."""


def field_arguments(serve: Serve) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each field that says something, with its flag and the flag's value."""
    for field, flag in VALUE_FLAGS.items():
        value = getattr(serve, field)
        if value is not None and (field, value) != ("kv_cache_dtype", "auto"):
            yield field, (flag, f"{value:g}" if isinstance(value, float) else str(value))
    for field, flag in SWITCH_FLAGS.items():
        value = getattr(serve, field)
        if value is not None:
            yield field, (flag if value else negated(flag),)
    for field, flag in JSON_FLAGS.items():
        value = getattr(serve, field)
        if value is not None:
            yield field, (flag, compact_json(value))


def compact_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(value, separators=(",", ":"))


def negated(flag: str) -> str:
    """Return the form that turns a switch off: `--no-x`."""
    return f"--no-{flag.removeprefix('--')}"


def with_hyphens(name: str) -> str:
    """Return a flag as vLLM's own parser reads it: it takes `_` for `-` in long flags."""
    return name.replace("_", "-") if name.startswith("--") else name


@dataclass(frozen=True, slots=True)
class Given:
    """A flag with its values, and where the recipe says it."""

    path: KeyPath
    spelling: str
    """As it is written: `-ep`, `--no-x`, `--x.key`."""
    values: Sequence[str]
    words: Sequence[str] = ()
    """As they stand in `extra_args`, with `=` or without."""

    @property
    def form(self) -> str:
        """The spelling without the keys of a mapping behind it, `-` for `_` as vLLM reads it."""
        return with_hyphens(self.spelling.partition(".")[0])

    @property
    def flag(self) -> str | None:
        """The long flag that it means, as `flag_of` folds it."""
        return flag_of(self.spelling)

    @property
    def keys(self) -> list[str]:
        """The keys of a mapping: `--x.one.two` has two."""
        return self.spelling.split(".")[1:]


def given_flags(arguments: Sequence[str]) -> Iterator[Given]:
    """Yield each flag with the words that follow it; words before the first one follow none."""
    index = 0
    while index < len(arguments):
        start, (name, equals, inline) = index, arguments[index].partition("=")
        values = [inline] if equals else []
        index += 1
        while not equals and index < len(arguments) and not _is_flag(arguments[index]):
            values.append(arguments[index])
            index += 1
        yield Given(("serve", "extra_args", start), name, values, arguments[start:index])


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)


def last_given(arguments: Sequence[str], flag: str) -> Given | None:
    """Return where a flag is given in any spelling; of several the last counts, as for vLLM."""
    return next((it for it in reversed([*given_flags(arguments)]) if it.flag == flag), None)


def value_of(arguments: Sequence[str], flag: str) -> str | None:
    given = last_given(arguments, flag)
    return given.values[0] if given is not None and given.values else None


@functools.cache
def flag_of(argument: str) -> str | None:
    """Return the long flag an argument names, or None when it is a value.

    `-tp`, `-n2`, `--no-x`, `--x.key` and second names are folded in, and so are starts of a flag:
    argparse takes any start that fits one flag only.
    """
    if not argument.startswith("-") or argument.lstrip("-")[:1].isdecimal():
        return None
    name = re.split("[=.]", argument, maxsplit=1)[0]
    if not name.startswith("--"):
        return _flag_of_short_form(name)
    name, known = with_hyphens(name), spellings()
    positive = "--" + name.removeprefix("--no-") if name.startswith("--no-") else name
    if positive in OWNED_FLAGS or positive in FIELD_OF_FLAG or positive == "--":
        return positive
    if name in known:
        return known[name]
    for word in (name, positive):
        meant = {flag for form, flag in known.items() if form.startswith(word)}
        meant |= {flag for flag in OWNED_FLAGS if flag.startswith(word)}
        # vLLM takes no start that fits two flags; what is decided here counts for both.
        for flag in sorted(meant & {*OWNED_FLAGS, *FIELD_OF_FLAG}) or (
            meant if len(meant) == 1 else ()
        ):
            return flag
    return positive


@functools.cache
def spellings() -> Mapping[str, str]:
    """Return the long flag that each spelling means to a vLLM of ours, whichever release."""
    return {form: flag for it in releases().values() for form, flag in it.spellings.items()}


def is_negative(spelling: str) -> bool:
    """Return whether a spelling turns its flag off: `--no-x`, or `--disable-x` for `--enable-x`."""
    form, flag = with_hyphens(spelling), flag_of(spelling) or ""
    opposed = (("--enable-", "--disable-"), ("--disable-", "--enable-"))
    is_opposed = any(form.startswith(one) and flag.startswith(other) for one, other in opposed)
    return form.startswith("--no-") or is_opposed


def switch_of(arguments: Sequence[str], flag: str) -> bool | None:
    """Return whether `extra_args` turn a switch on or off, in any spelling; None without it."""
    given = last_given(arguments, flag)
    if given is None:
        return None
    return is_negative(given.form) == ([it.lower() for it in given.values] == ["false"])


def short_forms() -> Mapping[str, str]:
    short = {form: flag for form, flag in spellings().items() if not form.startswith("--")}
    return short | NOT_DUMPED


def _flag_of_short_form(name: str) -> str:
    known = short_forms()
    if name in known or name == "-":
        return known.get(name, name)
    # argparse takes the start of a short form, and a value right behind a single letter.
    meant = [flag for short, flag in known.items() if short.startswith(name)]
    meant.append(known.get(name[:2], name))
    return next((flag for flag in meant if flag in OWNED_FLAGS), name)
