"""Drivers, kernels and firmware that are known to fail on a Spark: known_bad.yaml, read."""

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

FILE = Path(__file__).with_name("known_bad.yaml")


@dataclass(frozen=True, slots=True)
class KnownBad:
    part: str
    """`driver`, `kernel`, or a part with firmware as doctor names it."""
    version: str
    why: str
    fix: str
    source: str
    unless: str | None = None
    """An option with which the kernel was started, and which mends it."""

    def describe(self) -> str:
        return f"{self.why} ({self.source})"


@functools.cache
def known_bad() -> tuple[KnownBad, ...]:
    return tuple(KnownBad(**row) for row in yaml_text.load_file(FILE))


def failing(
    part: str,
    version: str,
    options: Container[str] = (),
    rows: tuple[KnownBad, ...] | None = None,
) -> KnownBad | None:
    """Return the row that a version falls under; `options` are the running kernel's."""
    told = known_bad() if rows is None else rows
    return next((row for row in told if _means(row, part, version, options)), None)


def _means(row: KnownBad, part: str, version: str, options: Container[str]) -> bool:
    rest = version.removeprefix(row.version)
    # 590 is not meant by 59, nor 7.0.0-1019 by 7.0.0-101.
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
