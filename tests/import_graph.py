"""Which module of this repository can be broken by which other one.

The graph is grimp's (imports inside functions count, those for type checkers do not), with what
imports do not show added to it:

- a test file depends on the conftest.py files above it;
- tests start modules by name: a text with a module's dotted name counts as an import;
- a test file that starts the program depends on all commands, or on those of its `runs` marker.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

import grimp

REPOSITORY = Path(__file__).parents[1]
PLUGIN_TREE = REPOSITORY / "sparkdeploy" / "vllm_plugin"
ROOTS = ("sparkdeploy", "sparkdeploy_vllm", "tests")
PROGRAM = "sparkdeploy.cli.main"
MODULE_NAME = re.compile(r"\b(?:sparkdeploy|sparkdeploy_vllm|tests)(?:\.\w+)+")

FIXTURES = {"run": "tests.unit.program", "bench": "tests.unit.program"}
"""What a conftest.py imports for one fixture only: it counts for those who name the fixture, or
one that takes it, as `bench` takes `run`."""

Nodes = dict[str, list[ast.AST]]
"""All nodes of the code of each module of the tests."""


def import_graph() -> grimp.ImportGraph:
    """Return the graph of the program, the plugin and the tests; an importer depends."""
    sys.path.insert(0, str(PLUGIN_TREE))
    graph = grimp.build_graph(*ROOTS, cache_dir=None, exclude_type_checking_imports=True)
    nodes: Nodes = {
        module: list(ast.walk(ast.parse(file_of(module).read_text())))
        for module in modules_of(graph, "tests")
    }
    _add_fixtures(graph, nodes)
    _add_started_modules(graph, nodes)
    _add_commands(graph, nodes)
    return graph


def modules_of(graph: grimp.ImportGraph, package: str) -> set[str]:
    """Return a package with all beneath it."""
    return {package, *graph.find_descendants(package)}


def file_of(module: str) -> Path:
    """Return the file of a module that exists."""
    root = PLUGIN_TREE if module.startswith("sparkdeploy_vllm") else REPOSITORY
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def is_test_file(module: str) -> bool:
    """Say whether pytest collects a module."""
    return module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")


def commands() -> dict[str, str]:
    """Return the module of each command and of each group of commands."""
    table = importlib.import_module(PROGRAM).COMMANDS
    return {name: f"sparkdeploy.cli.{entry.module}" for name, entry in table.items()}


def runs(nodes: list[ast.AST]) -> set[str] | None:
    """Return the commands that a file's `runs` marker names, None without a marker."""
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name = call.func
        # Unparsing is slow: only what ends with the right word.
        if getattr(name, "attr", "") == "runs" and ast.unparse(name) == "pytest.mark.runs":
            return {str(ast.literal_eval(word)) for word in call.args}
    return None


def _add_fixtures(graph: grimp.ImportGraph, nodes: Nodes) -> None:
    """A conftest.py is everything's beneath it, but for what one of its fixtures imports."""
    for conftest in [module for module in nodes if module.endswith(".conftest")]:
        imported = graph.find_modules_directly_imported_by(conftest)
        for name in imported & set(FIXTURES.values()):
            graph.remove_import(importer=conftest, imported=name)
        for module in filter(is_test_file, modules_of(graph, conftest.rpartition(".")[0])):
            words = {node.arg for node in nodes[module] if isinstance(node, ast.arg)}
            used = {FIXTURES[word] for word in words & FIXTURES.keys()} & imported
            _depend(graph, module, {conftest} | used)


def _add_started_modules(graph: grimp.ImportGraph, nodes: Nodes) -> None:
    """Tests start modules by their names, or send their files into containers."""
    for module, own in nodes.items():
        texts = _texts(own)
        named = {name for text in texts for name in MODULE_NAME.findall(text)}
        folder = module.rpartition(".")[0]
        beside = {f"{folder}.{Path(text).stem}" for text in texts if text.endswith(".py")}
        _depend(graph, module, {_existing(graph, name) for name in named} | beside & graph.modules)
        if any(_starts_the_program(node) for node in own):
            _depend(graph, module, {"sparkdeploy.__main__"})


def _starts_the_program(node: ast.AST) -> bool:
    """Say whether this is a list of words, or a call with words, of which one is the program."""
    words: list[ast.expr] = []
    if isinstance(node, ast.Call):
        words = node.args
    elif isinstance(node, ast.List | ast.Tuple):
        words = node.elts
    return any(isinstance(word, ast.Constant) and word.value == "sparkdeploy" for word in words)


def _add_commands(graph: grimp.ImportGraph, nodes: Nodes) -> None:
    """The program imports a command by its name: give each test file those that it runs."""
    modules = commands()
    for module in filter(is_test_file, graph.find_downstream_modules(PROGRAM)):
        named = runs(nodes[module])
        _depend(graph, module, {modules[name] for name in (modules if named is None else named)})


def _texts(nodes: list[ast.AST]) -> set[str]:
    constants = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def _existing(graph: grimp.ImportGraph, name: str) -> str:
    """Return the module that a dotted name is, or is a part of."""
    while name not in graph.modules:
        name = name.rpartition(".")[0]
    return name


def _depend(graph: grimp.ImportGraph, importer: str, imported: set[str]) -> None:
    for name in imported - {importer}:
        graph.add_import(importer=importer, imported=name)
