"""Whatever somebody else may have put into a file's place is read within limits.

A pipe is waited for without an end, a link to /dev/zero fills the memory. So files are opened by
`stored_json`, which opens regular files alone; other reads are of files that nobody else writes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests import syntax
from tests.unit.conftest import REPOSITORY

IN_A_CONTAINER = ("sparkdeploy/image/inside/", "sparkdeploy/vllm_plugin/")
OWN = ("__file__", "with_name", "resources()", "_FOLDER", "'/proc", "KERNEL_LOCKS")
"""Parts of the package, and what the kernel writes."""
STATE, PROC = "the state folder, which is private", "the kernel's own"
PACKAGE, SCRATCH = "a part of the package", "a temporary folder of its own"
REVIEWED = {
    "bench/tools.py:_llama_benchy": SCRATCH,
    "checkpoint/cache.py:create_file": "a part of a download, opened by its folder, links refused",
    "checkpoint/cache.py:file_system_of": PROC,
    "checkpoint/draft_vocabulary.py:sample_inputs": PACKAGE,
    "checkpoint/tiny_model/build.py:build_tiny_fp8_model": "a model that was just written",
    "cli/names.py:_index_rows": STATE,
    "deploy/evidence.py:known_secrets": STATE,
    "deploy/expectation.py:_spec": PACKAGE,
    "deploy/serving.py:read_key": STATE,
    "image/base.py:_tail": SCRATCH,
    "image/compilation.py:compile_wheel": "a ContextFile, whose `open` is limited",
    "image/context.py:digest": "a ContextFile, whose `open` is limited",
    "image/context.py:write_tar": "a ContextFile, whose `open` is limited",
    "image/emulation.py:_text_of": PROC,
    "image/stages.py:_engine": PACKAGE,
    "image/stages.py:_read": PACKAGE,
    "monitor/status.py:_with_failed": STATE,
    "node/connection.py:refuse_unreadable_logins": "Docker's own configuration of this user",
    "node/node.py:read_file": PROC,
    "node/ports.py:_is_of_container": PROC,
    "node/ports.py:_sockets_on": PROC,
    "node/ports.py:port_owner": PROC,
    "node/reports.py:_read": "Docker's own configuration of this user",
    "node/tree.py:__init__": STATE,
    "recipe/arguments.py:packages_of": PACKAGE,
    "recipe/releases.py:read_release": PACKAGE,
    "shell.py:_start_of": PROC,
    "shell.py:descendants": PROC,
}
OPENERS = {"open", "io.open", "os.fdopen"}


def read(source: str) -> Iterator[tuple[str, str]]:
    """Yield function and text of each call that reads a file by its path and without limits."""
    for name, node in syntax.calls(syntax.tree(source)):
        called = ast.unparse(node.func)
        receiver, _, last = called.rpartition(".")
        text = ast.unparse(node)
        is_limited = receiver in {"stored_json", "yaml_text", "os", "tarfile", "wave", "folder"}
        if not receiver or is_limited or any(part in text for part in OWN):
            if called != "open":
                continue
        elif last not in {"read_text", "read_bytes", "open"}:
            continue
        mode = syntax.mode_of(node, is_method=called not in OPENERS, unknown="r")
        if not any(letter in "wax+" for letter in mode):
            yield name, text


def test_every_file_that_another_may_have_written_is_read_within_limits() -> None:
    files = sorted((REPOSITORY / "sparkdeploy").rglob("*.py"))
    names = [(path, path.relative_to(REPOSITORY).as_posix()) for path in files]
    found = {
        f"{name.removeprefix('sparkdeploy/')}:{function}": text
        for path, name in names
        if not name.startswith(IN_A_CONTAINER)
        for function, text in read(path.read_text(encoding="utf-8"))
    }
    assert {place: text for place, text in found.items() if place not in REVIEWED} == {}
    assert set(REVIEWED) <= set(found), "a reviewed place reads nothing any more"


@pytest.mark.parametrize(
    "text", ["path.read_text()", "(folder / 'a').read_bytes()", "path.open('rb')", "open(path)"]
)
def test_the_law_sees_a_file_that_is_read(text: str) -> None:
    assert list(read(text))


@pytest.mark.parametrize(
    "text",
    [
        *("stored_json.read_bytes(path, 9)", "read_bytes(path, 9)"),
        *("Path(__file__).with_name('a').read_text()", "path.open('xb')"),
    ],
)
def test_the_law_passes_a_limited_one(text: str) -> None:
    assert not list(read(text))
