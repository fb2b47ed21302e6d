"""`tests/run --changed` runs what a change can break, on this repository's own files."""

from __future__ import annotations

import ast
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.changed import changed_files, selected
from tests.import_graph import REPOSITORY, commands, file_of, import_graph, is_test_file, runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import grimp

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


@pytest.mark.parametrize(
    ("path", "broken", "whole"),
    [
        pytest.param(
            "tests/unit/bench/test_wire.py",
            "unit.bench.test_wire",
            "unit.bench.test_watch",
            id="a test file is run itself",
        ),
        pytest.param(
            "sparkdeploy/image/lock.py",
            "unit.plan.test_make",
            "unit.recipe.test_load",
            id="what imports it through others",
        ),
        pytest.param(
            "sparkdeploy/bench/report/page.py",
            "engine.vllm.test_cli_deployments",
            "cluster.test_faults",
            id="what runs a command that imports it in a function",
        ),
        pytest.param(
            "sparkdeploy/rehearsal/rehearse.py",
            "engine.vllm.test_rehearsals",
            "engine.checkpoint.test_checkpoint_pulls_killed",
            id="what runs the command that its marker names",
        ),
        pytest.param(
            "sparkdeploy/cli/main.py",
            "engine.checkpoint.test_checkpoint_pulls_killed",
            "engine.image.test_image_builds",
            id="all that starts the program",
        ),
        pytest.param(
            "tests/engine/turns.py",
            "engine.vllm.test_rehearsals",
            "engine.command.test_doctor",
            id="what a conftest.py uses",
        ),
        pytest.param(
            "tests/unit/program.py",
            "unit.bench.test_bench_commands",
            "unit.image.test_lock",
            id="what one fixture uses, only users of the fixture",
        ),
        pytest.param(
            "tests/engine/stand_in/dying_cli.py",
            "engine.deployment.test_runtime_replace",
            "engine.deployment.test_runtime_health",
            id="what starts it by its name",
        ),
        pytest.param(
            "sparkdeploy/vllm_plugin/sparkdeploy_vllm/guard/supervision.py",
            "engine.faults.test_guard_memory",
            "unit.recipe.test_load",
            id="what takes the plugin from its folder",
        ),
        pytest.param(
            "tests/unit/server/logs/cpu-0.32-mtp.log",
            "unit.server.test_phases",
            "unit.plan.test_make",
            id="what names the folder of a data file",
        ),
    ],
)
def test_a_change_selects_what_it_can_break(
    graph: grimp.ImportGraph, path: str, broken: str, whole: str
) -> None:
    assert (REPOSITORY / path).is_file()
    assert {broken, whole} <= everything(graph)
    assert broken in chosen(graph, path)
    assert whole not in chosen(graph, path)


@pytest.mark.parametrize(
    "path",
    [
        "dockerfiles/base.Dockerfile.j2",
        "pyproject.toml",
        "recipes/v2.yaml",
        "sparkdeploy/gone.py",
        "tests/__init__.py",
        "tests/conftest.py",
        "tests/run",
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
