"""Every Python that the product starts takes no module from the folder where it starts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import syntax
from tests.unit.conftest import REPOSITORY

_PYTHON = (
    r"(?:sys\.executable|\{sys\.executable\}|\{python\}|\$PYTHON|\$python|\$interpreter"
    r"|[\w./\"$]*\bpython3?(?:\.\d+)?)"
)
_START = re.compile(_PYTHON + r"""["']?,?\s+["']?(?P<flag>-[A-Za-z]+)""")
SAFE = re.compile(r"-[A-Za-z]*[IP]")
_SCRIPT = re.compile(_PYTHON + r"""["']?,?\s+["']?(?P<script>[\w./]+\.py)\b""")
IN_AN_IMAGE = ("dockerfiles/", "sparkdeploy/image/inside/", "sparkdeploy/vllm_plugin/")
"""Steps of an image build: they start in a folder of the image, where the host's users write
nothing, and one letter more would have every image built again. So their number is reviewed."""
REVIEWED = {
    "dockerfiles/engine-source.Dockerfile.j2": 5,
    "dockerfiles/engine-wheel.Dockerfile.j2": 6,
    "dockerfiles/guard.Dockerfile.j2": 1,
    "dockerfiles/plugin.Dockerfile.j2": 2,
    "sparkdeploy/image/inside/apply_mod.py": 1,
    "sparkdeploy/image/inside/compile.sh": 5,
    "sparkdeploy/vllm_plugin/cpu_fixups/cpu_engine_fixups.py": 1,
    "sparkdeploy/vllm_plugin/sparkdeploy_vllm/check/selfcheck.py": 1,
    "sparkdeploy/vllm_plugin/sparkdeploy_vllm/tune_head.py": 1,
}
_BLOCK = re.compile(r"^```(?:console|sh|bash|shell)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
IN_THE_CHECKOUT = re.compile(r"-m (tests|pytest|sparkdeploy)\b")
"""Commands of developers, which take the modules of the checkout where they are typed."""


def started(text: str) -> Iterator[str]:
    """Yield each start of a Python in a text that has neither -I nor -P as its first flag."""
    for found in _START.finditer(text):
        if not SAFE.match(found["flag"]):
            yield found[0]


def scripts(text: str) -> Iterator[str]:
    """Yield each start of a Python script by its file; the modules beside it are taken."""
    yield from (found[0] for found in _SCRIPT.finditer(text))


def code_of(path: Path) -> str:
    """Return a file's text without comments, and a module's without docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    tree = syntax.tree(text)
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


def test_scripts_are_started_in_images_alone() -> None:
    found = {
        f"{path.relative_to(REPOSITORY)}: {start}"
        for path in product_files()
        for start in scripts(code_of(path))
    }
    assert found == set()


def test_the_starts_within_an_image_are_the_reviewed_ones() -> None:
    found: dict[str, int] = {}
    for folder in IN_AN_IMAGE:
        for suffix in ("py", "sh", "j2"):
            for path in sorted((REPOSITORY / folder).rglob(f"*.{suffix}")):
                text = code_of(path)
                count = len([*started(text), *scripts(text)])
                if count:
                    found[path.relative_to(REPOSITORY).as_posix()] = count
    assert found == REVIEWED


def test_what_a_page_tells_to_type_is_isolated() -> None:
    pages = [*(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("*.md")]
    blocks = [(page, block) for page in pages for block in _BLOCK.findall(page.read_text())]
    assert len(blocks) > 20
    wrong = {
        f"{page.relative_to(REPOSITORY)}: {line}"
        for page, block in blocks
        for line in block.split("\n")
        if any(started(line)) and not IN_THE_CHECKOUT.search(line)
    }
    assert wrong == set()


@pytest.mark.parametrize("text", ["python x.py", '"$VENV/bin/python" /a/b.py', "python3 a/b.py x"])
def test_the_law_sees_a_script(text: str) -> None:
    assert list(scripts(text))
    assert not list(scripts(text.replace(".py", "", 1)))


@pytest.mark.parametrize(
    "text",
    [
        *("python -m venv x", '"$PYTHON" -m venv x', '"$VENV/bin/python" -m pip'),
        *("venv/bin/python -c 'import x'", '(sys.executable, "-m", "sparkdeploy")'),
        *('["CMD", "python", "-c", LIVES]', 'f"exec python3 -c {text}"'),
        "{sys.executable} -m pip install uv",
    ],
)
def test_the_law_sees_a_python_that_is_not(text: str) -> None:
    assert list(started(text))
    assert not list(started(text.replace("-m", "-I -m", 1).replace("-c", "-I -c", 1)))
