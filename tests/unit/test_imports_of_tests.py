"""What tests share stands in files that are no tests: tests/fakes, or a helper beside them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests import syntax
from tests.unit.conftest import REPOSITORY

TESTS = REPOSITORY / "tests"


def imported_by(text: str, package: tuple[str, ...]) -> Iterator[str]:
    """Return every module, and every name in one, that a file of that package imports."""
    for node in ast.walk(syntax.tree(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def of_tests(text: str, package: tuple[str, ...]) -> list[str]:
    """Return what is imported out of a test_*.py file."""
    found = imported_by(text, package)
    return [name for name in found if any(it.startswith("test_") for it in name.split("."))]


def test_no_test_imports_another_test_file() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in TESTS.rglob("*.py")
        for name in of_tests(path.read_text(), path.relative_to(REPOSITORY).parent.parts)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from tests.unit.test_x import f", ["tests.unit.test_x.f"]),
        ("from tests.unit import test_x", ["tests.unit.test_x"]),
        ("def f():\n    import tests.unit.test_x as x", ["tests.unit.test_x"]),
        ("from . import test_x", ["tests.unit.test_x"]),
        ("from ..test_x import f", ["tests.test_x.f"]),
        ("from tests.fakes.http_server import serving", []),
    ],
)
def test_every_way_to_import_a_test_file_is_seen(text: str, found: list[str]) -> None:
    assert of_tests(text, ("tests", "unit")) == found
