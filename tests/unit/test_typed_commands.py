"""Commands that messages tell to type hold nothing of a user's, or it is quoted for a shell."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sparkdeploy.recipe.load import load_recipe
from tests import syntax
from tests.unit.conftest import REPOSITORY, SHIPPED

PACKAGE = REPOSITORY / "sparkdeploy"
COMMANDS = re.compile(r"\b(sparkdeploy|sudo|docker|rm|mv|chmod|chown|ssh|curl|git|ls|mkdir|write) ")
BEGINS = re.compile(r"(as root: )?(sparkdeploy|sudo|rm|mkdir|chmod|chown|docker|ssh) ")
FIXES = {"hint", "fix"}
FINDINGS = {"fail", "fail_early", "warn"}
QUOTED = re.compile(r"\bquote\(|\bshlex\.join\(")
SAFE = {
    # Names of deployments and of configured nodes: letters, digits and . _ - alone.
    *("row.name", "fact.deployment", "head.deployment"),
    *("container.deployment", "report.deployment", "found.current.name", "fact.name"),
    *("worker.name", "head", "there", "owner", "node", "node.name", "found.name"),
    # Of recipes' and engines' own formats, which allow no more either.
    *("engine.name", "engine.lock", "stage.tag", "image.below", "image.tags[0]"),
    # `called` is quoted where it is made, and so are whole commands that are named before.
    *("resolved.called", "plan.resolved.called", "self.command"),
    # Numbers, and constants of the program.
    *("port", "served.port", "uid", "gid", "COMMAND", "LLAMA_BENCHY", "LOOPBACK", "_UNITS"),
}
"""Whatever else is put into a command needs a `shlex.quote`, or a line below."""
REVIEWED: dict[str, list[str]] = yaml.safe_load(
    Path(__file__).with_name("reviewed_expressions.yaml").read_text()
)
"""By file: what was looked at, and is a constant, checked before or prose."""


def fixes_in(tree: ast.AST) -> Iterator[ast.AST]:
    """Return what is given as a fix: by its name, as a finding's third word, or first kept."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in FIXES:
            yield node.value
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {it.id for top in targets for it in ast.walk(top) if isinstance(it, ast.Name)}
            if names & FIXES:
                yield node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield from node.args[2:] if node.func.id in FINDINGS else ()


def unquoted(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return line and expression of what is put into a command as it is."""
    fixes = {part for fix in fixes_in(tree) for part in ast.walk(fix)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for inside in commands_in(node, is_fix=node in fixes):
                if inside not in SAFE and not QUOTED.search(inside):
                    yield node.lineno, inside


def commands_in(node: ast.JoinedStr, *, is_fix: bool) -> Iterator[str]:
    """Return the expressions that stand between backticks, or behind a command of a fix."""
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if not isinstance(part, ast.FormattedValue):
            continue
        in_command = COMMANDS.search(text) and (is_fix or BEGINS.match(text))
        if text.count("`") % 2 or (in_command and "`" not in text):
            yield ast.unparse(part.value)
        text += "x"


def found_in(path: Path) -> set[str]:
    return {text for _line, text in unquoted(syntax.tree(path.read_text()))}


def test_what_a_message_tells_to_type_is_quoted() -> None:
    found = {
        str(path.relative_to(PACKAGE)): found_in(path)
        for path in PACKAGE.rglob("*.py")
        if "vllm_plugin" not in path.parts
    }
    new = {path: texts.difference(REVIEWED.get(path, ())) for path, texts in found.items()}
    assert {path: texts for path, texts in new.items() if texts} == {}


@pytest.mark.parametrize("stem", ["a b", "it's", "$(id)", "`id`", "a;b"])
def test_what_a_user_called_a_recipe_is_proposed_as_one_word(tmp_path: Path, stem: str) -> None:
    file = tmp_path / f"{stem}.yaml"
    file.write_text("schema: 1\nname: mine\ntitle: mine\nextends: v2\n")
    resolved = load_recipe(SHIPPED, str(file))
    assert shlex.split(resolved.called) == [str(file)]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('f"`sparkdeploy show {path}`"', ["path"]),
        ('f"`sparkdeploy show {shlex.quote(path)}`"', []),
        ('Error("x", hint=f"rm -r {path}")', ["path"]),
        ('Error("x", hint=f"{path} cannot be read")', []),
        ('fix = f"as root: rm {path}"', ["path"]),
        ('cause, fix = "x", f"keep one (ls {path})"', ["path"]),
        ('warn(check, seen, f"keep one (ls {path})")', ["path"]),
        ('f"as root: rm -rf {path} && mkdir -m {mode:04o} {path}"', ["path", "mode", "path"]),
        ('command = f"sparkdeploy up {wanted}"', ["wanted"]),
        ('f"{path} is read by `up`"', []),
        ('f"`sparkdeploy down {row.name}`"', []),
    ],
)
def test_an_unquoted_word_is_seen(code: str, found: list[str]) -> None:
    assert [text for _line, text in unquoted(syntax.tree(code))] == found
