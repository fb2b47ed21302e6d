"""A libibverbs that plays adapters (stand_in.c), for programs that load the real one."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "stand_in.c"


def build_stand_in(folder: Path) -> Path:
    """Compile it into a folder, under both names by which it is looked for; return the folder."""
    library = folder / "libibverbs.so.1"
    subprocess.run(
        [
            *("cc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
            f"-Wl,-soname,{library.name}",
            f"-Wl,--version-script={SOURCE.with_name('stand_in.map')}",
            *("-o", str(library), str(SOURCE)),
        ],
        check=True,
    )
    (folder / "libibverbs.so").symlink_to(library.name)
    return folder
