"""What Docker's JSON says, as our own facts."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparkdeploy.node.container import ContainerFact, ImageFact, ListedContainer

CDI_GPUS = "nvidia.com/gpu=all"
_SYSTEM_CONTAINERD = "/run/containerd/containerd.sock"
CONTAINERD_ROOT = "/var/lib/containerd"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    name: str
    version: str
    root_dir: str
    """The folder that fills up with images."""
    architecture: str
    memory_bytes: int
    cpu_count: int
    has_nvidia_runtime: bool
    has_containerd_store: bool = False
    """Images are kept by containerd, packed and unpacked, and named by their manifests."""
    address: str = ""
    cdi_device: str = ""
    """By which a container gets the GPUs where there is no nvidia runtime, of /etc/cdi."""
    is_rootless: bool = False
    cgroup_driver: str = ""
    proxy: str = ""
    """HOST:PORT through which the engine itself fetches images; empty for none."""
    other_context: "Context | None" = None
    """Whom Docker's own command asks, where that is another engine."""
    client_proxy: str | None = None
    """HOST:PORT that builds and containers of this user get; None where nobody asked."""


@dataclass(frozen=True, slots=True)
class RegistryImage:
    digest: str
    """sha256:..., of one image or of a list of images for several platforms."""
    architectures: tuple[str, ...]
    """As Docker spells them; empty where the registry does not say."""


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """One message of a running build: a line of output, or bytes of a pull."""

    text: str
    done_bytes: int | None = None
    total_bytes: int | None = None
    layer: str | None = None
    image_id: str | None = None
    error: str | None = None


