"""A machine made of stubs: what install.sh finds on PATH is what a test put there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
BASE_COMMANDS = ["bash", "cat", "cp", "dirname", "env", "find", "grep", "ln", "mkdir", "readlink"]
BASE_COMMANDS += ["rm", "rmdir", "sh", "sha256sum", "sort", "xargs"]

# Answers for `python -m venv` and `pip install` in no time; the rest is the real interpreter.
PYTHON_STUB = """#!/bin/sh
[ "$1" = -I ] && shift
if [ "$1" = -m ] && [ "$2" = venv ]; then
  echo "venv $*" >>"{root}/calls"
  for folder in "$@"; do :; done
  mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python"
  exit
fi
if [ "$1" = -m ] && [ "$2" = pip ]; then
  [ "$3" = install ] || exit 0
  echo "pip $*" >>"{root}/calls"
  [ -e "{root}/pip-fails" ] && exit 1
  cp "{root}/tool" "$(dirname "$0")/sparkdeploy"
  exit
fi
if [ "$1" = -P ]; then
  shift 2
  echo "checkout $*" >>"{root}/calls"
  exit
fi
exec "{python}" "$@"
"""
TOOL_STUB = """#!/bin/sh
[ "$1" = --version ] && exit 0
if [ -n "${{_SPARKDEPLOY_COMPLETE:-}}" ]; then
  printf '\n#%s\n' "$_SPARKDEPLOY_COMPLETE"
  exit "$(cat "{root}/tool-exit-code")"
fi
if [ "$1" = setup ]; then
  echo "setup $*" >>"{root}/calls"
  exit "$(cat "{root}/setup-exit-code")"
fi
echo "sparkdeploy $*" >>"{root}/calls"
exit "$(cat "{root}/tool-exit-code")"
"""
RECORDING_STUB = """#!/bin/sh
echo "{name} $*" >>"{root}/calls"
{body}
"""


@dataclass(slots=True)
class Machine:
    """A stub machine; `run` starts install.sh on it."""

    root: Path
    checkout: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def commands(self) -> Path:
        return self.root / "commands"

    @property
    def link(self) -> Path:
        return self.root / "bin" / "sparkdeploy"

    @property
    def venv(self) -> Path:
        return self.root / "home" / "venv"

    @property
    def data(self) -> Path:
        return self.root / ".local" / "share" / "sparkdeploy"

    def add(self, name: str, script: str) -> None:
        path = self.commands / name
        path.unlink(missing_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def add_recording(self, name: str, body: str = "") -> None:
        self.add(name, RECORDING_STUB.format(name=name, root=self.root, body=body))

    def remove(self, name: str) -> None:
        (self.commands / name).unlink()

    def user_is(self, name: str, uid: int) -> None:
        self.add("id", f'#!/bin/sh\n[ "$1" = -u ] && echo {uid} || echo {name}\n')

    def tool_ends_with(self, exit_code: int) -> None:
        (self.root / "tool-exit-code").write_text(str(exit_code))

    def setup_ends_with(self, exit_code: int) -> None:
        (self.root / "setup-exit-code").write_text(str(exit_code))

    def calls(self, name: str) -> list[str]:
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.split()[0] == name]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.checkout / "install.sh", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a user's machine with Python, apt and sudo."""
    made = Machine(root=tmp_path, checkout=_make_checkout(tmp_path / "checkout"))
    made.commands.mkdir()
    for name in BASE_COMMANDS:
        (made.commands / name).symlink_to(_real(name))
    made.environment = {
        "PATH": str(made.commands),
        "HOME": str(tmp_path),
        # Names complete in no such shell; bash would put its own name there.
        "SHELL": "/bin/sh",
        "SPARKDEPLOY_HOME": str(made.venv.parent),
        "SPARKDEPLOY_BIN": str(made.link.parent),
        "SPARKDEPLOY_TMPFILES": str(tmp_path / "tmpfiles.d"),
    }
    made.add("python3", PYTHON_STUB.format(root=tmp_path, python=sys.executable))
    for name in ("sudo", "apt-get"):
        made.add_recording(name)
    made.user_is("ada", 1000)
    made.tool_ends_with(0)
    made.setup_ends_with(0)
    (tmp_path / "tool").write_text(TOOL_STUB.format(root=tmp_path))
    (tmp_path / "tool").chmod(0o755)
    return made


def _make_checkout(root: Path) -> Path:
    for folder in ("sparkdeploy", "recipes", "dockerfiles"):
        (root / folder).mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "sparkdeploy/module.py"):
        (root / name).write_text(name)
    script = (CHECKOUT / "install.sh").read_text()
    # The places of the real machine that it names by themselves.
    for place in ("/opt/sparkdeploy", "/usr/bin/python3"):
        assert place in script
        script = script.replace(place, f"{root.parent}{place}")
    (root / "install.sh").write_text(script)
    (root / "install.sh").chmod(0o755)
    return root


def _real(name: str) -> Path:
    for folder in os.get_exec_path():
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    pytest.fail(f"{name} is not on this machine")
