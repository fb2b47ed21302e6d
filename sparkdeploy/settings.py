"""Folders, the user's configuration file and the environment, read once into one value."""

import configparser
import contextlib
import difflib
import functools
import os
import re
import shlex
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import platformdirs
from pydantic import ConfigDict, ValidationError, create_model

from sparkdeploy import folders, yaml_text
from sparkdeploy.about import about
from sparkdeploy.errors import Mistakes, RecipeError

PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
LOGIN = re.compile(r"//[^/@\s]+@")
SHARED_LOCK_DIR = "/run/lock/sparkdeploy"
CA_BUNDLE_VARIABLES = ("SPARKDEPLOY_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")

ON_VARIABLE = "SPARKDEPLOY_ON"
"""`--on NODE` sets it for the program on that node, to what ssh was given."""

resources = folders.resources


@dataclass(frozen=True, slots=True)
class Hosts:
    container_registry: str
    github_registry: str
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

    @property
    def verify(self) -> str | bool:
        """By what requests knows a server: the bundle, or what it has itself."""
        return True if self.ca_bundle is None else str(self.ca_bundle)


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
    rehearsal_engine: str | None = None
    """The engine for CPUs that rehearsals run on; None: that of the nearest release."""
    cluster: Mapping[str, Any] | None = None
    """The section of config.yaml as it stands there; only commands with --cluster look into it."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each value came from: `default`, `environment NAME` or the file's path."""

    @property
    def crashes_dir(self) -> Path:
        return self.state_dir / "crashes"

    def is_own_folder(self, name: str) -> bool:
        """Whether nobody named this folder for sparkdeploy, so that it holds nothing else.

        XDG's variables say where all programs have theirs: what is below them is ours alone.
        """
        xdg = (f"environment {it}" for it in _VARIABLES[name] if it.startswith("XDG_"))
        return self.sources[name] in {"default", *xdg}


# Each key of config.yaml that is a text: what it is, an example, and what counts without it.
_FIELDS: Any = {
    name: (Annotated[str | None, about(**row)], None)
    for name, row in yaml_text.load_file(Path(__file__).with_name("settings.yaml")).items()
}
_KINDS = {
    "string": "a text",
    "int": "a whole number",
    "bool": "true or false",
    "model": "a mapping of keys to values",
    "dict": "a mapping of keys to values",
    "list": "a list",
    "tuple": "a list",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
"""How pydantic's names for a wrong value begin, and what is wanted."""
ConfigFile = create_model(
    "ConfigFile",
    __config__=ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True),
    __doc__="config.yaml as a user writes it; every key is optional.",
    **_FIELDS,
    cluster=(dict[str, Any] | None, None),
)


def load_settings(env: Mapping[str, str] = os.environ) -> Settings:
    config_dir = _absolute(folders.config_dir(env), "SPARKDEPLOY_CONFIG_DIR")
    path = config_dir / folders.CONFIG_FILE
    file = _read_config(path)
    values, sources = _choose(env, file, path)
    sources |= {name: _origin(name, env) for name in _VARIABLES if _is_default(sources, name)}

    def folder(name: str) -> Path:
        is_in_file = sources[name] == str(path)
        where = f"{name} in {path}" if is_in_file else f"SPARKDEPLOY_{name.upper()}"
        return _absolute(values[name], where)

    return Settings(
        config_dir=config_dir,
        state_dir=folder("state_dir"),
        cache_dir=folder("cache_dir"),
        data_dir=folder("data_dir"),
        lock_dir=folder("lock_dir"),
        hub_cache=folders.hub_cache(env),
        docker_host=values["docker_host"] or env.get("DOCKER_HOST"),
        default_recipe=values["default_recipe"],
        rehearsal_engine=values["rehearsal_engine"] or None,
        hosts=Hosts(**{name: values[name] for name in _default_hosts()}),
        build=_build_network(values, env),
        node_name=socket.gethostname(),
        cluster=file.get("cluster"),
        sources=sources,
    )


