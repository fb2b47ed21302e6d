"""A repository of recipes, for several tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.authoring.sources import THEIRS, commit, recipe, run_git
from tests.unit.program import Run


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A repository with two recipes of ours and one of theirs, which has a mod."""
    folder = tmp_path / "origin"
    folder.mkdir()
    run_git(folder, "init", "--quiet", "--initial-branch", "trunk")
    commit(
        folder,
        {
            "recipes/owl.yaml": recipe("owl"),
            "recipes/four/owl.yaml": recipe("owl", title="owl over four", nodes=4),
            "recipes/theirs.yaml": THEIRS,
            "recipes/talk.jinja": "{{ messages }}",
            "mods/fix-owl/run.sh": "cp owl.jinja $WORKSPACE_DIR/\n",
            "mods/fix-owl/owl.jinja": "{{ messages }}",
            ".github/workflows/test.yaml": "on: push\njobs: {}\n",
            "README.md": "birds",
        },
    )
    return folder


@pytest.fixture
def birds(run: Run, origin: Path) -> Path:
    """A repository that is a source already."""
    assert run("recipe", "source", "add", "birds", str(origin)).returncode == 0
    return origin
