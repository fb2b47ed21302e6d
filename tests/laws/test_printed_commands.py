"""A printed or documented command keeps the key out of its arguments, which all may read."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path

import sparkdeploy
from sparkdeploy.recipe.answers import Task, curl_line
from tests import syntax

PACKAGE = Path(sparkdeploy.__file__).parent
CHECKOUT = PACKAGE.parent
IN_ARGUMENTS = re.compile(r"(-H|--header)[ =]+\S*(Authorization|x-api-key)|--api-key[ =]\$", re.I)


def texts() -> dict[str, str]:
    """Return the pages, and each file's string constants as they are printed."""
    found = {str(path): path.read_text() for path in (CHECKOUT / "docs").rglob("*.md")}
    found |= {str(path): path.read_text() for path in CHECKOUT.glob("*.md")}
    for path in PACKAGE.rglob("*.py"):
        nodes = ast.walk(syntax.tree(path.read_text()))
        constants = [str(it.value) for it in nodes if isinstance(it, ast.Constant)]
        found[str(path)] = "\n".join(constants)
    return found


def test_no_command_has_a_key_among_its_arguments() -> None:
    assert IN_ARGUMENTS.search('curl -H "Authorization: Bearer $(cat key)"')
    assert not [name for name, text in texts().items() if IN_ARGUMENTS.search(text)]


def test_the_line_to_try_gives_curl_the_key_by_a_pipe(tmp_path: Path) -> None:
    """The shell runs it, with a curl that tells its arguments and its input apart."""
    key_file, curl = tmp_path / "the key's", tmp_path / "curl"
    key_file.write_text("sk-secret")
    curl.write_text('#!/bin/sh\necho "arguments: $*"\necho "input: $(cat)"\n')
    curl.chmod(0o755)
    line = curl_line("http://127.0.0.1:8000", Task.CHAT, "qwen", key_file)
    script = f"PATH={shlex.quote(str(tmp_path))}:$PATH; {line}"
    done = subprocess.run(("sh", "-c", script), capture_output=True, text=True, check=True)
    arguments, _, given = done.stdout.partition("input: ")
    assert "sk-secret" not in arguments
    assert given.strip() == 'header = "Authorization: Bearer sk-secret"'
