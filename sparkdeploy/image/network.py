"""How a build reaches indexes and registries: files and arguments that stay in no image."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import requests
from requests.auth import HTTPBasicAuth
from requests.utils import get_auth_from_url

from sparkdeploy.bounded_http import BoundedSession, without_login
from sparkdeploy.errors import RecipeError
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.lock import PackagePin, WheelPlatform, index_variables, wheels_in
from sparkdeploy.image.stages import Stage
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import read_bytes

Login = Callable[[requests.PreparedRequest], requests.PreparedRequest]

DOWNLOAD_TIMEOUT_S = 300
MAX_CA_BYTES = 16 << 20
KNOCK_TIMEOUT_S = 10
_CA_BUNDLE = "/network/ca.pem"
_WHEELS = "/network/wheels"


def refuse_credentials(settings: Settings) -> None:
    """Raise RecipeError for a login in an index URL: it would stay in build caches and logs."""
    named = (
        ("index_url", settings.build.index_url),
        *(("extra index URL", url) for url in settings.build.extra_index_urls),
        ("torch_cpu_index", settings.hosts.torch_cpu_index),
        ("torch_cuda_index", settings.hosts.torch_cuda_index),
    )
    for name, url in named:
        parts = urlsplit(url or "")
        if parts.username or parts.password:
            raise RecipeError(
                f"the {name} for {parts.hostname} has credentials in it",
                hint="use an index without a login, or a folder of wheels as `wheelhouse`",
            )


def refuse_missing(settings: Settings) -> None:
    bundle, folders = settings.build.ca_bundle, settings.build.find_links
    missing = [("ca_bundle", bundle)] if bundle is not None and not bundle.is_file() else []
    missing += [("wheelhouse", folder) for folder in folders if not folder.is_dir()]
    for name, path in missing:
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
    """Proxies go by names that Docker does not keep."""
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
    return "none" if _is_complete(stage, find_wheels(stage, settings.build.find_links)) else None


def files(stage: Stage, settings: Settings) -> tuple[ContextFile, ...]:
    """Return the `network/` folder of a build's context; empty for a stage that needs none."""
    if not stage.needs_network:
        return ()
    refuse_credentials(settings)
    refuse_missing(settings)
    wheels = find_wheels(stage, settings.build.find_links)
    made: dict[str, bytes | Path] = {f"wheels/{wheel.name}": wheel for wheel in wheels}
    made["environment"] = _environment(stage, settings, wheels).encode()
    if stage.compiled is not None:
        made[f"compiled/{stage.compiled.name}"] = stage.compiled
    if settings.build.ca_bundle is not None:
        made["ca.pem"] = read_bytes(settings.build.ca_bundle, MAX_CA_BYTES)
        made["apt.conf"] = f'Acquire::https::CAInfo "{_CA_BUNDLE}";\n'.encode()
    return tuple(ContextFile(f"network/{name}", content) for name, content in made.items())


def find_wheels(stage: Stage, folders: Iterable[Path]) -> dict[Path, PackagePin]:
    """Return the wheels of these folders that the stage's lock pins, each file name once."""
    if not stage.pins:
        return {}
    found: dict[str, tuple[Path, PackagePin]] = {}
    for path, pin in wheels_in(folders, WheelPlatform(stage.architecture, stage.python)):
        if pin in stage.pins:
            found.setdefault(path.name, (path, pin))
    return dict(found.values())


def _environment(stage: Stage, settings: Settings, wheels: Mapping[Path, PackagePin]) -> str:
    network, torch_index = settings.build, _torch_index(stage, settings, wheels)
    variables = {
        **network.proxies,
        **index_variables(network),
        # Every wheel is pinned by hash, so it does not matter which index it comes from.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "UV_HTTP_TIMEOUT": str(DOWNLOAD_TIMEOUT_S),
        "SOURCE_FORGE": settings.hosts.source_forge,
        "TORCH_SOURCE": f"--default-index {torch_index}" if torch_index else "--no-index",
    }
    if network.ca_bundle is not None:
        certificates = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
        variables |= dict.fromkeys(certificates, _CA_BUNDLE)
        variables["APT_CONFIG"] = "/network/apt.conf"
    if wheels:
        variables |= {"UV_FIND_LINKS": _WHEELS, "PIP_FIND_LINKS": _WHEELS}
    if _is_complete(stage, wheels):
        variables |= {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    return "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())
    )


def _is_complete(stage: Stage, wheels: Mapping[Path, PackagePin]) -> bool:
    return bool(stage.pins) and set(wheels.values()) >= set(stage.pins)


def has_torch_at_hand(stage: Stage, settings: Settings) -> bool:
    """Return whether an engine's torch lies in a folder of wheels, or the index of it answers."""
    index = _torch_index(stage, settings, find_wheels(stage, settings.build.find_links))
    return not index or refusal(index, settings) is None


def refusal(url: str, settings: Settings) -> Exception | None:
    """Ask a host for anything; return why nothing came back."""
    try:
        with BoundedSession(KNOCK_TIMEOUT_S) as session:
            session.head(
                url,
                timeout=KNOCK_TIMEOUT_S,
                verify=settings.build.verify,
                allow_redirects=False,
                auth=login_of(url),
            )
    except (requests.RequestException, OSError) as error:
        return error
    return None


def _torch_index(stage: Stage, settings: Settings, wheels: Mapping[Path, PackagePin]) -> str:
    """Return the index that an engine's torch comes from; empty where its wheels are at hand."""
    torch = {pin for pin in stage.pins if pin.name == "torch"}
    if torch and torch <= set(wheels.values()):
        return ""
    hosts = settings.hosts
    return hosts.torch_cuda_index if stage.runs_on == "cuda" else hosts.torch_cpu_index


def login_of(url: str) -> Login:
    """Return what adds the login of an index's address; nothing of ~/.netrc is sent."""
    user, password = get_auth_from_url(url)
    return HTTPBasicAuth(user, password) if user or password else without_login
