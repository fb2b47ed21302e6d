"""sparkdeploy installed by name: its wheel and its sdist, with no checkout beside them."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkdeploy import __version__
from tests.engine.command.dists import CHECKOUT, UV, build_dists, the_only

OURS = ("SPARKDEPLOY_", "XDG_", "PYTHON")


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody with an empty home, who has the distributions in a folder and no checkout."""

    home: Path
    dists: Path

    def run(self, *argv: str | Path, **more_env: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the home, whatever its exit code."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        return subprocess.run(
            argv,
            cwd=self.home,
            env={**kept, "HOME": str(self.home), **more_env},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def uvx(self, source: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run sparkdeploy as `uvx` does; `source` is a name, or a distribution's path."""
        # What one test has fetched, the next one need not.
        where = ("--find-links", self.dists, "--cache-dir", self.dists / "cache")
        return self.run(UV, "tool", "run", *where, "--from", source, "sparkdeploy", *arguments)


@pytest.fixture(scope="module")
def dists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel out of that sdist, by the tools that are here."""
    folder = tmp_path_factory.mktemp("dists")
    build_dists(folder)
    return folder


@pytest.fixture
def stranger(dists: Path, tmp_path: Path) -> Stranger:
    home = tmp_path / "home"
    home.mkdir()
    return Stranger(home, dists)


def test_the_sdist_makes_the_very_wheel_of_the_checkout(dists: Path, tmp_path: Path) -> None:
    build_dists(tmp_path, "--wheel")
    ours, theirs = (
        {item.filename: item.CRC for item in zipfile.ZipFile(the_only(folder, "*.whl")).infolist()}
        for folder in (tmp_path, dists)
    )
    assert ours == theirs
    assert not [name for name in ours if name.startswith(("tests/", "docs/"))]


def test_it_runs_by_name_in_an_empty_home_with_all_that_the_checkout_has(
    stranger: Stranger,
) -> None:
    version = stranger.uvx("sparkdeploy", "--version")
    assert version.stdout == f"sparkdeploy {__version__}\n", version.stderr
    listed = stranger.uvx("sparkdeploy", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    names = {item["name"] for item in json.loads(listed.stdout)["recipes"]}
    assert names >= {path.stem for path in (CHECKOUT / "recipes").glob("*.yaml")}
    planned = stranger.uvx("sparkdeploy", "plan", "v2", "--json")
    plan = json.loads(planned.stdout)
    assert plan["recipe"] == "v2", planned.stderr
    assert [item["stage"] for item in plan["images"]] == ["base", "engine", "plugin"]


@pytest.mark.slow
def test_the_sdist_installs_what_the_wheel_does(stranger: Stranger) -> None:
    planned = stranger.uvx(the_only(stranger.dists, "*.tar.gz"), "plan", "v2", "--json")
    assert json.loads(planned.stdout)["recipe"] == "v2", planned.stderr
