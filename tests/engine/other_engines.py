"""Docker Engines other than the machine's own, from Debian's suites, for `small_engine`.

A suite's packages are unpacked once below FOLDER and used by every later run. They are stale, and
made anew, when the month is over or when what is unpacked changes: the name says both. Nothing is
installed and no package's script runs; a small engine only puts their /usr over the machine's.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from sparkdeploy.image.base import mmdebstrap_argv
from sparkdeploy.image.stages import DebianRecipe
from sparkdeploy.node.facts import architecture
from sparkdeploy.settings import load_settings

FOLDER = Path("/var/tmp/sparkdeploy-engines")
PACKAGES = ("docker.io", "containerd", "runc", "coreutils", "mount")
OPTIONS = (
    "--variant=extract",
    f"--include={','.join(PACKAGES)}",
    "--aptopt=APT::Install-Recommends false",
    # A mirror may hold a suite that moves at a day of its own choice.
    "--aptopt=Acquire::Check-Valid-Until false",
)
DAY_S = 86400
GIVEN_USR = "SPARKDEPLOY_TESTS_USR"
"""Names a /usr with an engine that no suite has; it stands in for every suite's."""


class _Unpacked(DebianRecipe):
    """A suite of which packages are unpacked, not installed."""

    @property
    def options(self) -> tuple[str, ...]:
        """The options of mmdebstrap."""
        return OPTIONS


def usr_of(suite: str) -> Path:
    """Return the /usr with a suite's Docker Engine; made when it is missing, in half a minute."""
    if given := os.environ.get(GIVEN_USR):
        return Path(given)
    month = datetime.datetime.now(datetime.UTC).strftime("%Y-%m")
    mark = hashlib.sha256(repr(OPTIONS).encode()).hexdigest()[:8]
    made = FOLDER / f"{suite}-{month}-{mark}"
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{suite}.lock").open("w") as lock:
        # Another worker may be making it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_dir():
            _remove_stale(suite)
            _make(suite, made)
    return made / "usr"


def _make(suite: str, made: Path) -> None:
    """Make it beside its place: it appears whole or not at all."""
    settings = load_settings()
    with tempfile.TemporaryDirectory(prefix=f"{suite}-", dir=FOLDER) as name:
        part = Path(name) / "root"
        recipe = _Unpacked(suite, PACKAGES)
        argv = mmdebstrap_argv(recipe, architecture(), settings, part, Path(name) / "log")
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        part.replace(made)
        os.utime(made)


def _remove_stale(suite: str) -> None:
    """Remove earlier ones, and what a killed run left; another run may still use a young one."""
    for old in FOLDER.glob(f"{suite}-*"):
        if time.time() - old.stat().st_mtime > DAY_S:
            shutil.rmtree(old)