def describe(settings: Settings) -> tuple[tuple[str, str, str], ...]:
    """Return name, value and source of every setting; a login within a URL is left out."""
    build = settings.build
    values = {
        **asdict(settings.hosts),
        "default_recipe": settings.default_recipe,
        "rehearsal_engine": settings.rehearsal_engine,
        "docker_host": settings.docker_host,
        "data_dir": settings.data_dir,
        "cache_dir": settings.cache_dir,
        "ca_bundle": build.ca_bundle,
        "index_url": build.index_url,
        "wheelhouse": " ".join(map(str, build.find_links)),
    }
    rows = [(name, values[name], settings.sources.get(name, "")) for name in sorted(values)]
    rows += [
        (name, getattr(settings, name), settings.sources.get(name, "default"))
        for name in ("config_dir", "state_dir", "hub_cache", "lock_dir")
    ]
    rows.append(("schema_dir", resources() / "recipes" / "schema", "shipped, for editors"))
    return tuple(
        (name, "" if value is None else LOGIN.sub("//***@", str(value)), source)
        for name, value, source in rows
    )


def _choose(
    env: Mapping[str, str], file: Mapping[str, Any], path: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """Return each setting's value and its source: environment before file before default."""
    values: dict[str, str] = {
        "default_recipe": "v2",
        "cache_dir": str(platformdirs.user_cache_path("sparkdeploy")),
        "data_dir": folders.data_dir(env),
        "state_dir": folders.state_dir(env),
        "lock_dir": SHARED_LOCK_DIR,
        **_default_hosts(),
    }
    sources = {}
    for name in {*values, *ConfigFile.model_fields} - {"cluster"}:
        variable = f"SPARKDEPLOY_{name.upper()}"
        if env.get(variable):
            values[name], sources[name] = env[variable], f"environment {variable}"
        elif file.get(name) is not None:
            values[name], sources[name] = file[name], str(path)
        else:
            values.setdefault(name, "")
            sources[name] = "default"
    return values, sources


_VARIABLES = {
    "ca_bundle": CA_BUNDLE_VARIABLES[1:],
    "index_url": ("PIP_INDEX_URL",),
    "wheelhouse": ("PIP_FIND_LINKS",),
    "docker_host": ("DOCKER_HOST",),
    "hub_cache": ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"),
    "config_dir": ("SPARKDEPLOY_CONFIG_DIR", "XDG_CONFIG_HOME"),
    "state_dir": ("XDG_STATE_HOME",),
    "cache_dir": ("XDG_CACHE_HOME",),
    "data_dir": ("XDG_DATA_HOME",),
}
"""Variables of other programs that decide a setting where neither ours nor config.yaml does."""
_OF_PIP = {"ca_bundle": "cert", "index_url": "index-url", "wheelhouse": "find-links"}


def _is_default(sources: Mapping[str, str], name: str) -> bool:
    return sources.get(name, "default") == "default"


def _origin(name: str, env: Mapping[str, str]) -> str:
    if variable := next((it for it in _VARIABLES[name] if env.get(it)), None):
        return f"environment {variable}"
    is_of_pip = name in _OF_PIP and bool(_pip_configuration(env)(_OF_PIP[name]))
    return "pip's configuration" if is_of_pip else "default"


def _absolute(text: str, where: str) -> Path:
    path = Path(text)
    with contextlib.suppress(RuntimeError):  # nobody's home: the tilde stays, and is refused
        path = path.expanduser()
    # Commands from two folders would keep to two locks, and find each other's state nowhere.
    if not path.is_absolute():
        raise RecipeError(
            f"{where} is not an absolute path: {text!r}", hint=f"give an absolute path as {where}"
        )
    return path


@functools.cache
def _default_hosts() -> Mapping[str, str]:
    return dict(yaml_text.load_file(Path(__file__).parent / "registries.yaml"))


def _read_config(path: Path) -> dict[str, Any]:
    # Not Path.exists: of a folder that this user may not search it raises, or says no.
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise RecipeError(
            f"{path} cannot be read: {error.strerror}",
            hint=f"ls -ld {shlex.quote(str(path.parent))}",
        ) from error
    content = yaml_text.load(yaml_text.read_text(path), str(path)) or {}
    try:
        return ConfigFile.model_validate(content).model_dump()
    except ValidationError as error:
        raise RecipeError(
            f"{path} is not a valid configuration",
            detail=mistakes(error, path),
            hint="keys: " + ", ".join(ConfigFile.model_fields),
        ) from error


def mistakes(error: ValidationError, file: Path, *above: str) -> Mistakes:
    """Return what is wrong with config.yaml, or with its part `above`, each with file and line."""
    lines: Mapping[yaml_text.KeyPath, int] = {}
    # Without the file no line of it is known.
    with contextlib.suppress(RecipeError):
        lines = yaml_text.load_mapping(yaml_text.read_text(file), str(file)).lines
    found = []
    for item in error.errors(include_url=False):
        # Items that are wrong themselves are not counted, and the list is not too short for that.
        if item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]:
            continue
        key = (*above, *item["loc"])
        name = ".".join(map(str, key)) or "the file"
        found.append(f"{_place(key, lines, file)}{name}: {in_words(item)}")
    return Mistakes("\n".join(found))


