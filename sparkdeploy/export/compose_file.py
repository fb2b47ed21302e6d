"""Compose files: of a deployment's own container, and of what runs beside deployments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdeploy import labels, yaml_text
from sparkdeploy.errors import UsageError
from sparkdeploy.node.container import LOG_DRIVER, LOG_SIZE, ContainerSpec

HEALTH_EVERY_S = 30
HEALTH_TIMEOUT_S = 10
_HEALTH_PROGRAM = (
    "import http.client as c; h = c.HTTPConnection('127.0.0.1', {port}, timeout=5); "
    "h.request('GET', '/health'); raise SystemExit(h.getresponse().status != 200)"
)


_NOT_WHOLE = "# NOT COMPLETE: what stands in <...> is known after that command; export it again.\n"


def compose_text(spec: ContainerSpec, *, prepare: str, is_whole: bool = True) -> str:
    """Return the Compose file; `prepare` makes what it mounts. UsageError for no Unicode.

    Without `is_whole` it says that something in it is not known before.
    """
    content = services_text({"vllm": _service(spec)})
    comment = prepare.encode("unicode_escape").decode()
    return (
        f"# {spec.name}: written by `sparkdeploy export compose`.\n"
        f"# Image, checkpoint and folders are made by: {comment}\n"
        f"{'' if is_whole else _NOT_WHOLE}"
        "# The memory guard is the container's first process and restarts vLLM by itself.\n"
        f"{content}"
    )


def services_text(services: Mapping[str, Any], **more: Any) -> str:  # noqa: ANN401 - YAML content
    """Return services, and what stands beside them, as a Compose file that expands nothing."""
    return yaml_text.dump(_without_interpolation({"services": dict(services), **more}))


def _service(spec: ContainerSpec) -> dict[str, Any]:
    service: dict[str, Any] = {
        "image": spec.image,
        "container_name": spec.name,
        "entrypoint": list(spec.entrypoint),
        "command": list(spec.command),
        "environment": dict(spec.env),
        "labels": dict(spec.labels),
        "user": spec.user,
        "network_mode": spec.network,
        "volumes": [
            {"type": "bind", "source": it.source, "target": it.target, "read_only": it.mode == "ro"}
            for it in spec.mounts
        ],
        "tmpfs": [f"{target}:{options}" for target, options in spec.tmpfs.items()],
        "shm_size": spec.shm_size_bytes,
        "read_only": spec.read_only_root,
        "cap_drop": list(spec.cap_drop),
        "cap_add": list(spec.cap_add),
        "security_opt": list(spec.security_options),
        "devices": list(spec.devices),
        "ulimits": {item.name: {"soft": item.value, "hard": item.value} for item in spec.ulimits},
        "healthcheck": _health_check(spec),
        "restart": spec.restart_policy,
        "stop_signal": "SIGTERM",
        "stop_grace_period": f"{spec.stop_timeout_s}s",
        "logging": {"driver": LOG_DRIVER, "options": LOG_SIZE},
    }
    if spec.gpus == "all":
        gpus = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpus]}}}
    return {key: value for key, value in service.items() if value not in ([], {})}


def _health_check(spec: ContainerSpec) -> dict[str, Any]:
    """Ask /health by the guard's Python, as an image may lack curl; {} for a worker."""
    port = spec.labels.get(labels.PORT)
    if not port:
        return {}
    timeout_s = int(float(spec.labels.get(labels.STARTUP_TIMEOUT) or 0))
    return {
        "test": ["CMD", spec.entrypoint[0], "-I", "-c", _HEALTH_PROGRAM.format(port=port)],
        "interval": f"{HEALTH_EVERY_S}s",
        "timeout": f"{HEALTH_TIMEOUT_S}s",
        "retries": 3,
        "start_period": f"{timeout_s}s",
    }


def _without_interpolation(value: Any) -> Any:  # noqa: ANN401 - any YAML value
    """Compose puts variables of its caller's environment where a `$` stands, secrets too."""
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UsageError(f"not UTF-8, which a Compose file needs: {value!r}")
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {name: _without_interpolation(item) for name, item in value.items()}
    return [_without_interpolation(item) for item in value] if isinstance(value, list) else value


WRITTEN_BY = "written by `sparkdeploy export"
"""In each file that a later export may replace."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    path: str
    text: str
    is_program: bool = False


@dataclass(frozen=True, slots=True)
class Export:
    """Files that belong together; the first is the one to print where no folder is named."""

    files: tuple[ExportedFile, ...]
    folders: tuple[str, ...] = ()
    user: str = ""
    """UID:GID whose these folders are; empty where there is none."""
    next_step: str = ""
    notes: tuple[str, ...] = ()
