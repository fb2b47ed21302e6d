"""Compose files: of a deployment's own container, and of what runs beside deployments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import labels, yaml_text
from sparkdeploy.errors import UsageError
from sparkdeploy.node.container import LOG_DRIVER, LOG_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.node.container import ContainerSpec
    from sparkdeploy.settings import Hosts

HEALTH_EVERY_S = 30
HEALTH_TIMEOUT_S = 10
_HEALTH_PROGRAM = (
    "import http.client as c; h = c.HTTPConnection('127.0.0.1', {port}, timeout=5); "
    "h.request('GET', '/health'); raise SystemExit(h.getresponse().status != 200)"
)


def compose_text(spec: ContainerSpec, *, prepare: str) -> str:
    """Return the Compose file; `prepare` is the command that makes what it mounts.

    Raises UsageError for a text that is no Unicode, such as the name of a folder in another
    encoding: YAML cannot hold it.
    """
    content = services_text({"vllm": _service(spec)})
    comment = prepare.encode("unicode_escape").decode()
    return (
        f"# {spec.name}: written by `sparkdeploy export compose`.\n"
        f"# Image, checkpoint and folders are made by: {comment}\n"
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
    """Ask /health, without a key, by the Python that the guard runs on: an image may lack curl.

    Docker only notes what it says; the guard is who starts vLLM again. {} where no port is told:
    a worker has no API.
    """
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
            raise UsageError(f"{value!r} is no UTF-8 and cannot stand in a Compose file")
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {name: _without_interpolation(item) for name, item in value.items()}
    return [_without_interpolation(item) for item in value] if isinstance(value, list) else value


COMPOSE_FILE = "compose.yaml"
WRITTEN_BY = "written by `sparkdeploy export"
"""In each file that a later export may replace."""
UNCHECKED_LISTENER = (
    "a client does not look who listens on a deployment's port: while nothing of yours does, "
    "another user of that machine can, and would get what is sent, the key too"
)
"""What sparkdeploy's own requests are guarded against, and those of what is exported are not."""


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


def shipped_file(path: str, *, is_program: bool = False) -> ExportedFile:
    """Return a file of this package that is exported as it is."""
    text = Path(__file__).with_name(path).read_text(encoding="utf-8")
    return ExportedFile(path, text, is_program)


def image_of(name: str, hosts: Hosts) -> str:
    image = yaml_text.load_file(Path(__file__).with_name("images.yaml"))[name]
    return f"{getattr(hosts, image['registry'])}/{image['image']}:{image['tag']}"


def neighbour_service(image: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML content
    """Return a service on the machine's own network, for that is where deployments listen.

    It has no capability, and `more` takes the place of what stands here.
    """
    return {
        "image": image,
        "network_mode": "host",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "restart": "unless-stopped",
        "logging": {"driver": LOG_DRIVER, "options": LOG_SIZE},
        **more,
    }


def read_only(source: str, target: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target, "read_only": True}


def writable(source: str, target: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target}


def compose_of(
    command: str,
    services: Mapping[str, Any],
    *,
    note: str = "",
    **more: Any,  # noqa: ANN401
) -> ExportedFile:
    """Return the Compose file of these services, as `sparkdeploy export COMMAND` writes it.

    `note` stands in a comment at its head.
    """
    return _marked(COMPOSE_FILE, command, note, services_text(services, **more))


def settings_of(
    command: str, path: str, content: dict[str, Any], *, note: str = ""
) -> ExportedFile:
    """Return a YAML file of settings, as `sparkdeploy export COMMAND` writes it."""
    return _marked(path, command, note, yaml_text.dump(content))


def _marked(path: str, command: str, note: str, text: str) -> ExportedFile:
    head = f"# {WRITTEN_BY} {command}`.\n" + (f"# Known: {note}.\n" if note else "")
    return ExportedFile(path, head + text)
