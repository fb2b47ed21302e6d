"""Runs a mod while its image is built, and notes which files are others afterwards.

Runs inside the image, as root: `python -I apply_mod.py NAME`. The mod's files lie in
/workspace/mods/NAME, and its run.sh is started there by bash, or sh where there is none, as the
scripts that mods are written for start it: WORKSPACE_DIR is /workspace, `python3` is the Python
that has vLLM, and that Python's packages are found under the path of Debian's Python 3.12 too. A
Python without pip borrows that of Debian's python3-venv.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

REFUSED = "sparkdeploy-refused: "
WORKSPACE = Path("/workspace")
NOTES = Path("/opt/sparkdeploy/mods")
USUAL_PACKAGES = Path("/usr/local/lib/python3.12/dist-packages")
"""Where the images that most mods are written for keep vLLM."""
PROGRAMS = Path("/opt/sparkdeploy/bin")
PIP_WHEELS = Path("/usr/share/python-wheels")
"""Where Debian keeps the pip that it puts into new environments."""
SKIPPED = (
    *("/dev", "/proc", "/run", "/sys", "/tmp", "/var/tmp", "/var/log", "/var/cache"),  # noqa: S108 - skipped
    *("/root/.cache", "/opt/sparkdeploy", "/workspace/mods"),
)
"""What comes and goes without a mod's doing."""
TIMEOUT_S = 3600
SIGNALLED = 128
"""What a shell adds to the signal that ended a program."""
MAX_NOTED = 2_000
State = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Seen:
    """What is there before a mod, or after it."""

    files: dict[str, State]
    in_volumes: dict[str, tuple[str, State]]
    """The same, behind the name of the volume: no image keeps what a build writes there."""
    rejects: frozenset[str]
    """What `patch` leaves where a part of a patch fits nowhere."""


def main(argv: list[str]) -> int:
    """Run the mod and note what it did; say why and return another code than 0 where it failed."""
    (name,) = argv
    folder = WORKSPACE / "mods" / name
    made = list(_stand_ins())
    before = _look(folder, made)
    code = _run(folder)
    after = _look(folder, made)
    _remove(made)
    reason = refusal(code, before, after)
    if reason is not None:
        sys.stderr.write(f"{REFUSED}{reason}\n")
        return SIGNALLED - code if code < 0 else code or 1
    NOTES.mkdir(parents=True, exist_ok=True)
    note = json.dumps(changes(before.files, after.files), sort_keys=True)
    (NOTES / f"{name}.json").write_text(note, encoding="utf-8")
    return 0


def refusal(code: int, before: Seen, after: Seen) -> str | None:
    """Return why what the mod did is not taken, or None."""
    if code < 0:
        return f"it was ended by signal {-code}"
    if code > 0:
        return f"it failed with exit code {code}"
    if rejects := sorted(after.rejects - before.rejects):
        return f"a part of its patch fits nowhere: {rejects[0]}"
    lost = sorted(before.in_volumes.items() ^ after.in_volumes.items())
    if lost:
        ((path, (volume, _)), *_) = lost
        return f"it changed {path}, and what is written to the image's volume {volume} is lost"
    return None


def changes(before: dict[str, State], after: dict[str, State]) -> dict[str, object]:
    """Return what is new, what is gone, and what was written, with the hash that it has now.

    What was written may hold what it held: `sed -i` writes a file in which it replaced nothing.
    So all of that is noted, and the beginning of the rest.
    """
    added = sorted(after.keys() - before.keys())
    removed = sorted(before.keys() - after.keys())
    written = sorted(path for path in after.keys() & before.keys() if after[path] != before[path])
    return {
        "added": added[:MAX_NOTED],
        "removed": removed[:MAX_NOTED],
        "written": {path: content_of(Path(path)) for path in written},
        "count": len(added) + len(removed) + len(written),
    }


