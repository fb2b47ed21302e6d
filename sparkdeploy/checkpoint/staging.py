"""Hidden names beside a target, under which it is made before it takes the target's own name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Purpose = Literal["staging", "retired"]
_PURPOSES: tuple[Purpose, ...] = ("staging", "retired")


def hidden_beside(target: Path, purpose: Purpose = "staging") -> Path:
    """This process's hidden name for `target`; nothing of that name exists.

    What killed processes left there is removed first.
    """
    tidy_beside(target)
    own = target.with_name(f".{target.name}.{purpose}-{os.getpid()}")
    _remove(own)
    return own


def tidy_beside(target: Path) -> None:
    """Remove what processes that were killed have left under hidden names of `target`.

    They cannot do it themselves, so whoever comes next does: names made here end in the process's
    number, and those of living processes are spared.
    """
    for left in _left_by_the_dead(target):
        _remove(left)


def _left_by_the_dead(target: Path) -> Iterator[Path]:
    prefixes = tuple(f".{target.name}.{purpose}-" for purpose in _PURPOSES)
    if not target.parent.is_dir():
        return
    for path in list(target.parent.iterdir()):
        if path.name.startswith(prefixes):
            number = path.name.rpartition("-")[2]
            if number.isdecimal() and not _is_alive(int(number)):
                yield path


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return not _is_zombie(process)


def _is_zombie(process: int) -> bool:
    """Whether it has ended and only its parent has not asked yet, as in containers without init."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The state follows the program's name, which stands in brackets and may hold any character.
    return status.rpartition(")")[2].split()[:1] == ["Z"]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
