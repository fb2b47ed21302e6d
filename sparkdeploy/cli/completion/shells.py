"""Where bash, zsh and fish look for completions, and how they get ours."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparkdeploy import atomic_files
from sparkdeploy.errors import NodeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

MARK = "  # sparkdeploy completion"
BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
"""The package that loads a user's completions in bash."""


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class ScriptPlace(NamedTuple):
    script: Path
    start_file: Path | None = None
    """The shell's own, which has to read the script; None where the shell looks there itself."""


def script(shell: Shell) -> str:
    return (Path(__file__).parent / f"complete.{shell}").read_text(encoding="utf-8")


def shell_of(env: Mapping[str, str]) -> Shell:
    """Return the user's login shell; UsageError for one that nothing is known of."""
    name = Path(env.get("SHELL", "")).name
    try:
        return Shell(name)
    except ValueError:
        known = ", ".join(Shell)
        raise UsageError(
            f"SHELL is {name or 'not set'}, and names complete in {known}",
            hint=f"name one: sparkdeploy completion install {Shell.BASH}",
        ) from None


def place_of_user(shell: Shell, env: Mapping[str, str]) -> ScriptPlace:
    """Return where one user's shell looks."""
    home = Path(env.get("HOME") or Path.home())
    data = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    if shell is Shell.FISH:
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
        return ScriptPlace(config / "fish" / "completions" / "sparkdeploy.fish")
    if shell is Shell.ZSH:
        start_file = Path(env.get("ZDOTDIR") or home) / ".zshrc"
        return ScriptPlace(data / "sparkdeploy" / "completion" / "_sparkdeploy", start_file)
    start_file = home / ".bashrc"
    folder = Path(env.get("BASH_COMPLETION_USER_DIR") or data / "bash-completion")
    is_loaded = BASH_COMPLETION.is_file()
    return ScriptPlace(folder / "completions" / "sparkdeploy", None if is_loaded else start_file)


def install(shell: Shell, env: Mapping[str, str]) -> ScriptPlace:
    """Write the script, and the line that reads it where the shell does not look by itself.

    Raises NodeError where a file cannot be written.
    """
    place = place_of_user(shell, env)
    try:
        place.script.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_text(Path(os.path.realpath(place.script)), script(shell))
        if place.start_file is not None:
            _add_line(place.start_file, place.script)
    except OSError as error:
        raise NodeError(
            f"{error.filename} cannot be written: {error.strerror}",
            hint=f'for this shell alone: eval "$(sparkdeploy completion show {shell})"',
        ) from error
    return place


def remove(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Remove what `install` wrote for any shell; return the files that were there.

    Raises NodeError where a file cannot be written or removed.
    """
    scripts = [place_of_user(shell, env).script for shell in Shell]
    removed = tuple(script for script in scripts if script.is_file())
    try:
        for path in removed:
            path.unlink()
        # bash may have been given its line before it had its package.
        for start_file in _start_files(env):
            _remove_line(start_file)
    except OSError as error:
        raise NodeError(f"{error.filename} cannot be changed: {error.strerror}") from error
    return removed


def _start_files(env: Mapping[str, str]) -> tuple[Path, ...]:
    home = Path(env.get("HOME") or Path.home())
    return (home / ".bashrc", Path(env.get("ZDOTDIR") or home) / ".zshrc")


def _add_line(start_file: Path, script_file: Path) -> None:
    kept = _lines(start_file)
    path = str(script_file).replace("'", "'\\''")
    line = f"[ ! -r '{path}' ] || . '{path}'{MARK}"
    if line not in kept:
        text = "\n".join([*(it for it in kept if not it.endswith(MARK)), line])
        _write(start_file, f"{text}\n")


def _remove_line(start_file: Path) -> None:
    kept = _lines(start_file)
    if any(line.endswith(MARK) for line in kept):
        _write(start_file, "".join(f"{line}\n" for line in kept if not line.endswith(MARK)))


def _lines(start_file: Path) -> list[str]:
    # Whatever its encoding, it is written as it was.
    text = start_file.read_text("utf-8", "surrogateescape") if start_file.exists() else ""
    return text.split("\n")[:-1] if text.endswith("\n") else text.split("\n") if text else []


def _write(start_file: Path, text: str) -> None:
    """Write through links, as dotfiles often are, and never half of it."""
    real = Path(os.path.realpath(start_file))
    mode = real.stat().st_mode & 0o7777 if real.exists() else atomic_files.SHARED_FILE_MODE
    atomic_files.write_bytes(real, text.encode("utf-8", "surrogateescape"), mode)
