"""What a recipe from elsewhere may not ask for unless the user says --allow-unsafe.

A recipe is data: it chooses settings of vLLM, and vLLM runs in a container without rights. These
settings are different: they make it load code of the recipe's choice, read or write files that it
was not given, or open doors of its own. Values that were typed (`--set`) and recipes in the user's
own recipes folder are the user's words and are not looked at.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.recipe import flags
from sparkdeploy.recipe.rules import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.recipe.document import KeyPath, Origin
    from sparkdeploy.recipe.schema import Recipe

CONSENT = "remove it, or insist with --allow-unsafe"

SAFE_ENV = re.compile(
    r"(VLLM|NCCL|GLOO|TORCH|PYTORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON|FLASHINFER|CUDA|CUBLAS|CUDNN"
    r"|OMP|MKL|OPENBLAS|TOKENIZERS)_\w+",
    re.ASCII,
)
"""Settings of vLLM and of the libraries it computes with; others (PYTHONPATH, LD_*) load code."""
UNSAFE_ENV = re.compile(
    r"\w*(PLUGIN|PATH|DIR|ROOT|FILE|INJECTION|PRELOAD|INSECURE|DEV_MODE|RUNTIME_LORA|ENDPOINT"
    r"|_URL|_COMMAND|PTXAS|COMPILER)\w*",
    re.ASCII,
)
"""Among those the ones that name code, files or hosts, or open routes that are closed."""
UNSAFE_FLAGS = frozenset(
    {
        "--allowed-local-media-path",
        "--allowed-media-domains",
        "--config",
        "--download-dir",
        "--enable-prompt-embeds",
        "--generation-config",
        "--hf-config-path",
        "--hf-overrides",
        "--io-processor-plugin",
        "--kv-events-config",
        "--kv-transfer-config",
        "--log-config-file",
        "--logits-processors",
        "--lora-modules",
        "--model-loader-extra-config",
        "--otlp-traces-endpoint",
        "--profiler-config",
        "--reasoning-parser-plugin",
        "--root-path",
        "--scheduler-cls",
        "--ssl-ca-certs",
        "--ssl-certfile",
        "--ssl-keyfile",
        "--tokenizer",
        "--tool-parser-plugin",
        "--tool-server",
        "--uds",
        "--worker-cls",
        "--worker-extension-cls",
    }
)
"""vLLM flags that import what they name, read or write files, or speak to other hosts."""
UNSAFE_COMPILATION = frozenset({"backend", "inductor_passes", "cache_dir", "debug_dump_path"})
"""Keys of compilation_config that name code or folders."""


def find_unsafe(
    recipe: Recipe, origins: Mapping[KeyPath, Origin], own_folders: tuple[Path, ...]
) -> Iterator[Problem]:
    """Yield what needs consent; a file that gives it to itself is refused for that."""
    consent = _origin(("allow_unsafe",), origins)
    if recipe.allow_unsafe and consent is not None and consent.line is not None:
        yield Problem(
            ("allow_unsafe",),
            "a recipe cannot allow itself what is unsafe",
            "remove it, and pass --allow-unsafe on the command line",
        )
    elif not recipe.allow_unsafe:
        for problem in (*_environment(recipe), *_arguments(recipe), *_compilation(recipe)):
            if is_foreign(problem.path, origins, own_folders):
                yield problem


def is_foreign(
    path: KeyPath, origins: Mapping[KeyPath, Origin], own_folders: tuple[Path, ...]
) -> bool:
    """Say whether a value stands in a file outside the folders of recipes."""
    origin = _origin(path, origins)
    if origin is None or origin.line is None:
        return False
    file = Path(origin.file).resolve()
    return not any(file.is_relative_to(folder.resolve()) for folder in own_folders)


def _origin(path: KeyPath, origins: Mapping[KeyPath, Origin]) -> Origin | None:
    while path and path not in origins:
        path = path[:-1]
    return origins.get(path)


def _environment(recipe: Recipe) -> Iterator[Problem]:
    for name in recipe.serve.env:
        if not SAFE_ENV.fullmatch(name) or UNSAFE_ENV.fullmatch(name):
            yield Problem(
                ("serve", "env", name), f"{name} may load code or move files in vLLM", CONSENT
            )


def _arguments(recipe: Recipe) -> Iterator[Problem]:
    for index, argument in enumerate(recipe.serve.extra_args):
        flag = flags.flag_of(argument)
        # argparse takes the start of a flag for the whole.
        if flag is not None and any(item.startswith(flag) for item in UNSAFE_FLAGS):
            yield Problem(
                ("serve", "extra_args", index),
                f"{flag} loads code, moves files or speaks to other hosts",
                CONSENT,
            )


def _compilation(recipe: Recipe) -> Iterator[Problem]:
    for name in sorted(UNSAFE_COMPILATION & set(recipe.serve.compilation_config or {})):
        yield Problem(
            ("serve", "compilation_config", name), f"{name} names code or a folder", CONSENT
        )
