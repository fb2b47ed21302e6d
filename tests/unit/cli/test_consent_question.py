"""The question that a terminal asks about a recipe from elsewhere, typed to the real program."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.outside

THEIRS = "schema: 1\nname: their\ntitle: t\nextends: v2\nserve: {env: {NCCL_DEBUG: INFO}}\n"
QUESTION = "Allow all of it, as long as nothing of these files changes? [y/N]"


def show(recipe: Path, answer: str = "") -> tuple[int, str]:
    """Show a recipe on a terminal, answering its question; return exit code and what was seen."""
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    done = subprocess.run(
        [sys.executable, "-I", "-m", "sparkdeploy", "show", str(recipe)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    seen = os.read(ours, 65536).decode()
    os.close(ours)
    return done.returncode, " ".join(seen.split())


def test_what_was_allowed_is_not_asked_again_until_something_changes(tmp_path: Path) -> None:
    recipe = tmp_path / "their.yaml"
    recipe.write_text(THEIRS)
    code, seen = show(recipe, "n")
    assert code == 3
    assert "it changes how nodes reach each other" in seen
    assert QUESTION in seen
    code, seen = show(recipe, "y")
    assert code == 0
    assert QUESTION in seen
    code, seen = show(recipe)
    assert code == 0
    assert QUESTION not in seen
    recipe.write_text(THEIRS + "# changed\n")
    assert QUESTION in show(recipe)[1]
