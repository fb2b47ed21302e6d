"""Where completions are written, and what of a user's files stays as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.cli.completion import shells
from sparkdeploy.cli.completion.shells import Shell

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.program import Run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "BASH_COMPLETION_USER_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(shells, "BASH_COMPLETION", tmp_path / "none")
    return tmp_path


@pytest.mark.parametrize("shell", list(Shell))
def test_what_is_installed_twice_and_removed_leaves_no_trace(
    run: Run, home: Path, shell: Shell
) -> None:
    start_files = [home / ".bashrc", home / ".zshrc"]
    for file in start_files:
        file.write_bytes(b"alias x=y\n\xff no newline")
        file.chmod(0o600)
    for _ in range(2):
        assert run("completion", "install", shell).returncode == 0
    lines = [line for file in start_files for line in file.read_bytes().splitlines()]
    assert len(lines) == 4 + (shell is not Shell.FISH)
    assert run("completion", "remove").returncode == 0
    assert all(
        file.read_bytes().rstrip(b"\n") == b"alias x=y\n\xff no newline" for file in start_files
    )
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in start_files)
    assert not [path for path in home.rglob("*sparkdeploy*") if path.is_file()]
    assert run("completion", "remove").stderr == "nothing to do\n"


def test_the_login_shell_is_meant_when_none_is_named(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert run("completion", "show").stdout.startswith("# Completes the names of sparkdeploy in f")
    monkeypatch.setenv("SHELL", "/bin/dash")
    refused = run("completion", "install")
    assert refused.returncode == 2
    assert "SHELL is dash" in refused.stderr
