"""A printed or documented command keeps the key out of its arguments, which all may read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import sparkdeploy
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