def parse_time(text: str) -> datetime | None:
    """Read Docker's time to the microsecond; None for its `never`, which is year 1."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.year > 1 else None


def read_engine_info(item: Mapping[str, Any], address: str = "") -> EngineInfo:
    status = [value for pair in item.get("DriverStatus") or () for value in pair or ()]
    has_containerd_store = "io.containerd.snapshotter.v1" in status
    containerd = (item.get("Containerd") or {}).get("Address")  # engines before 27 do not say
    is_elsewhere = has_containerd_store and containerd == _SYSTEM_CONTAINERD
    return EngineInfo(
        name=item.get("Name", ""),
        version=item.get("ServerVersion", ""),
        root_dir=CONTAINERD_ROOT if is_elsewhere else item.get("DockerRootDir", ""),
        architecture=item.get("Architecture", ""),
        memory_bytes=int(item.get("MemTotal") or 0),
        cpu_count=int(item.get("NCPU") or 0),
        has_nvidia_runtime="nvidia" in (item.get("Runtimes") or {}),
        has_containerd_store=has_containerd_store,
        address=address,
        cdi_device=_cdi_device(item),
        is_rootless=any("rootless" in str(it) for it in item.get("SecurityOptions") or ()),
        cgroup_driver=item.get("CgroupDriver") or "",
        proxy=_host_of(item.get("HttpsProxy") or item.get("HttpProxy")),
    )


def _cdi_device(item: Mapping[str, Any]) -> str:
    """Return the name of all GPUs, or of the first; nothing where the engine has none by CDI."""
    if "DiscoveredDevices" not in item:
        # Engines before 28.3 say which folders they read, and not what is in them.
        return CDI_GPUS if item.get("CDISpecDirs") else ""
    found = [str((it or {}).get("ID")) for it in item["DiscoveredDevices"] or ()]
    gpus = sorted(name for name in found if name.startswith(CDI_GPUS.partition("=")[0] + "="))
    return CDI_GPUS if CDI_GPUS in gpus else next(iter(gpus), "")


def read_failure(message: Mapping[str, Any]) -> str | None:
    """Return why a build or a load failed, where a message of its stream says so."""
    # `error` is deprecated from API 1.48 on, in favour of what engines have said beside it.
    if "errorDetail" not in message and "error" not in message:
        return None
    detail = message.get("errorDetail")
    text = detail.get("message") if isinstance(detail, dict) else detail
    return str(text or message.get("error") or "").strip() or "it failed, and did not say why"


def read_build_event(message: Mapping[str, Any]) -> BuildEvent:
    failure = read_failure(message)
    if failure is not None:
        return BuildEvent(text=failure, error=failure)
    progress = message.get("progressDetail") or {}
    aux = message.get("aux") or {}
    text = message.get("stream") or message.get("status") or ""
    return BuildEvent(
        text=str(text),
        done_bytes=progress.get("current"),
        total_bytes=progress.get("total"),
        layer=message.get("id"),
        image_id=aux.get("ID"),
    )


def read_registry_image(item: Mapping[str, Any]) -> RegistryImage | None:
    """Return None where no digest is told."""
    digest = (item.get("Descriptor") or {}).get("digest")
    named = (platform.get("architecture") for platform in item.get("Platforms") or ())
    # An attestation beside the images is of no architecture.
    known = tuple(dict.fromkeys(str(name) for name in named if name and name != "unknown"))
    return RegistryImage(str(digest), known) if digest else None


def read_image(item: Mapping[str, Any]) -> ImageFact:
    """Read an image of a list, or one that was inspected and has its labels further down."""
    config = item.get("Config") or item
    return ImageFact(
        image_id=item["Id"],
        tags=tuple(tag for tag in item.get("RepoTags") or () if tag != "<none>:<none>"),
        labels=config.get("Labels") or {},
        size_bytes=int(item.get("Size") or 0),
        architecture=item.get("Architecture") or "",
        digests=tuple(name for name in item.get("RepoDigests") or () if "<none>" not in name),
        volumes=tuple(sorted(config.get("Volumes") or {})),
        layers=tuple((item.get("RootFS") or {}).get("Layers") or ()),
        configuration=_run_configuration(config) if "Config" in item else "",
    )


def _run_configuration(config: Mapping[str, Any]) -> str:
    names = ("Entrypoint", "Cmd", "Env", "User", "WorkingDir", "Volumes", "Shell", "Healthcheck")
    return json.dumps({name: config.get(name) or None for name in names}, sort_keys=True)


def read_container(item: Mapping[str, Any]) -> ContainerFact:
    state, user = item["State"], (item["Config"].get("User") or "").partition(":")[0]
    return ContainerFact(
        container_id=item["Id"],
        name=str(item["Name"]).lstrip("/"),
        image_id=item["Image"],
        state=state["Status"],
        labels=item["Config"].get("Labels") or {},
        exit_code=state.get("ExitCode"),
        oom_killed=bool(state.get("OOMKilled")),
        error=state.get("Error") or "",
        created_at=item.get("Created") or "",
        started_at=state.get("StartedAt") or "",
        finished_at=state.get("FinishedAt") or "",
        pid=state.get("Pid") or None,
        uid=int(user) if re.fullmatch("[0-9]{1,10}", user) else None,
    )


def read_listed_container(item: Mapping[str, Any]) -> ListedContainer:
    names = (str(name).lstrip("/") for name in item.get("Names") or ())
    # Behind its own name stand those that linked containers know it by: OTHER/ALIAS.
    own = (name for name in names if "/" not in name)
    return ListedContainer(
        container_id=item["Id"],
        name=next(own, ""),
        image_id=item.get("ImageID") or "",
        state=item.get("State") or "",
        labels=item.get("Labels") or {},
    )


def last_end_s(fact: ContainerFact) -> float | None:
    """Return when an earlier run ended, by Docker's own clock; None when there was none."""
    # The start of this run is no good: its first lines may be older than the time that Docker
    # notes. Where the clock was set back in between, nothing can be told apart.
    ended, started = map(parse_time, (fact.finished_at, fact.started_at))
    return ended.timestamp() if ended and started and started >= ended else None


