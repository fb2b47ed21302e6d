"""How a build reaches the world: files and arguments that never stay in an image."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sparkdeploy.errors import RecipeError
from sparkdeploy.image import lock
from sparkdeploy.image.context import ContextFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sparkdeploy.image.stages import Stage
    from sparkdeploy.settings import BuildNetwork, Settings

DOWNLOAD_TIMEOUT_S = 300
_CA_BUNDLE = "/network/ca.pem"
_WHEELS = "/network/wheels"


def refuse_credentials(settings: Settings) -> None:
    """Raise RecipeError when an index URL holds a user name or a password.

    It would end up in Docker's build cache and in logs.
    """
    named = [("index_url", settings.build.index_url)]
    named += [("extra index URL", url) for url in settings.build.extra_index_urls]
    named.append(("torch_cpu_index", settings.hosts.torch_cpu_index))
    named.append(("torch_cuda_index", settings.hosts.torch_cuda_index))
    for name, url in named:
        parts = urlsplit(url or "")
        if parts.username or parts.password:
            raise RecipeError(
                f"the {name} for {parts.hostname} has credentials in it",
                hint="use an index without a login, or a folder of wheels as `wheelhouse`",
            )


def refuse_missing(settings: Settings) -> None:
    """Raise RecipeError when a file or folder that the user named for builds is not there."""
    bundle = settings.build.ca_bundle
    named = [("ca_bundle", bundle, bundle is None or bundle.is_file())]
    named += [("wheelhouse", folder, folder.is_dir()) for folder in settings.build.find_links]
    for name, path, is_there in named:
        if not is_there:
            raise RecipeError(
                f"{name}: {path} is not there",
                hint=f"it is set by {settings.sources.get(name, 'the environment')}",
            )


def registry_reference(image: str, container_registry: str) -> str:
    """Return an image's name at the configured registry; one that names its own stays."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"{container_registry}/library/{image}"
    if "." in first or ":" in first or first == "localhost":
        return image
    return f"{container_registry}/{image}"


def build_args(stage: Stage, settings: Settings) -> dict[str, str]:
    """Return the arguments that travel with a build beside the stage's own.

    Proxies go by Docker's predefined names, which it keeps out of the history.
    """
    arguments = dict(settings.build.proxies) if stage.needs_network else {}
    if stage.registry_image is not None:
        arguments["BASE_IMAGE"] = registry_reference(
            stage.registry_image, settings.hosts.container_registry
        )
    return arguments


def build_network(stage: Stage, settings: Settings) -> str | None:
    """Return the network mode of a build: `none` where nothing has to be fetched.

    None means Docker's default. A base is not known to be complete before apt has looked.
    """
    if not stage.needs_network:
        return "none"
    wheels = find_wheels(stage, settings.build.find_links)
    return "none" if stage.pins and _held(stage, wheels) >= set(stage.pins) else None


def files(stage: Stage, settings: Settings) -> tuple[ContextFile, ...]:
    """Return the `network/` folder of a build's context; empty for a stage that needs none.

    Raises RecipeError for an index URL with credentials and for a named path that is not there.
    """
    if not stage.needs_network:
        return ()
    refuse_credentials(settings)
    refuse_missing(settings)
    wheels = tuple(find_wheels(stage, settings.build.find_links))
    made = [ContextFile("network/environment", _environment(stage, settings, wheels).encode())]
    made += [ContextFile(f"network/wheels/{wheel.name}", wheel) for wheel in wheels]
    if stage.compiled is not None:
        made.append(ContextFile(f"network/compiled/{stage.compiled.name}", stage.compiled))
    if settings.build.ca_bundle is not None:
        made.append(ContextFile("network/ca.pem", settings.build.ca_bundle.read_bytes()))
        made.append(
            ContextFile("network/apt.conf", f'Acquire::https::CAInfo "{_CA_BUNDLE}";\n'.encode())
        )
    return tuple(made)


def find_wheels(stage: Stage, folders: Iterable[Path]) -> Iterable[Path]:
    """Yield the wheels of these folders that the stage's lock pins, each file name once."""
    seen: set[str] = set()
    for folder in folders:
        for path in sorted(folder.glob("*.whl")):
            pin = lock.wheel_pin(path.name, architecture=stage.architecture, python=stage.python)
            if pin in stage.pins and path.name not in seen:
                seen.add(path.name)
                yield path


def _environment(stage: Stage, settings: Settings, wheels: Sequence[Path]) -> str:
    """Return a shell file with what apt, pip and uv need to know."""
    network = settings.build
    held = _held(stage, wheels)
    variables = {
        **network.proxies,
        **_certificate_variables(network),
        **_index_variables(network),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "UV_HTTP_TIMEOUT": str(DOWNLOAD_TIMEOUT_S),
        "SOURCE_FORGE": settings.hosts.source_forge,
        "TORCH_SOURCE": _torch_source(stage, settings, held),
    }
    if wheels:
        variables |= {"UV_FIND_LINKS": _WHEELS, "PIP_FIND_LINKS": _WHEELS}
    if stage.pins and held >= set(stage.pins):
        variables |= {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    return "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())
    )


def _held(stage: Stage, wheels: Iterable[Path]) -> set[lock.Pin | None]:
    return {
        lock.wheel_pin(wheel.name, architecture=stage.architecture, python=stage.python)
        for wheel in wheels
    }


def _certificate_variables(network: BuildNetwork) -> dict[str, str]:
    if network.ca_bundle is None:
        return {}
    names = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
    return {**dict.fromkeys(names, _CA_BUNDLE), "APT_CONFIG": "/network/apt.conf"}


def _index_variables(network: BuildNetwork) -> dict[str, str]:
    # Every wheel is pinned by hash, so it does not matter which index it comes from.
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    if network.index_url:
        variables |= {"UV_DEFAULT_INDEX": network.index_url, "PIP_INDEX_URL": network.index_url}
    if network.extra_index_urls:
        urls = " ".join(network.extra_index_urls)
        variables |= {"UV_INDEX": urls, "PIP_EXTRA_INDEX_URL": urls}
    return variables


def _torch_source(stage: Stage, settings: Settings, held: set[lock.Pin | None]) -> str:
    """Return where CPU torch comes from: a wheel that travels along, or PyTorch's index."""
    torch = {pin for pin in stage.pins if pin.name == "torch"}
    if torch and torch <= held:
        return "--no-index"
    hosts = settings.hosts
    is_cuda = stage.runs_on == "cuda"
    return f"--default-index {hosts.torch_cuda_index if is_cuda else hosts.torch_cpu_index}"
