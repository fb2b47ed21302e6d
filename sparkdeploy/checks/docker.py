"""The Docker Engine: does it answer, can it reach the GPU, will it restart others for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import fail, ok, warn
from sparkdeploy.console import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.node.reports import EngineInfo

INSTALL_RUNTIME = (
    "sudo apt-get install nvidia-container-toolkit && "
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
)
LOW_DISK_BYTES = 20 * 10**9
"""Less than one engine's image and its build take (docs/engines.md)."""


def check_engine(info: EngineInfo | None, failure: str, fix: str | None) -> Finding:
    """Say whether the engine answers; `failure` and `fix` are the connection's own words."""
    if info is None:
        return fail("docker.engine", failure or "docker does not answer", fix or "start docker")
    return ok("docker.engine", f"Docker Engine {info.version} on {info.architecture}")


def check_nvidia_runtime(info: EngineInfo) -> Finding:
    """Say whether containers can reach the GPU."""
    if info.has_nvidia_runtime:
        return ok("docker.nvidia_runtime", "containers reach the GPU by the nvidia runtime")
    return fail(
        "docker.nvidia_runtime",
        "docker has no nvidia runtime, so containers cannot reach the GPU",
        INSTALL_RUNTIME,
    )


def check_low_disk(info: EngineInfo, free_bytes: int) -> Finding:
    """Say whether Docker's own disk is nearly full; the plan knows what a build takes."""
    seen = f"{format_bytes(free_bytes)} free under {info.root_dir}"
    if free_bytes >= LOW_DISK_BYTES:
        return ok("docker.disk", seen)
    return warn(
        "docker.disk", seen, "sparkdeploy clean, or `docker system df` to see what could go"
    )


def check_endless_restarts(names: Sequence[str]) -> Finding:
    """Name GPU containers that come back for ever: each death leaks unified memory.

    After about 35 restarts a Spark no longer took ssh (eugr/spark-vllm-docker#257).
    """
    check = "docker.restarts"
    if not names:
        return ok(check, "no GPU container is restarted for ever")
    return warn(
        check,
        f"{', '.join(names)}: restarted for ever, and every death costs memory",
        f"docker update --restart=no {' '.join(names)}",
    )
