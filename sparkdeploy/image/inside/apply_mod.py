"""Runs a mod while its image is built, and notes which files are others afterwards.

Runs inside the image, as root: `python -I apply_mod.py NAME`. The mod's files lie in
/workspace/mods/NAME, and its run.sh is started there by bash, or sh where there is none, as the
scripts that mods are written for start it: WORKSPACE_DIR is /workspace, `python3` is the Python
that has vLLM, and that Python's packages are found under the path of Debian's Python 3.12 too.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

REFUSED = "sparkdeploy-refused: "
WORKSPACE = Path("/workspace")
NOTES = Path("/opt/sparkdeploy/mods")
USUAL_PACKAGES = Path("/usr/local/lib/python3.12/dist-packages")
"""Where the images that most mods are written for keep vLLM."""
PROGRAMS = Path("/opt/sparkdeploy/bin")
SKIPPED = (
    *("/dev", "/proc", "/run", "/sys", "/tmp", "/var/tmp", "/var/log", "/var/cache"),  # noqa: S108 - skipped
    *("/root/.cache", "/opt/sparkdeploy", "/workspace/mods"),
)
"""What comes and goes without a mod's doing."""
TIMEOUT_S = 3600
MAX_NOTED = 2_000
State = tuple[int, int, int, int, int]


def main(argv: list[str]) -> int:
    """Run the mod and note what it did; its own exit code where it fails."""
    (name,) = argv
    made = list(_stand_ins())
    before = dict(_files(Path("/")))
    code = _run(WORKSPACE / "mods" / name)
    after = dict(_files(Path("/")))
    for path in reversed(made):
        path.unlink()
    with contextlib.suppress(OSError):
        USUAL_PACKAGES.parent.rmdir()  # where it was made for this, it is empty now
    if code != 0:
        sys.stderr.write(f"{REFUSED}it failed with exit code {code}\n")
        return code
    NOTES.mkdir(parents=True, exist_ok=True)
    note = json.dumps(changes(before, after), sort_keys=True)
    (NOTES / f"{name}.json").write_text(note, encoding="utf-8")
    return 0


def changes(before: dict[str, State], after: dict[str, State]) -> dict[str, object]:
    """Return what is new, what is gone, and what was written, with the hash that it has now.

    What was written may hold what it held: `sed -i` writes a file in which it replaced nothing.
    """
    added = sorted(after.keys() - before.keys())
    removed = sorted(before.keys() - after.keys())
    written = sorted(path for path in after.keys() & before.keys() if after[path] != before[path])
    return {
        "added": added[:MAX_NOTED],
        "removed": removed[:MAX_NOTED],
        "written": {path: content_of(Path(path)) for path in written[:MAX_NOTED]},
        "count": len(added) + len(removed) + len(written),
    }


def content_of(path: Path) -> str:
    """Return what a file holds as a hash, with its mode; a link's letters."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"link {os.readlink(path)}"  # noqa: PTH115 - as it is written
    if not stat.S_ISREG(status.st_mode):
        return f"kind {stat.S_IFMT(status.st_mode)}"
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return f"{stat.S_IMODE(status.st_mode):o} {digest.hexdigest()}"


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
    for name in ("python", "python3"):
        program = PROGRAMS / name
        # A link would look for its packages beside itself.
        program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        yield program


def _run(folder: Path) -> int:
    environment = os.environ | {
        "WORKSPACE_DIR": str(WORKSPACE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{PROGRAMS}:{os.environ.get('PATH', os.defpath)}",
    }
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
