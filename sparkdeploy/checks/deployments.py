"""What runs already: half-done replacements, dead containers, promises beyond the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import ok, warn
from sparkdeploy.console import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.node.container import ContainerFact

REPLACED_SUFFIX = "-replaced"


def deployment_findings(
    containers: Sequence[ContainerFact], *, memory_total_bytes: int | None, booting: frozenset[str]
) -> Iterator[Finding]:
    """Yield what our own containers say of themselves."""
    serving = [item for item in containers if item.deployment]
    yield _check_state(serving)
    if memory_total_bytes is not None:
        yield _check_promises(serving, memory_total_bytes)
    yield _check_boot(serving, booting)


def _check_state(containers: Sequence[ContainerFact]) -> Finding:
    check = "deployments.state"
    halves = [item.deployment for item in containers if item.name.endswith(REPLACED_SUFFIX)]
    if halves:
        return warn(
            check,
            f"{', '.join(halves)}: half replaced by an `up` that was interrupted",
            f"sparkdeploy rollback {halves[0]}",
        )
    dead = [item for item in containers if not item.is_running]
    if dead:
        named = ", ".join(f"{item.deployment} ({item.state} {item.exit_code})" for item in dead)
        return warn(check, f"not running: {named}", f"sparkdeploy logs {dead[0].deployment}")
    if not containers:
        return ok(check, "nothing is deployed")
    return ok(check, ", ".join(f"{item.deployment} runs" for item in containers))


def _check_promises(containers: Sequence[ContainerFact], total_bytes: int) -> Finding:
    check = "deployments.memory"
    running = [item for item in containers if item.is_running]
    promised = sum(item.promised_bytes for item in running)
    seen = f"{format_gib(promised)} of {format_gib(total_bytes)} promised to deployments"
    if promised <= total_bytes:
        return ok(check, seen)
    return warn(check, seen, f"sparkdeploy down {running[-1].deployment}")


def _check_boot(containers: Sequence[ContainerFact], booting: frozenset[str]) -> Finding:
    """A restart is never automatic: what should survive a reboot has a unit."""
    check = "deployments.boot"
    names = [item.deployment for item in containers if item.is_running]
    gone = [name for name in names if name not in booting]
    if not gone:
        return ok(check, "every deployment has a systemd unit" if names else "nothing to start")
    return ok(
        check,
        f"{', '.join(gone)}: not started again after a reboot "
        "(`sparkdeploy export systemd` writes the unit)",
    )
