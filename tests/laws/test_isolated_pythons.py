"""Every Python that the product starts takes no module from the folder where it starts."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PYTHON = (
    r"(?:sys\.executable|\{sys\.executable\}|\{python\}|\$PYTHON|\$python|\$interpreter"
    r"|[\w./\"$]*\bpython3?(?:\.\d+)?)"
)
_START = re.compile(_PYTHON + r"""["']?,?\s+["']?(?P<flag>-[A-Za-z]+)""")
SAFE = re.compile(r"-[A-Za-z]*[IP]")
IN_AN_IMAGE = (
    "dockerfiles/",
    "sparkdeploy/image/inside/",
    "sparkdeploy/vllm_plugin/",
)
"""Steps of an image build: they start in a folder of the image, where the host's users write
nothing, and one letter more would have every image built again."""


def started(text: str) -> Iterator[str]:
    """Yield each start of a Python in a text that has neither -I nor -P as its first flag."""
    for found in _START.finditer(text):
        if not SAFE.match(found["flag"]):
            yield found[0]


def code_of(path: Path) -> str:
    """Return a file's text without comments, and a module's without docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    tree = ast.parse(text)
    lines = text.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[number - 1] = ""
    return "\n".join(lines)


def product_files() -> list[Path]:
    found = [REPOSITORY / "install.sh"]
    for suffix in ("py", "sh", "j2"):
        found += (REPOSITORY / "sparkdeploy").rglob(f"*.{suffix}")
    return [
        path
        for path in found
        if not path.relative_to(REPOSITORY).as_posix().startswith(IN_AN_IMAGE)
    ]


def test_every_python_of_the_product_is_isolated() -> None:
    files = product_files()
    assert len(files) > 300
    wrong = {
        f"{path.relative_to(REPOSITORY)}: {start}"
        for path in files
        for start in started(code_of(path))
    }
    assert wrong == set()


@pytest.mark.parametrize(
    "text",
    [
        "python -m venv x",
        '"$PYTHON" -m venv x',
        '"$VENV/bin/python" -m pip',
        "venv/bin/python -c 'import x'",
        '(sys.executable, "-m", "sparkdeploy")',
        '["CMD", "python", "-c", LIVES]',
        'f"exec python3 -c {text}"',
        "{sys.executable} -m pip install uv",
    ],
)
def test_the_law_sees_a_python_that_is_not(text: str) -> None:
    assert list(started(text))
    assert not list(started(text.replace("-m", "-I -m", 1).replace("-c", "-I -c", 1)))
