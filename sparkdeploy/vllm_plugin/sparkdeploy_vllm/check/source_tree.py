"""Finds what a Python source defines, and functions' arguments, without importing it."""

import ast
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign
Function = ast.FunctionDef | ast.AsyncFunctionDef
_MAX_HOPS = 8


class SourceTree:
    """The packages below one folder. Follows re-exports and base classes by their imports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._parsed: dict[str, ast.Module] = {}

    def find(self, module: str, dotted: str) -> Definition | None:
        first, _, member = dotted.partition(".")
        if not member:
            located = self._locate(module, first, _MAX_HOPS)
            return located[1] if located else None
        for definition in self._classes(module, first, _MAX_HOPS):
            for node in definition.body:
                if isinstance(node, Definition) and member in _names(node):
                    return node
        return None

    def methods(self, module: str, class_name: str) -> dict[str, list[str]]:
        """All arguments of every method that the class has, by `Class.method` of the class that
        defines it; base classes that are not below the folder count for nothing.
        """
        found: dict[str, list[str]] = {}
        hidden: set[str] = set()
        for definition in self._classes(module, class_name, _MAX_HOPS):
            own = [node for node in definition.body if isinstance(node, Function)]
            for node in own:
                if node.name not in hidden:
                    listed = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                    found[f"{definition.name}.{node.name}"] = [one.arg for one in listed]
            hidden |= {node.name for node in own}
        return found

    def call_keywords(self, module: str, function: str) -> set[str]:
        """Keywords that every call of `function` in the module passes."""
        nodes = ast.walk(self._parse(module))
        calls = [
            {keyword.arg for keyword in node.keywords if keyword.arg}
            for node in nodes
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == function
        ]
        return set.intersection(*calls) if calls else set()

    def mentions(self, module: str, text: str) -> bool:
        nodes = ast.walk(self._parse(module))
        return any(isinstance(node, ast.Constant) and node.value == text for node in nodes)

    def _locate(self, module: str, name: str, hops: int) -> tuple[str, Definition] | None:
        if hops == 0:
            return None
        for node in _top_level(self._parse(module)):
            if isinstance(node, Definition) and name in _names(node):
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._locate(self._target(module, node), alias.name, hops - 1)
        return None

    def _classes(self, module: str, name: str, hops: int) -> Iterator[ast.ClassDef]:
        located = self._locate(module, name, hops)
        if located is None or not isinstance(located[1], ast.ClassDef):
            return
        yield located[1]
        for base in located[1].bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(plain, ast.Name):
                yield from self._classes(located[0], plain.id, hops - 1)

    def _target(self, module: str, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        is_package = self._file(module).name == "__init__.py"
        package = module if is_package else module.rpartition(".")[0]
        return resolve_name("." * node.level + (node.module or ""), package)

    def _parse(self, module: str) -> ast.Module:
        if module not in self._parsed:
            file = self._file(module)
            text = file.read_text(encoding="utf-8") if file.is_file() else ""
            self._parsed[module] = ast.parse(text)
        return self._parsed[module]

    def _file(self, module: str) -> Path:
        path = self.root.joinpath(*module.split("."))
        package = path / "__init__.py"
        return package if package.is_file() else path.with_suffix(".py")


def signature_of(definition: Definition) -> tuple[list[str], list[str]] | None:
    """Names of the arguments after self or cls, and those of them without a default."""
    if not isinstance(definition, Function):
        return None
    arguments = definition.args
    names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    required = names[: len(names) - len(arguments.defaults)]
    required += [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    bound = names[:1] in (["self"], ["cls"])
    return names[bound:], [name for name in required if name not in names[:bound]]


def _names(definition: Definition) -> list[str]:
    if not isinstance(definition, ast.Assign | ast.AnnAssign):
        return [definition.name]
    targets = definition.targets if isinstance(definition, ast.Assign) else [definition.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    queue = list(tree.body)
    while queue:
        node = queue.pop(0)
        yield node
        if isinstance(node, ast.If | ast.Try):
            queue += [*node.body, *node.orelse]
        if isinstance(node, ast.Try):
            queue += [inner for handler in node.handlers for inner in handler.body]
