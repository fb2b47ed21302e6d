"""Says what `vllm serve` takes: its flags, what each accepts, and the names it knows.

Runs where vLLM can be imported, a GPU or not: `python arguments.py`. It asks the release itself,
its argument parser and its registries, so the answer is that of this very build. Releases keep
them in different modules: the first that exists counts.
"""

import argparse
import contextlib
import dataclasses
import enum
import importlib
import json
import os
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping

PARSER_MODULES = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
PROBES = {
    "text": "x",
    "json": '{"a":1}',
    "auto": "auto",
    "float": "1.5",
    "size": "64K",
    "int": "1",
}
"""A value that only such a type accepts, the widest type first."""
CONFIGS = {
    "--speculative-config": ("vllm.config", "SpeculativeConfig"),
    "--compilation-config": ("vllm.config", "CompilationConfig"),
    "--attention-config": ("vllm.config", "AttentionConfig"),
    "--diffusion-config": ("vllm.config", "DiffusionConfig"),
    "--eplb-config": ("vllm.config", "EPLBConfig"),
    "--kernel-config": ("vllm.config", "KernelConfig"),
    "--kv-transfer-config": ("vllm.config", "KVTransferConfig"),
    "--pooler-config": ("vllm.config", "PoolerConfig"),
    "--reasoning-config": ("vllm.config", "ReasoningConfig"),
    "--structured-outputs-config": ("vllm.config", "StructuredOutputsConfig"),
}
"""Flags that take a mapping, and the class whose fields are its keys."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of `vllm serve`."""
    platform = _first(("vllm.platforms",), "current_platform")
    if not platform.device_type:
        # A CUDA build without a GPU has defaults of no device, and stops at the first.
        platform.device_type = "cuda"
    flexible = _first(("vllm.utils.argparse_utils", "vllm.utils"), "FlexibleArgumentParser")
    made: argparse.ArgumentParser = _first(PARSER_MODULES, "make_arg_parser")(flexible())
    return made


def flags(forms: Mapping[str, argparse.Action]) -> dict[str, dict[str, object]]:
    """Return each flag under its first long form: other forms, how many values, which.

    `forms` are all that the parser takes, `--no-x` among them, in its own order.
    """
    of_action: dict[int, list[str]] = {}
    for form, action in forms.items():
        of_action.setdefault(id(action), []).append(form)
    told: dict[str, dict[str, object]] = {}
    for spellings in of_action.values():
        name = next((form for form in spellings if form.startswith("--")), None)
        if name is not None:
            row = _row(forms[name]) | {"aliases": [form for form in spellings if form != name]}
            told[name] = {key: value for key, value in row.items() if value}
    return dict(sorted(told.items()))


def names() -> dict[str, list[str]]:
    """Return the names that flags refer to without listing them as choices."""
    tools, thoughts = "vllm.tool_parsers", "vllm.reasoning"
    loaders = "vllm.model_executor.model_loader"
    methods = _first(("vllm.config.speculative",), "SpeculativeMethod")
    backends = _first(("vllm.v1.attention.backends.registry",), "AttentionBackendEnum")
    models = _first(("vllm.model_executor.models.registry",), "ModelRegistry")
    quantizations = _first(("vllm.model_executor.layers.quantization",), "QuantizationMethods")
    return {
        "architectures": sorted(models.get_supported_archs()),
        "attention_backends": sorted(backends.__members__),
        "kv_cache_formats": _words(_first(("vllm.config.cache",), "CacheDType")),
        "load_formats": sorted(_first((loaders,), "_LOAD_FORMAT_TO_MODEL_LOADER")),
        "quantizations": _words(quantizations),
        "reasoning_parsers": sorted(_first((thoughts,), "_REASONING_PARSERS_TO_REGISTER")),
        "speculative_methods": _words(methods),
        "tool_parsers": sorted(_first((tools,), "_TOOL_PARSERS_TO_REGISTER")),
    }


def keys() -> dict[str, list[str]]:
    """Return the keys of the flags that take a mapping, where the release has that class."""
    told = {}
    for flag, (module, name) in CONFIGS.items():
        # A release may have no such class, or one that is no dataclass.
        with contextlib.suppress(ImportError, TypeError):
            fields = dataclasses.fields(_first((module,), name))
            told[flag] = sorted(it.name for it in fields if not it.name.startswith("_"))
    return told


def _row(action: argparse.Action) -> dict[str, object]:
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return {"takes": "none"}
    many = action.nargs in ("+", "*")
    choices = [_text(choice) for choice in action.choices or ()]
    return {
        "takes": "many" if many else "optional" if action.nargs == "?" else "one",
        "type": None if choices else _type(action),
        "choices": choices,
    }


def _type(action: argparse.Action) -> str:
    read = action.type
    if not callable(read):
        return "text"
    for kind, value in PROBES.items():
        with contextlib.suppress(Exception):
            read(value)
            return kind
    return "text"


def _text(choice: object) -> str:
    return str(choice.value if isinstance(choice, enum.Enum) else choice)


def _words(literal: object) -> list[str]:
    """Return the words of a Literal, those of Literals within it too."""
    return sorted(set(_flat(literal)))


def _flat(literal: object) -> Iterator[str]:
    for argument in typing.get_args(literal):
        if isinstance(argument, str):
            yield argument
        else:
            yield from _flat(argument)


def _first(modules: Iterable[str], name: str) -> typing.Any:  # noqa: ANN401 - of vLLM's own
    for module in modules:
        with contextlib.suppress(ImportError):
            found = importlib.import_module(module)
            if hasattr(found, name):
                return getattr(found, name)
    raise ImportError(f"vLLM has no {name}")


def as_text(version: str, tables: Mapping[str, Mapping[str, object]]) -> str:
    """Return JSON with a row a line, so that a change of one flag is a change of one line."""
    parts = [f'"vllm": {json.dumps(version)}']
    for table, rows in tables.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        parts.append(f"{json.dumps(table)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Print all that this vLLM takes."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # Log lines of vLLM go to stdout, and are not part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        vllm = importlib.import_module("vllm")
        tables: dict[str, Mapping[str, object]] = {
            "flags": flags(parser()._option_string_actions),
            "names": names(),
            "keys": keys(),
        }
    sys.stdout.write(as_text(vllm.__version__, tables))


if __name__ == "__main__":
    main()
