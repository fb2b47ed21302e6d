"""What a mod puts into an image: its author's files, read within limits. Runs nothing of them."""

import hashlib
import itertools
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from sparkdeploy.errors import BuildError
from sparkdeploy.image.context import ContextFile
from sparkdeploy.recipe.mods import (
    MAX_BYTES,
    MAX_FILES,
    NOT_TAKEN,
    SCRIPT,
    FoundMod,
    files_hash,
)
from sparkdeploy.recipe.words import shown
from sparkdeploy.stored_json import read_bytes

EXECUTABLE, PLAIN = 0o755, 0o644


@dataclass(frozen=True, slots=True)
class ModFiles:
    """One mod, ready for a build: `run.sh` is started in the folder of its files."""

    slug: str
    """Its folder's name in the image: small letters, digits, `.`, `_` and `-`."""
    title: str
    """What its recipe calls it, in printable characters."""
    files: tuple[ContextFile, ...]
    needs_network: bool

    @property
    def script(self) -> str:
        return self._text_of(SCRIPT)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield every file's name and its text, the script first; nothing for what is no text."""
        for file in sorted(self.files, key=lambda file: (file.path != SCRIPT, file.path)):
            yield file.path, self._text_of(file.path)

    def digest(self) -> str:
        lines = [f"{file.path} {file.digest()}\n" for file in self.files]
        return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()

    def _text_of(self, path: str) -> str:
        content = next(file.content for file in self.files if file.path == path)
        return content.decode(errors="replace") if isinstance(content, bytes) else ""


def read_mod(mod: FoundMod) -> ModFiles:
    if mod.folder is None:
        script = f"set -e\n{mod.run.rstrip()}\n".encode()
        files: tuple[ContextFile, ...] = (ContextFile(SCRIPT, script, EXECUTABLE),)
        slug = f"run-{hashlib.sha256(script).hexdigest()[:12]}"
    else:
        files, slug = tuple(_read(mod)), _slug(mod.name)
    return ModFiles(slug, shown(mod.name)[:120], files, mod.needs_network)


def _slug(name: str) -> str:
    last = PurePosixPath(name).name.lower()
    return re.sub(r"[^a-z0-9._-]+", "-", last).strip("._-")[:60] or "mod"


def _read(mod: FoundMod) -> Iterator[ContextFile]:
    folder, name = mod.folder or Path(), mod.name
    found = sorted(_regular_files(folder, name))
    if folder / SCRIPT not in found:
        raise BuildError(f"mod {shown(name)}: {folder} holds no {SCRIPT}")
    if len(found) > MAX_FILES:
        raise BuildError(f"mod {shown(name)} has more than {MAX_FILES} files")
    contents: dict[Path, bytes] = {}
    left_bytes = MAX_BYTES
    for path in found:
        try:
            contents[path] = read_bytes(path, MAX_BYTES)
            left_bytes -= len(contents[path])
        except OSError as error:
            raise BuildError(f"mod {shown(name)}: {path}: {error.strerror}") from error
        if left_bytes < 0:
            raise BuildError(f"mod {shown(name)} has more than {MAX_BYTES >> 20} MiB")
    if mod.judged and files_hash(contents) != mod.judged:
        raise BuildError(
            f"mod {shown(name)}: files in {folder} changed while the recipe was read",
            hint="type the command again: it asks about what they are then",
        )
    for path, content in contents.items():
        # To a shell the sign before the line's end is a letter of the last word.
        if path == folder / SCRIPT and b"\r\n" in content:
            raise BuildError(
                f"mod {shown(name)}: {path} has the line ends of Windows",
                hint=f"sed -i 's/\\r$//' {shlex.quote(str(path))}",
            )
        mode = EXECUTABLE if path.stat().st_mode & stat.S_IXUSR else PLAIN
        yield ContextFile(path.relative_to(folder).as_posix(), content, mode)


def _regular_files(folder: Path, name: str) -> Iterator[Path]:
    """Yield them all; a link may lead out of the folder, so there is none in a mod."""
    for where, folders, names in os.walk(folder):
        folders[:] = [item for item in folders if item not in NOT_TAKEN]
        for item in (*(item for item in names if item not in NOT_TAKEN), *folders):
            path = Path(where, item)
            relative = path.relative_to(folder).as_posix()
            # A line end would make two of it in a list; what is no UTF-8 is in no tar.
            if not relative.isprintable():
                raise BuildError(
                    f"mod {shown(name)}: the file name {relative!a} cannot be printed",
                    hint="give the file another name",
                )
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                yield path
            elif not stat.S_ISDIR(mode):
                raise BuildError(
                    f"mod {shown(name)}: {path} is a link or no regular file",
                    hint="put the file itself in its place",
                )


def placed(mods: Iterable[ModFiles]) -> Iterator[ModFiles]:
    """Give each mod a folder of its own: what is in another's would be taken for its files.

    The first keeps its name, for some scripts name /workspace/mods/NAME.
    """
    taken: set[str] = set()
    for mod in mods:
        numbered = (f"{mod.slug}-{number}" for number in itertools.count(2))
        names = itertools.chain((mod.slug,), numbered)
        slug = next(name for name in names if name not in taken)
        taken.add(slug)
        yield replace(mod, slug=slug)