def content_of(path: Path) -> str:
    """Return what a file holds as a hash, with its mode and owner; a link's letters."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"link {os.readlink(path)}"  # noqa: PTH115 - as it is written
    if not stat.S_ISREG(status.st_mode):
        return f"kind {stat.S_IFMT(status.st_mode)}"
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    owner = f"{status.st_uid}:{status.st_gid}"
    return f"{stat.S_IMODE(status.st_mode):o} {owner} {digest.hexdigest()}"


def _look(folder: Path, made: Iterable[Path]) -> Seen:
    files = dict(_files(Path("/")))
    for path in made:
        files.pop(str(path), None)
    in_volumes = {
        path: (str(place), state) for place in _volumes() for path, state in _files(place)
    }
    beside = (path for place in (folder, Path("/tmp")) for path in place.rglob("*.rej"))  # noqa: S108
    rejects = {*map(str, beside), *(path for path in files if path.endswith(".rej"))}
    return Seen(files, in_volumes, frozenset(rejects))


def _volumes() -> Iterator[Path]:
    """Yield the folders that are no part of the image, those of a machine's own left out."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[4])
        is_skipped = any(f"{place}/".startswith(f"{skipped}/") for skipped in SKIPPED)
        if place != "/" and not is_skipped and os.path.isdir(place):  # noqa: PTH112
            yield Path(place)


def _remove(made: Sequence[Path]) -> None:
    """Take the stand-ins away; a mod may have done that, or put something in their place."""
    for path in reversed(made):
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        USUAL_PACKAGES.parent.rmdir()  # where it was made for this, it is empty now


def _stand_ins() -> Iterator[Path]:
    """Make the usual places known for as long as the mod runs."""
    found = find_spec("vllm")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    site = Path(places[0]).parent if places else Path(sysconfig.get_path("purelib"))
    if not USUAL_PACKAGES.exists():
        USUAL_PACKAGES.parent.mkdir(parents=True, exist_ok=True)
        USUAL_PACKAGES.symlink_to(site)
        yield USUAL_PACKAGES
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    # A link would look for its packages beside itself.
    programs = dict.fromkeys(("python", "python3"), sys.executable)
    if _borrowed_pip():
        programs |= dict.fromkeys(("pip", "pip3"), f"{sys.executable} -m pip")
    for name, words in programs.items():
        program = PROGRAMS / name
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        yield program


def _borrowed_pip() -> list[str]:
    """Return the wheel that stands in for a pip; it runs as it is."""
    found = sorted(map(str, PIP_WHEELS.glob("pip-*.whl")))
    return found[-1:] if find_spec("pip") is None else []


def _run(folder: Path) -> int:
    environment = os.environ | {
        "WORKSPACE_DIR": str(WORKSPACE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{PROGRAMS}:{os.environ.get('PATH', os.defpath)}",
    }
    if wheel := _borrowed_pip():
        own = filter(None, [os.environ.get("PYTHONPATH")])
        environment["PYTHONPATH"] = os.pathsep.join((*own, *wheel))
    shell = shutil.which("bash") or "/bin/sh"
    # In a session of its own: what it leaves running ends with it.
    with subprocess.Popen(
        [shell, "run.sh"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as mod:
        try:
            return mod.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"it ran for longer than {TIMEOUT_S} s\n")
            return 124
        finally:
            _end(mod.pid)


def _end(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _files(root: Path) -> Iterator[tuple[str, State]]:
    """Yield every file and link of this file system with what changes when it is written."""
    device = root.lstat().st_dev
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _is_skipped(os.path.join(folder, name))]  # noqa: PTH118
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
        for name in (*names, *links):
            path = os.path.join(folder, name)  # noqa: PTH118 - a hundred thousand of them
            if path.endswith(".pyc") or path in SKIPPED:
                continue
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if status.st_dev == device:
                yield path, _state(status)


def _is_skipped(path: str) -> bool:
    return path in SKIPPED or path.endswith("/__pycache__") or os.path.ismount(path)


def _state(status: os.stat_result) -> State:
    return (
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
        status.st_mode,
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
