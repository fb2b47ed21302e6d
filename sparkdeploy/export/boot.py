"""What systemd says of the units that start deployments at boot."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.deploy.evidence import ROOT_CAUSE, newest_crash
from sparkdeploy.deploy.status import HEALTHY, RUNNING, StatusRow
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.export.systemd_unit import proxy_name, socket_name, unit_name
from sparkdeploy.node.facts import THIS_MACHINE, output_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.node.facts import Machine

RUNS_HERE = Path("/run/systemd/system")
"""Is there where systemd is the machine's first process (sd_booted)."""
READ_TIMEOUT_S = 2.0
NOT_STARTED = "not started"
_PROPERTIES = ("Id", "ActiveState", "ExecMainStatus", "Restart")
_OF_DEPLOYMENT = re.compile(re.escape(unit_name("NAME")).replace("NAME", "(.+)"))


@dataclass(frozen=True, slots=True)
class FailedStart:
    exit_code: int
    is_woken: bool = False
    """Whether the next connection to its socket starts it again."""


def failed_starts(
    machine: Machine = THIS_MACHINE, runs_here: Path = RUNS_HERE
) -> Mapping[str, FailedStart]:
    """Return the last start of every deployment that systemd does not start again by itself.

    Empty where systemd does not run, or does not answer.
    """
    if not runs_here.is_dir():
        return {}
    properties = f"--property={','.join(_PROPERTIES)}"
    asked = ("systemctl", "show", properties, unit_name("*"), socket_name("*"))
    told = output_or_none(machine, asked, timeout_s=READ_TIMEOUT_S) or ""
    return dict(_failed(told))


def with_failed_starts(
    rows: Sequence[StatusRow], failed: Mapping[str, FailedStart], crashes_dir: Path
) -> tuple[StatusRow, ...]:
    """Say of every deployment whose start failed why; those that somebody started since run."""
    missing = failed.keys() - {row.name for row in rows}
    not_started = (StatusRow(name=name, recipe="", state=NOT_STARTED) for name in sorted(missing))
    return tuple(
        row
        if row.state in (HEALTHY, RUNNING) or row.name not in failed
        else _with_failed(row, failed[row.name], crashes_dir)
        for row in (*rows, *not_started)
    )


def _failed(told: str) -> Iterator[tuple[str, FailedStart]]:
    """Yield deployments of failed units; what is told of each unit ends with an empty line."""
    blocks = told.strip().split("\n\n")
    units = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in blocks]
    named = {found[1]: it for it in units if (found := _OF_DEPLOYMENT.fullmatch(it.get("Id", "")))}
    proxies = {proxy_name(name) for name in named}
    listening = {it.get("Id") for it in units if it.get("ActiveState") == "active"}
    for name, unit in named.items():
        if unit.get("ActiveState") == "failed" and unit["Id"] not in proxies:
            # One that systemd starts again by itself it has given up, for a connection too.
            is_woken = unit.get("Restart") == "no" and socket_name(name) in listening
            yield name, FailedStart(int(unit.get("ExecMainStatus") or 0), is_woken)


def _with_failed(row: StatusRow, failed: FailedStart, crashes_dir: Path) -> StatusRow:
    code, why = failed.exit_code, f"exit code {failed.exit_code}"
    crash = newest_crash(crashes_dir, row.name) if code == UnhealthyError.exit_code else None
    if crash is not None and (crash / ROOT_CAUSE).is_file():
        why = (crash / ROOT_CAUSE).read_text(encoding="utf-8").strip()
    return replace(row, wake_failed=why) if failed.is_woken else replace(row, given_up=why)
