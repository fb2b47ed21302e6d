"""`tests/run --changed` runs what a change can break, on this repository's own files."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests.changed import changed_files, selected
from tests.import_graph import REPOSITORY, commands, file_of, import_graph, is_test_file, runs

pytestmark = pytest.mark.outside

CALLS = {"answer", "run", "start"}
"""What runs a command whose name is its first word."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return import_graph()


def chosen(graph: grimp.ImportGraph, path: str) -> set[str]:
    return {module.removeprefix("tests.") for module in selected(graph, [path])}


def everything(graph: grimp.ImportGraph) -> set[str]:
    return {module.removeprefix("tests.") for module in graph.modules if is_test_file(module)}


SELECTED = {
    "a test file is run itself": "tests/unit/bench/test_answers.py unit.bench.test_answers",
    "what imports it through others": "sparkdeploy/image/lock.py unit.plan.test_make",
    "what a command imports in a function":
        "sparkdeploy/bench/report/page.py engine.vllm.test_cli_deployments",
    "what runs the command that its marker names":
        "sparkdeploy/rehearsal/rehearse.py engine.vllm.test_rehearsals",
    "all that starts the program":
        "sparkdeploy/cli/main.py engine.checkpoint.test_checkpoint_pulls_killed",
    "what a conftest.py uses": "tests/engine/turns.py engine.vllm.test_rehearsals",
    "what one fixture uses, only users of the fixture":
        "tests/unit/program.py unit.bench.test_bench_commands",
    "what starts it by its name":
        "tests/engine/stand_in/booted.py engine.command.test_reboot",
    "what takes the plugin from its folder":
        "sparkdeploy/vllm_plugin/sparkdeploy_vllm/guard/report.py engine.faults.test_guard_memory",
    "what names the folder of a data file":
        "tests/unit/server/logs/cpu-0.32-mtp.log unit.server.test_phases",
}  # fmt: skip
"""A file that changed, and a test file that it can break; never a test of another part."""
OF_ANOTHER_PART = "unit.test_text_tables"


@pytest.mark.parametrize("why", SELECTED)
def test_a_change_selects_what_it_can_break(graph: grimp.ImportGraph, why: str) -> None:
    path, broken = SELECTED[why].split()
    assert (REPOSITORY / path).is_file()
    assert {broken, OF_ANOTHER_PART} <= everything(graph)
    assert broken in chosen(graph, path)
    assert OF_ANOTHER_PART not in chosen(graph, path)


@pytest.mark.parametrize(
    "path",
    [
        *("dockerfiles/base.Dockerfile.j2", "pyproject.toml", "recipes/v2.yaml"),
        *("sparkdeploy/gone.py", "tests/__init__.py", "tests/conftest.py", "tests/run"),
        "what/nobody/knows",
    ],
)
def test_what_no_rule_knows_selects_everything(graph: grimp.ImportGraph, path: str) -> None:
    assert chosen(graph, path) == everything(graph)


def test_a_marker_names_all_commands_that_its_file_runs(graph: grimp.ImportGraph) -> None:
    known = commands().keys()
    missing = {}
    for module in filter(is_test_file, graph.modules):
        text = file_of(module).read_text()
        nodes = list(ast.walk(ast.parse(text))) if "mark.runs(" in text else []
        named = runs(nodes)
        if named is not None:
            missing[module] = (set(first_words(nodes)) & known) - named
    assert missing
    assert {module: words for module, words in missing.items() if words} == {}


def first_words(nodes: list[ast.AST]) -> Iterator[object]:
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in CALLS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Starred) and isinstance(first.value, ast.Tuple):
                first = first.value.elts[0]
            if isinstance(first, ast.Constant):
                yield first.value


def test_a_revision_is_compared_with_the_working_tree(tmp_path: Path) -> None:
    first = a_checkout(tmp_path)
    (tmp_path / "kept.py").write_text("changed")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "new.py").write_text("not known to git")
    (tmp_path / "left.pyc").write_text("ignored")
    assert changed_files(tmp_path) == {"kept.py", "gone.py", "new.py"}
    commit(tmp_path)
    assert changed_files(tmp_path) == set()
    assert changed_files(tmp_path, first) == {"kept.py", "gone.py", "new.py"}


def test_a_branch_is_compared_with_where_it_left_its_upstream(tmp_path: Path) -> None:
    a_checkout(tmp_path)
    git(tmp_path, "branch", "upstream")
    git(tmp_path, "branch", "--set-upstream-to", "upstream")
    (tmp_path / "kept.py").write_text("changed")
    commit(tmp_path)
    git(tmp_path, "checkout", "-q", "upstream")
    (tmp_path / "gone.py").write_text("changed by others")
    commit(tmp_path)
    git(tmp_path, "checkout", "-q", "-")
    assert changed_files(tmp_path) == {"kept.py"}


def a_checkout(folder: Path) -> str:
    """Make one of three files; return its commit."""
    git(folder, "init", "-q")
    for name in ("kept.py", "gone.py"):
        (folder / name).write_text(name)
    (folder / ".gitignore").write_text("*.pyc\n")
    return commit(folder)


def commit(folder: Path) -> str:
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x")
    return git(folder, "rev-parse", "HEAD").strip()


def git(folder: Path, *arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=folder, text=True)
