"""Where things lie as far as the environment alone tells: nothing here takes time to import."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

CONFIG_FILE = "config.yaml"
SchemaKind = Literal["recipe", "engine", "config", "stack"]


def resources() -> Path:
    """Return the folder that holds recipes/ and dockerfiles/: installed, or the checkout."""
    override = os.environ.get("SPARKDEPLOY_RESOURCES")
    if override:
        return Path(override)
    package = Path(__file__).parent
    packed = package / "_data"
    return packed if packed.is_dir() else package.parent


def schema_file(kind: SchemaKind) -> Path:
    """Return the JSON schema of a format: beside the recipes, in the checkout as in the wheel."""
    return resources() / "recipes" / "schema" / f"{kind}.schema.json"


def schema_line(kind: SchemaKind) -> str:
    """Return what says to an editor, in a file's first line, where the schema of its format is."""
    # As a URL: a path may have spaces, which would end it.
    return f"# yaml-language-server: $schema={schema_file(kind).absolute().as_uri()}"


def config_dir(env: Mapping[str, str]) -> str:
    return env.get("SPARKDEPLOY_CONFIG_DIR") or _of_user("XDG_CONFIG_HOME", ".config", env)


def state_dir(env: Mapping[str, str]) -> str:
    return env.get("SPARKDEPLOY_STATE_DIR") or _of_user("XDG_STATE_HOME", ".local/state", env)


def data_dir(env: Mapping[str, str]) -> str:
    """Return where prepared checkpoints are, unless config.yaml says otherwise."""
    return env.get("SPARKDEPLOY_DATA_DIR") or _of_user("XDG_DATA_HOME", ".local/share", env)


def hub_cache(env: Mapping[str, str]) -> Path:
    """Follow the hub client's own rules: HF_HUB_CACHE, HF_HOME/hub, XDG cache, ~/.cache."""
    if env.get("HF_HUB_CACHE"):
        return Path(env["HF_HUB_CACHE"]).expanduser()
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "hub"
    base = env.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "huggingface" / "hub"


def recipe_folders(config: Path) -> tuple[Path, ...]:
    """Return the trusted folders: the user's own, and the shipped ones."""
    return (config / "recipes", resources() / "recipes")


def _of_user(variable: str, default: str, env: Mapping[str, str]) -> str:
    """Follow the XDG rule as platformdirs does, which takes longer to import than names to list."""
    chosen = env.get(variable, "").strip()
    return os.path.join(chosen or os.path.expanduser(f"~/{default}"), "sparkdeploy")  # noqa: PTH111, PTH118 - never raises
