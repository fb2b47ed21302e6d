"""Whatever the product writes is a new file of a random name, or one that no link leads to.

Another user may put links into a folder that they may write to, also into one of ours before it
was made private. So files are written by `atomic_files`, or opened with O_EXCL or O_NOFOLLOW.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests import syntax
from tests.unit.conftest import REPOSITORY

IN_A_CONTAINER = ("sparkdeploy/image/inside/", "sparkdeploy/vllm_plugin/")
"""These run in an image or a container, in folders where no user of the host writes."""
REVIEWED = {
    "sparkdeploy/rehearsal/stand_in.py:_copy_tokenizer": "a temporary folder of its own",
    "sparkdeploy/bench/tools.py:_llama_benchy": "a temporary folder of its own",
    "sparkdeploy/authoring/new_recipe.py:_resolved": "a temporary folder of its own",
    "sparkdeploy/monitor/run.py:nothing_beside": "/dev/null",
    "sparkdeploy/terminal/console.py:drop_answer": "/dev/null",
    "sparkdeploy/checkpoint/cache.py:create_file": "its opener follows no link",
}
OPENERS = {"open", "os.open", "io.open"}
COPIES = {"copyfile", "copy", "copy2", "copytree", "extractall", "extract", "touch"}
SAFE = ("O_EXCL", "O_NOFOLLOW")
WRITING = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC")


def written(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield function, line and text of each call that writes a file by its path and unguarded."""
    tree = syntax.tree(source)
    constants = {
        target.id: ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for name, node in syntax.calls(tree):
        if _is_unguarded(node, constants):
            yield name, node.lineno, ast.unparse(node)


def _is_unguarded(node: ast.Call, constants: dict[str, str]) -> bool:
    called = ast.unparse(node.func)
    last = called.rpartition(".")[2]
    receiver = called.rpartition(".")[0]
    if last in {"write_text", "write_bytes"}:
        return "." in called and receiver not in {"atomic_files", "durable"}
    if last in COPIES:
        return receiver == "shutil" or last in {"extractall", "touch"}
    if called == "os.open":
        return _has_writing_flags(node, constants)
    if last != "open" or any(keyword.arg == "fileobj" for keyword in node.keywords):
        return False
    is_method = called not in OPENERS
    # Nobody knows a mode that is not a constant.
    mode = syntax.mode_of(node, is_method=is_method, unknown="r" if is_method else "w")
    return any(letter in "wa+" for letter in mode)


def _has_writing_flags(node: ast.Call, constants: dict[str, str]) -> bool:
    flags = ast.unparse(node.args[1]) if len(node.args) > 1 else ""
    for _ in range(3):
        flags = " ".join(constants.get(word, word) for word in flags.split())
    return any(flag in flags for flag in WRITING) and not any(flag in flags for flag in SAFE)


def test_every_file_that_is_written_follows_no_link() -> None:
    files = sorted((REPOSITORY / "sparkdeploy").rglob("*.py"))
    names = [(path, path.relative_to(REPOSITORY).as_posix()) for path in files]
    found = {
        f"{name}:{function}": f"line {line}: {text}"
        for path, name in names
        if not name.startswith(IN_A_CONTAINER)
        for function, line, text in written(path.read_text(encoding="utf-8"))
    }
    assert len(files) > 300
    assert {place: text for place, text in found.items() if place not in REVIEWED} == {}
    assert set(REVIEWED) <= set(found), "a reviewed place writes nothing any more"


@pytest.mark.parametrize(
    "text",
    [
        *("path.write_text(x)", "(folder / 'a').write_bytes(x)", "path.open('w')"),
        *("path.open('ab')", "path.open(mode='r+b')", "open(path, 'w')", "open(path, mode)"),
        "os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)",
        *("FLAGS = os.O_RDWR\nos.open(path, FLAGS)", "shutil.copyfile(a, b)"),
        *("archive.extractall(path)", "path.touch()"),
    ],
)
def test_the_law_sees_a_file_that_is_written(text: str) -> None:
    assert list(written(text))


@pytest.mark.parametrize(
    "text",
    [
        *("atomic_files.write_text(path, x)", "path.open('x')", "path.open('rb')", "path.open()"),
        *("open(path)", "os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)"),
        "FLAGS = os.O_RDWR | os.O_NOFOLLOW\nos.open(path, FLAGS | os.O_CREAT)",
        "tarfile.open(fileobj=out, mode='w')",
    ],
)
def test_the_law_passes_a_guarded_one(text: str) -> None:
    assert not list(written(text))
