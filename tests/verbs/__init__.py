"""A libibverbs that plays adapters (stand_in.c), for programs that load the real one."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "stand_in.c"


def build_stand_in(folder: Path) -> Path:
    """Compile it into a folder, under both names by which it is looked for; return the folder."""
    library = folder / "libibverbs.so.1"
    names = SOURCE.with_name("stand_in.map")
    _compile(library, str(SOURCE), f"-Wl,--version-script={names}")
    (folder / "libibverbs.so").symlink_to(library.name)
    return folder


def build_stub(library: Path) -> None:
    """Compile a library without anything in it, such as a provider nobody calls."""
    library.parent.mkdir(exist_ok=True)
    _compile(library, "-x", "c", "/dev/null")


def _compile(library: Path, *arguments: str) -> None:
    words = ("cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library))
    subprocess.run([*words, f"-Wl,-soname,{library.name}", *arguments], check=True)
