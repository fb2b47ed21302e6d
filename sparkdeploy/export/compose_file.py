"""A deployment's container as a Compose file: the same spec, for those who run Compose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy import yaml_text
from sparkdeploy.errors import UsageError
from sparkdeploy.node.container import LOG_DRIVER, LOG_SIZE

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerSpec


def compose_text(spec: ContainerSpec, *, prepare: str) -> str:
    """Return the Compose file; `prepare` is the command that makes what it mounts.

    Raises UsageError for a text that is no Unicode, such as the name of a folder in another
    encoding: YAML cannot hold it.
    """
    content = yaml_text.dump({"services": {"vllm": _without_interpolation(_service(spec))}})
    comment = prepare.encode("unicode_escape").decode()
    return (
        f"# {spec.name}: written by `sparkdeploy export compose`.\n"
        f"# Image, checkpoint and folders are made by: {comment}\n"
        "# The memory guard is the container's first process and restarts vLLM by itself.\n"
        f"{content}"
    )


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
        "restart": spec.restart_policy,
        "stop_signal": "SIGTERM",
        "stop_grace_period": f"{spec.stop_timeout_s}s",
        "logging": {"driver": LOG_DRIVER, "options": LOG_SIZE},
    }
    if spec.gpus == "all":
        gpus = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpus]}}}
    return {key: value for key, value in service.items() if value not in ([], {})}


def _without_interpolation(value: Any) -> Any:  # noqa: ANN401 - any YAML value
    """Compose puts variables of its caller's environment where a `$` stands, secrets too."""
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UsageError(f"{value!r} is no UTF-8 and cannot stand in a Compose file")
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {name: _without_interpolation(item) for name, item in value.items()}
    return [_without_interpolation(item) for item in value] if isinstance(value, list) else value