def keeps_gpu_for_ever(item: Mapping[str, Any]) -> bool:
    """Say whether Docker restarts a container always that has GPUs, by request or by runtime."""
    settings = item.get("HostConfig") or {}
    policy, requests = settings.get("RestartPolicy") or {}, settings.get("DeviceRequests") or ()
    uses_gpu = settings.get("Runtime") == "nvidia" or any(
        "gpu" in group for request in requests for group in request.get("Capabilities") or ()
    )
    uses_gpu |= any(CDI_GPUS[:11] in str(request.get("DeviceIDs")) for request in requests)
    return uses_gpu and policy.get("Name") in {"always", "unless-stopped"}


DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""What no proxy reaches: a guard asks its own server there."""
_BYPASS = ("NO_PROXY", "no_proxy")


@dataclass(frozen=True, slots=True)
class Context:
    """Whom Docker's command asks: a context by name, or the variable DOCKER_HOST."""

    name: str
    address: str
    """Empty where the context is named and not described."""


def config_folder(env: Mapping[str, str] = os.environ) -> Path:
    folder = env.get("DOCKER_CONFIG")
    return Path(folder) if folder else Path("~/.docker").expanduser()


def current_context(env: Mapping[str, str] = os.environ) -> Context:
    """Return whom Docker's command asks now; a file that nobody can read says nothing."""
    if address := env.get("DOCKER_HOST"):
        return Context("DOCKER_HOST", address)
    folder = config_folder(env)
    name = env.get("DOCKER_CONTEXT") or _read(folder / "config.json").get("currentContext")
    if not isinstance(name, str) or name in {"", "default"}:
        return Context("default", DEFAULT_ADDRESS)
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()
    meta: Any = _read(folder / "contexts" / "meta" / digest / "meta.json")
    for key in ("Endpoints", "docker", "Host"):
        meta = meta.get(key) if isinstance(meta, dict) else None
    return Context(name, meta if isinstance(meta, str) else "")


def other_context(address: str, env: Mapping[str, str] = os.environ) -> Context | None:
    """Return whom Docker's command asks where that is not the engine at an address."""
    found = current_context(env)
    return None if _real(found.address) == _real(address or DEFAULT_ADDRESS) else found


def client_proxy(env: Mapping[str, str] = os.environ) -> str:
    """Return HOST:PORT of the proxy of Docker's config.json, else of this shell; empty for none."""
    given = _proxies(env).get("default", {})
    named = [given.get(f"{it}Proxy") for it in ("https", "http")]
    variables = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")
    return _host_of(next(filter(None, (*named, *map(env.get, variables))), None))


def _proxies(env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the proxies that Docker's config.json has for containers, by their engine."""
    section = _read(config_folder(env) / "config.json").get("proxies")
    engines = section.items() if isinstance(section, dict) else ()
    return {name: given for name, given in engines if isinstance(given, dict)}


def _host_of(address: object) -> str:
    """Return the host and the port of a proxy's address, which may hold a login."""
    if not isinstance(address, str):
        return ""
    return address.rpartition("://")[2].rpartition("@")[2].partition("/")[0].lower()


def environment(own: Mapping[str, str], env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return a container's variables; where a proxy is set, loopback is not asked through it."""
    given = _proxies(env).values()
    in_own = any(name.lower().endswith("_proxy") and name not in _BYPASS for name in own)
    if not in_own and not any(it.get(f"{kind}Proxy") for it in given for kind in ("http", "https")):
        return dict(own)
    named = [own.get(name) for name in _BYPASS] + [it.get("noProxy") for it in given]
    words = ",".join(text for text in named if isinstance(text, str)).split(",")
    bypass = ",".join(dict.fromkeys([*filter(None, map(str.strip, words)), *LOOPBACK]))
    return {**own, **dict.fromkeys(_BYPASS, bypass)}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _real(address: str) -> str:
    """Return an address with the links of a socket's path followed: /run is /var/run as well."""
    path = address.removeprefix("unix://")
    return os.path.realpath(path) if path.startswith("/") else address
