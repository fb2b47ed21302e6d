"""Drivers, kernels and firmware that are known to fail on a Spark (known_bad.yaml)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import yaml_text
from sparkdeploy.checks.finding import not_seen, ok, warn

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from sparkdeploy.checks.finding import Finding


@dataclass(frozen=True, slots=True)
class KnownBad:
    part: str
    """`driver`, `kernel`, or a part with firmware as doctor names it."""
    version: str
    why: str
    fix: str
    source: str
    unless: str | None = None
    """A kernel option that avoids the fault."""

    def describe(self) -> str:
        return f"{self.why} ({self.source})"


@functools.cache
def known_bad() -> tuple[KnownBad, ...]:
    return tuple(
        KnownBad(**row) for row in yaml_text.load_file(Path(__file__).with_name("known_bad.yaml"))
    )


def failing(
    part: str,
    version: str,
    options: Container[str] = (),
    rows: tuple[KnownBad, ...] | None = None,
) -> KnownBad | None:
    """Return the row that a version falls under; `options` are the running kernel's."""
    known = known_bad() if rows is None else rows
    return next((row for row in known if _matches(row, part, version, options)), None)


def _matches(row: KnownBad, part: str, version: str, options: Container[str]) -> bool:
    rest = version.removeprefix(row.version)
    # 59 does not match 590, nor 7.0.0-101 match 7.0.0-1019.
    is_version = version == row.version or (rest != version and not rest[0].isalnum())
    return row.part == part and is_version and row.unless not in options


def check_kernel(kernel: str | None, options: Container[str]) -> Finding:
    check = "machine.kernel"
    if kernel is None:
        return not_seen(check, "`uname -r` did not answer")
    row = failing("kernel", kernel, options)
    if row is None:
        return ok(check, f"Linux {kernel}")
    return warn(check, f"Linux {kernel}: {row.describe()}", row.fix)


def check_firmware(
    versions: Mapping[str, str], rows: tuple[KnownBad, ...] | None = None
) -> Finding:
    check = "machine.firmware"
    if not versions:
        return not_seen(check, "no version of firmware can be read")
    seen = ", ".join(f"{part} {version}" for part, version in versions.items())
    for part, version in versions.items():
        row = failing(part, version, rows=rows)
        if row is not None:
            return warn(check, f"{seen}: {part} {version}: {row.describe()}", row.fix)
    return ok(check, seen)
