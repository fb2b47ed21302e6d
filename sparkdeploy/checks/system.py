"""The machine beyond GPU and memory: processor, operating system."""

from __future__ import annotations

from sparkdeploy.checks.finding import Finding, fail, not_seen, ok


def check_architecture(found: str | None) -> Finding:
    """Say whether engines are built for this processor."""
    check = "machine.architecture"
    if found is None:
        return not_seen(check, "`uname -m` did not answer")
    if found in {"aarch64", "x86_64"}:
        return ok(check, found)
    return fail(
        check, f"there is no vLLM for {found}", "use a machine with x86_64 or aarch64 processors"
    )


def check_system(name: str | None) -> Finding:
    """Name the operating system, for whoever reads the report."""
    check = "machine.system"
    return ok(check, name) if name else not_seen(check, "/etc/os-release cannot be read")
