"""A systemd unit that starts a deployment after a reboot, by the very `up` a user would type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_STARTS = 3
"""A machine that cannot serve is left alone after three tries: restart storms freeze Sparks."""
BETWEEN_STARTS_S = 60
HOPELESS_EXIT_CODES = (2, 3, 5, 6)
"""Usage, recipe, image, checkpoint: trying again changes nothing."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Everything that stands in the unit."""

    deployment: str
    up: Sequence[str]
    """The command that starts it, with its absolute program first."""
    down: Sequence[str]
    user: str
    folder: str
    """Where relative paths of the command are meant from."""
    env: Mapping[str, str]
    startup_timeout_s: float


def unit_name(deployment: str) -> str:
    """Return the unit's file name."""
    return f"sparkdeploy-{deployment}.service"


def unit_text(unit: Unit) -> str:
    """Return the unit file.

    Three failed starts within the interval end it (`systemctl reset-failed` forgets them); the
    interval is longer than three tries that each use up their time.
    """
    interval_s = int((MAX_STARTS + 1) * (unit.startup_timeout_s + BETWEEN_STARTS_S))
    environment = "".join(
        f"Environment={quoted(f'{name}={value}')}\n" for name, value in sorted(unit.env.items())
    )
    return f"""\
# {unit_name(unit.deployment)}: written by `sparkdeploy export systemd`.
[Unit]
Description=sparkdeploy deployment {unit.deployment}
Requires=docker.service
Wants=network-online.target
After=docker.service network-online.target
StartLimitIntervalSec={interval_s}
StartLimitBurst={MAX_STARTS}

[Service]
Type=oneshot
RemainAfterExit=yes
User={unit.user}
WorkingDirectory={_specifiers_escaped(unit.folder)}
{environment}ExecStart={command_line(unit.up)}
ExecStop={command_line(unit.down)}
Restart=on-failure
RestartSec={BETWEEN_STARTS_S}
RestartPreventExitStatus={" ".join(map(str, HOPELESS_EXIT_CODES))}
TimeoutStartSec=infinity
TimeoutStopSec=120

[Install]
WantedBy=multi-user.target
"""


def command_line(argv: Sequence[str]) -> str:
    """Return a command as ExecStart= takes it: every word quoted, nothing expanded."""
    program, *words = argv
    return " ".join([quoted(program), *(quoted(word).replace("$", "$$") for word in words)])


def quoted(word: str) -> str:
    """Return a word in quotes that systemd reads back as it was (systemd.syntax, "Quoting")."""
    escaped = "".join(_escaped(character) for character in word)
    return f'"{_specifiers_escaped(escaped)}"'


def _escaped(character: str) -> str:
    if character in {'"', "\\"}:
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def _specifiers_escaped(text: str) -> str:
    return text.replace("%", "%%")
