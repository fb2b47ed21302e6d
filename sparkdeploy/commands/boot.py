"""What systemd says of the units that start deployments at boot."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.deploy.deployments import HEALTHY, RUNNING, StatusRow
from sparkdeploy.deploy.evidence import ROOT_CAUSE, newest_crash
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.export.socket_units import proxy_name
from sparkdeploy.export.systemd_unit import unit_name
from sparkdeploy.node.facts import THIS_MACHINE, output_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.node.facts import Machine

RUNS_HERE = Path("/run/systemd/system")
"""Is there where systemd is the machine's first process (sd_booted)."""
READ_TIMEOUT_S = 2.0
NOT_STARTED = "not started"
_OF_DEPLOYMENT = re.compile(re.escape(unit_name("NAME")).replace("NAME", "(.+)"))


def given_up(machine: Machine = THIS_MACHINE, runs_here: Path = RUNS_HERE) -> Mapping[str, int]:
    """Return what the last start of deployments that systemd no longer starts exited with.

    Empty where systemd does not run, or does not answer.
    """
    if not runs_here.is_dir():
        return {}
    asked = ("systemctl", "show", "--property=Id,ActiveState,ExecMainStatus", unit_name("*"))
    told = output_or_none(machine, asked, timeout_s=READ_TIMEOUT_S) or ""
    return dict(_failed(told))


def with_given_up(
    rows: Sequence[StatusRow], failed: Mapping[str, int], crashes_dir: Path
) -> tuple[StatusRow, ...]:
    """Say of every deployment that systemd has given up why; those that somebody started run."""
    told = {name: _why(name, code, crashes_dir) for name, code in failed.items()}
    serving = (HEALTHY, RUNNING)
    known = (
        row if row.state in serving else replace(row, given_up=told.get(row.name, ""))
        for row in rows
    )
    missing = told.keys() - {row.name for row in rows}
    return (*known, *(_not_started(name, told[name]) for name in sorted(missing)))


def _failed(told: str) -> Iterator[tuple[str, int]]:
    """Yield deployments of failed units; what is told of each unit ends with an empty line."""
    blocks = told.strip().split("\n\n")
    units = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in blocks]
    named = {found[1]: it for it in units if (found := _OF_DEPLOYMENT.fullmatch(it.get("Id", "")))}
    proxies = {proxy_name(name) for name in named}
    for name, unit in named.items():
        if unit.get("ActiveState") == "failed" and unit["Id"] not in proxies:
            yield name, int(unit.get("ExecMainStatus") or 0)


def _why(name: str, code: int, crashes_dir: Path) -> str:
    crash = newest_crash(crashes_dir, name) if code == UnhealthyError.exit_code else None
    if crash is None or not (crash / ROOT_CAUSE).is_file():
        return f"exit code {code}"
    return (crash / ROOT_CAUSE).read_text(encoding="utf-8").strip()


def _not_started(name: str, why: str) -> StatusRow:
    return StatusRow(name=name, recipe="", state=NOT_STARTED, given_up=why)
