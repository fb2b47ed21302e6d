"""Folders, the user's configuration file and the environment, read once into one value."""

from __future__ import annotations

import configparser
import contextlib
import functools
import os
import re
import socket
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
from pydantic import BaseModel, ConfigDict, ValidationError

from sparkdeploy import yaml_text
from sparkdeploy.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
LOGIN = re.compile(r"//[^/@\s]+@")
SHARED_LOCK_DIR = "/run/lock/sparkdeploy"
CA_BUNDLE_VARIABLES = ("SPARKDEPLOY_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts of the outside world; the defaults come from registries.yaml."""

    container_registry: str
    torch_cpu_index: str
    torch_cuda_index: str
    debian_mirror: str
    hub: str
    package_index: str
    source_forge: str


@dataclass(frozen=True, slots=True)
class BuildNetwork:
    """How an image build reaches the world. None of it enters a fingerprint or a final image."""

    ca_bundle: Path | None = None
    proxies: Mapping[str, str] = field(default_factory=dict)
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that belongs to the user and the machine rather than to a recipe."""

    config_dir: Path
    state_dir: Path
    cache_dir: Path
    data_dir: Path
    lock_dir: Path
    """Shared by every user of the machine, as its Docker Engine is."""
    hub_cache: Path
    docker_host: str | None
    default_recipe: str
    hosts: Hosts
    build: BuildNetwork
    node_name: str
    cluster: Mapping[str, Any] | None = None
    """The section of config.yaml as it stands there; only commands with --cluster look into it."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each value came from: `default`, `environment NAME` or the file's path."""


class _ConfigFile(BaseModel):
    """config.yaml as a user writes it; every key is optional."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    default_recipe: str | None = None
    docker_host: str | None = None
    data_dir: str | None = None
    cache_dir: str | None = None
    ca_bundle: str | None = None
    index_url: str | None = None
    wheelhouse: str | None = None
    container_registry: str | None = None
    torch_cpu_index: str | None = None
    torch_cuda_index: str | None = None
    package_index: str | None = None
    source_forge: str | None = None
    debian_mirror: str | None = None
    hub: str | None = None
    cluster: dict[str, Any] | None = None


def resources() -> Path:
    """Return the folder that holds recipes/ and dockerfiles/: installed, or the checkout."""
    override = os.environ.get("SPARKDEPLOY_RESOURCES")
    if override:
        return Path(override)
    package = Path(__file__).parent
    packed = package / "_data"
    return packed if packed.is_dir() else package.parent


def load_settings(env: Mapping[str, str] | None = None) -> Settings:
    """Read environment and config file.

    RecipeError when the file is invalid, or when a folder would depend on where a command starts.
    """
    environment = os.environ if env is None else env
    config_dir = _folder(environment, "SPARKDEPLOY_CONFIG_DIR", platformdirs.user_config_path)
    file = _read_config(config_dir / "config.yaml")
    reader = _Reader(environment, file, config_dir)
    return Settings(
        config_dir=config_dir,
        state_dir=_folder(environment, "SPARKDEPLOY_STATE_DIR", platformdirs.user_state_path),
        cache_dir=reader.folder("cache_dir", platformdirs.user_cache_path),
        data_dir=reader.folder("data_dir", platformdirs.user_data_path),
        lock_dir=_folder(environment, "SPARKDEPLOY_LOCK_DIR", lambda _name: Path(SHARED_LOCK_DIR)),
        hub_cache=_hub_cache(environment),
        docker_host=reader.value("docker_host", "") or environment.get("DOCKER_HOST"),
        default_recipe=reader.value("default_recipe", "v2"),
        hosts=_hosts(reader),
        build=_build_network(reader, environment),
        node_name=socket.gethostname(),
        cluster=file.get("cluster"),
        sources=reader.sources,
    )


def describe(settings: Settings) -> tuple[tuple[str, str, str], ...]:
    """Return name, value and source of every setting; a login within a URL is left out."""
    build, hosts = settings.build, settings.hosts
    values = {
        **{field.name: getattr(hosts, field.name) for field in fields(hosts)},
        "default_recipe": settings.default_recipe,
        "docker_host": settings.docker_host,
        "data_dir": settings.data_dir,
        "cache_dir": settings.cache_dir,
        "ca_bundle": build.ca_bundle,
        "index_url": build.index_url,
        "wheelhouse": " ".join(map(str, build.find_links)),
    }
    fixed = {
        "config_dir": settings.config_dir,
        "state_dir": settings.state_dir,
        "hub_cache": settings.hub_cache,
        "lock_dir": settings.lock_dir,
    }
    rows = [(name, values[name], settings.sources.get(name, "")) for name in sorted(values)]
    rows += [(name, value, "the environment's folders") for name, value in fixed.items()]
    return tuple(
        (name, "" if value is None else LOGIN.sub("//***@", str(value)), source)
        for name, value, source in rows
    )


class _Reader:
    """Picks environment before file before default, and remembers which it was."""

    def __init__(self, env: Mapping[str, str], file: Mapping[str, Any], config_dir: Path) -> None:
        self._env = env
        self._file = file
        self._path = str(config_dir / "config.yaml")
        self.sources: dict[str, str] = {}

    def value(self, name: str, default: str) -> str:
        variable = f"SPARKDEPLOY_{name.upper()}"
        if self._env.get(variable):
            self.sources[name] = f"environment {variable}"
            return self._env[variable]
        if self._file.get(name) is not None:
            self.sources[name] = self._path
            return str(self._file[name])
        self.sources[name] = "default"
        return default

    def folder(self, name: str, default: Callable[[str], Path]) -> Path:
        text = self.value(name, str(default("sparkdeploy")))
        is_in_file = self.sources[name] == self._path
        where = f"{name} in {self._path}" if is_in_file else f"SPARKDEPLOY_{name.upper()}"
        return _absolute(text, where)


def _folder(env: Mapping[str, str], variable: str, default: Callable[[str], Path]) -> Path:
    return _absolute(env.get(variable) or str(default("sparkdeploy")), variable)


def _absolute(text: str, where: str) -> Path:
    path = Path(text)
    with contextlib.suppress(RuntimeError):  # nobody's home: the tilde stays, and is refused
        path = path.expanduser()
    # Commands from two folders would keep to two locks, and find each other's state nowhere.
    if not path.is_absolute():
        raise RecipeError(
            f"{where} is no absolute path: {text!r}", hint=f"give an absolute path as {where}"
        )
    return path


def _hosts(reader: _Reader) -> Hosts:
    return Hosts(**{name: reader.value(name, host) for name, host in _default_hosts().items()})


@functools.cache
def _default_hosts() -> Mapping[str, str]:
    """Return what registries.yaml says; it is a part of the program, like its code."""
    path = Path(__file__).parent / "registries.yaml"
    hosts: dict[str, str] = yaml_text.load(yaml_text.read_text(path), str(path))
    return hosts


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content = yaml_text.load(yaml_text.read_text(path), str(path)) or {}
    try:
        return _ConfigFile.model_validate(content).model_dump()
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}"
            for item in error.errors(include_url=False)
        ]
        raise RecipeError(
            f"{path} is not a valid configuration",
            detail="\n".join(lines),
            hint="keys: " + ", ".join(_ConfigFile.model_fields),
        ) from error


def _hub_cache(env: Mapping[str, str]) -> Path:
    """Follow the hub client's own rules: HF_HUB_CACHE, HF_HOME/hub, XDG cache, ~/.cache."""
    if env.get("HF_HUB_CACHE"):
        return Path(env["HF_HUB_CACHE"]).expanduser()
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "hub"
    base = env.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "huggingface" / "hub"


def _build_network(reader: _Reader, env: Mapping[str, str]) -> BuildNetwork:
    pip = _pip_configuration(env)
    wheelhouse, ca_bundle = reader.value("wheelhouse", ""), reader.value("ca_bundle", "")
    index_url = reader.value("index_url", "") or env.get("PIP_INDEX_URL") or pip("index-url")
    return BuildNetwork(
        ca_bundle=Path(ca_bundle).expanduser() if ca_bundle else _others_bundle(env, pip),
        proxies={name: env[name] for name in PROXY_VARIABLES if env.get(name)},
        index_url=index_url or None,
        # file:// indexes cannot be reached from inside a build; folders of wheels travel instead.
        extra_index_urls=tuple(
            url
            for url in (env.get("PIP_EXTRA_INDEX_URL") or pip("extra-index-url")).split()
            if not url.startswith("file:")
        ),
        find_links=_wheelhouse(wheelhouse) if wheelhouse else _others_folders(env, pip),
    )


def _wheelhouse(text: str) -> tuple[Path, ...]:
    """One folder, or several with spaces between; a build refuses those that are not there."""
    whole = Path(text).expanduser()
    return (whole,) if whole.is_dir() else tuple(Path(it).expanduser() for it in text.split())


def _others_bundle(env: Mapping[str, str], pip: Callable[[str], str]) -> Path | None:
    """What other programs were told counts where it is there."""
    text = _first(env, CA_BUNDLE_VARIABLES) or pip("cert")
    return Path(text) if text and Path(text).is_file() else None


def _others_folders(env: Mapping[str, str], pip: Callable[[str], str]) -> tuple[Path, ...]:
    folders = (env.get("PIP_FIND_LINKS") or pip("find-links")).split()
    return tuple(Path(folder) for folder in folders if Path(folder).is_dir())


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((env[name] for name in names if env.get(name)), "")


def _pip_configuration(env: Mapping[str, str]) -> Callable[[str], str]:
    """Return a look-up into pip's own configuration files, which uv does not read."""
    files = [Path("/etc/pip.conf"), Path("~/.config/pip/pip.conf").expanduser()]
    if env.get("PIP_CONFIG_FILE"):
        files.append(Path(env["PIP_CONFIG_FILE"]))
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(files)

    def look_up(key: str) -> str:
        return parser.get("global", key, fallback="").replace("\n", " ").strip()

    return look_up
