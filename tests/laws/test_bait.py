"""Commands typed in a folder that another user has filled: nothing of it runs or leads elsewhere.

Each command is a process of its own, started as the installed program starts.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.conftest import REPOSITORY

SECRET = "this-is-a-private-key"
MODULES = (
    *("venv", "pip", "yaml", "json", "typing", "sitecustomize", "usercustomize", "docker", "typer"),
    *("sparkdeploy", "pydantic", "requests", "ensurepip", "tarfile", "secrets", "subprocess"),
)
PROGRAMS = ("ssh", "git", "docker", "python3", "rsync", "nvidia-smi", "systemctl", "uv")
RECIPE = "schema: 1\nname: their\ntitle: t\nextends: v2\n"
FOREIGN = "model: a/b\ncontainer: vllm-node\ncommand: vllm serve a/b --trust-remote-code\n"
LIMIT_S = 120


@dataclass(frozen=True)
class Place:
    """The shared folder, and what of the user's must be neither read nor written."""

    shared: Path
    private: Path
    marker: Path
    home: Path

    def run(
        self, *argv: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        env = {
            "HOME": str(self.home),
            "PATH": f"{self.home}/bin:/usr/local/bin:/usr/bin:/bin",
            "DOCKER_HOST": f"unix://{self.home}/no.sock",
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "SPARKDEPLOY_PYTHON": sys.executable,
            "SPARKDEPLOY_HOME": str(self.home / "program"),
            "SPARKDEPLOY_BIN": str(self.home / "bin"),
            "SPARKDEPLOY_LOCK_DIR": str(self.home / "locks"),
            # Where the tests' own programs find each module compiled.
            "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", ""),
            **(env or {}),
        }
        return subprocess.run(
            argv,
            cwd=self.shared,
            env=env,
            text=True,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )

    def program(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        # As an installed script starts: by its own folder, not by the one where it is typed.
        start = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); sys.argv[0] = 'sparkdeploy'"
        main = "from sparkdeploy.cli.start import main; sys.exit(main())"
        return self.run(sys.executable, "-P", "-c", f"{start}; {main}", *words, env=env)

    def own(self) -> dict[str, str]:
        """Return every file of the user's that is no state of the program's."""
        folders = (self.private, self.home / ".config" / "sparkdeploy" / "recipes")
        return {
            str(path): path.read_text()
            for folder in folders
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    shared, private, home = (tmp_path / name for name in ("shared", "private", "home"))
    for folder in (shared, private, home / "bin", home / ".config" / "sparkdeploy" / "recipes"):
        folder.mkdir(parents=True)
    made = Place(shared, private, tmp_path / "marker", home)
    (private / "key.jinja").write_text(SECRET)
    (private / "recipe.yaml").write_text(f"{RECIPE}description: {SECRET}\n")
    _bait(made)
    ssh = home / "bin" / "ssh"
    ssh.write_text("#!/bin/sh\necho 'sparkdeploy: welcome'\nexit 255\n")
    ssh.chmod(0o755)
    return made


def _bait(place: Place) -> None:
    shared, private = place.shared, place.private
    for name in MODULES:
        run = f"open({str(place.marker)!r}, 'a').write({name + chr(10)!r})\n"
        (shared / f"{name}.py").write_text(run)
    for name in PROGRAMS:
        program = shared / name
        program.write_text(f"#!/bin/sh\necho {name} >>{shlex.quote(str(place.marker))}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    for name in (
        "report.tar.gz",
        "made.yaml",
        ".report.tar.gz.new",
        f".report.tar.gz.{os.getpid()}",
    ):
        (shared / name).symlink_to(private / "key.jinja")
    (shared / "trusted").symlink_to(place.home / ".config" / "sparkdeploy" / "recipes")
    (shared / "template.jinja").symlink_to(private / "key.jinja")
    (shared / "their.yaml").write_text(f"{RECIPE}serve: {{chat_template: template.jinja}}\n")
    (shared / "base.yaml").symlink_to(private / "recipe.yaml")
    (shared / "foreign.yaml").write_text(FOREIGN)
    (shared / "images.tar").symlink_to(private / "key.jinja")
    crash = place.home / "crash"
    crash.mkdir()
    (crash / "root-cause.txt").write_text("why\n")
    units = shared / "units"
    units.mkdir()
    (units / "sparkdeploy-main.service").symlink_to(private / "key.jinja")


COMMANDS = {
    "import": ("recipe import foreign.yaml", 0),
    "import into the trusted folder": ("recipe import foreign.yaml -o trusted", 3),
    "source": ("recipe source add theirs .", 2),
    "image": ("image ls", 4),
    "checkpoint": ("checkpoint ls", 0),
    "plan": ("plan ./their.yaml", 4),
    "on": ("plan --on spark ./their.yaml", 3),
    "on with nothing of theirs": ("status --on spark", 4),
    "diagnose": ("diagnose ../home/crash -o report.tar.gz", 0),
    "systemd": ("export systemd v2 -o units", 2),
    "new": ("new mine --from v2 -o made.yaml", 3),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_of_a_strangers_folder_runs_or_leads_elsewhere(place: Place, name: str) -> None:
    words, code = COMMANDS[name]
    before = place.own()
    done = place.program(*words.split())
    assert (done.returncode, done.stderr) == (code, done.stderr)
    assert not place.marker.exists(), place.marker.read_text()
    assert place.own() == before
    assert SECRET not in done.stdout + done.stderr
    state = [path for path in place.home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in state if SECRET.encode() in path.read_bytes()]


def test_the_installer_runs_nothing_of_the_folder_where_it_is_typed(place: Place) -> None:
    before = place.own()
    done = place.run(str(REPOSITORY / "install.sh"), "--tool-only")
    assert (place.home / "program").is_dir(), done.stderr
    assert not place.marker.exists(), place.marker.read_text()
    assert place.own() == before


ODD_VARIABLES = {
    "HF_ENDPOINT": "http://[x",
    "HF_HUB_ETAG_TIMEOUT": "x",
    "HF_HUB_DOWNLOAD_TIMEOUT": "",
}


@pytest.mark.parametrize("name", ODD_VARIABLES)
def test_a_variable_that_the_hubs_library_cannot_read_is_no_bug(place: Place, name: str) -> None:
    """It reads them while it is imported, so that only a process of its own shows it."""
    odd = {name: ODD_VARIABLES[name]}
    done = place.program("checkpoint", "pull", "a/b", env=odd)
    assert done.returncode in {4, 6}, done.stderr
    assert name in done.stderr or "HF_" in done.stderr or not ODD_VARIABLES[name]


@pytest.mark.parametrize("made", ["pipe", "zero"])
def test_what_is_no_file_is_neither_waited_for_nor_read(place: Place, made: str) -> None:
    out, crash = place.shared / "out", place.home / "crash"
    out.mkdir()
    for path in (out / "foreign.yaml", crash / "log", place.shared / "key"):
        if made == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
    for words, code in {
        "recipe import foreign.yaml -o out": 3,
        "diagnose ../home/crash -o new.tar.gz": 0,
        "bench run --url http://127.0.0.1:9 --key-file key": 2,
    }.items():
        done = place.program(*words.split())
        assert done.returncode == code, done.stderr


def test_a_key_that_no_header_takes_is_not_printed(place: Place) -> None:
    (place.home / "key").write_text(f"{SECRET}\nbehind\x1b\n")
    words = ("bench", "run", "--url", "http://127.0.0.1:9", "--key-file", "../home/key")
    done = place.program(*words)
    assert done.returncode == 2
    assert SECRET not in done.stderr


@pytest.mark.parametrize("name", ["yaml", "venv"])
def test_the_bait_runs_where_it_is_taken(place: Place, name: str) -> None:
    place.run(sys.executable, "-S", "-c", f"import {name}")
    assert name in place.marker.read_text().split()