def in_words(item: Mapping[str, Any]) -> str:
    """Return what pydantic found wrong, in this program's words; the value is cut."""
    value, limits = LOGIN.sub("//***@", repr(item["input"]))[:80], item.get("ctx", {})
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(item["loc"][-1]), ConfigFile.model_fields, 1)
        return f"unknown key; did you mean {near[0]}?" if near else "unknown key"
    if item["type"] == "missing":
        return "it is missing"
    if item["type"] == "too_short":
        return f"{len(item['input'])} given, at least {limits['min_length']} wanted"
    for kind, wanted in _KINDS.items():
        if item["type"].startswith(kind):
            return f"{value} is not {wanted.format(**limits)}"
    return str(item["msg"].removeprefix("Value error, "))


def _place(key: yaml_text.KeyPath, lines: Mapping[yaml_text.KeyPath, int], file: Path) -> str:
    """Return the file and the line of the longest part of a key that stands there."""
    while key and key not in lines:
        key = key[:-1]
    return f"{file}:{lines[key]}: " if key else ""


def _build_network(values: Mapping[str, str], env: Mapping[str, str]) -> BuildNetwork:
    pip = _pip_configuration(env)
    index_url = values["index_url"] or env.get("PIP_INDEX_URL") or pip("index-url")
    extra_index_urls = env.get("PIP_EXTRA_INDEX_URL") or pip("extra-index-url")
    return BuildNetwork(
        ca_bundle=_ca_bundle(values["ca_bundle"], env, pip),
        proxies={name: env[name] for name in PROXY_VARIABLES if env.get(name)},
        index_url=index_url or None,
        # file:// indexes cannot be reached from inside a build; folders of wheels travel instead.
        extra_index_urls=tuple(
            url for url in extra_index_urls.split() if not url.startswith("file:")
        ),
        find_links=_wheelhouse(values["wheelhouse"], env, pip),
    )


def _ca_bundle(chosen: str, env: Mapping[str, str], pip: Callable[[str], str]) -> Path | None:
    if chosen:
        return Path(chosen).expanduser()
    # What other programs were told counts where it is there.
    paths = [env[name] for name in CA_BUNDLE_VARIABLES if env.get(name)] or [pip("cert")]
    return Path(paths[0]) if paths[0] and Path(paths[0]).is_file() else None


def _wheelhouse(chosen: str, env: Mapping[str, str], pip: Callable[[str], str]) -> tuple[Path, ...]:
    """One folder, or several with spaces between; a build refuses chosen ones that are missing."""
    if not chosen:
        folders = map(Path, (env.get("PIP_FIND_LINKS") or pip("find-links")).split())
        return tuple(folder for folder in folders if folder.is_dir())
    whole = Path(chosen).expanduser()
    return (whole,) if whole.is_dir() else tuple(Path(it).expanduser() for it in chosen.split())


def _pip_configuration(env: Mapping[str, str]) -> Callable[[str], str]:
    """Return a look-up into pip's own configuration files, which uv does not read."""
    own = env.get("PIP_CONFIG_FILE") or ""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(["/etc/pip.conf", Path("~/.config/pip/pip.conf").expanduser(), own])
    return lambda key: parser.get("global", key, fallback="").replace("\n", " ").strip()
