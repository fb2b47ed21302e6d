"""Finds what a Python source defines, and functions' arguments, without importing it."""

import ast
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign
_MAX_HOPS = 8


class SourceTree:
    """The packages below one folder. Follows re-exports and base classes by their imports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._parsed: dict[str, ast.Module | None] = {}

    def find(self, module: str, dotted: str) -> Definition | None:
        """The definition of `name` or `Class.member`, None when there is none."""
        first, _, member = dotted.partition(".")
        located = self._locate(module, first, _MAX_HOPS)
        if located is None or not member:
            return located[1] if located else None
        return self._member(*located, member, _MAX_HOPS)

    def signature(self, definition: Definition) -> tuple[list[str], list[str]] | None:
        """Names of the arguments after self or cls, and those of them without a default."""
        if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
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

    def methods(self, module: str, class_name: str) -> dict[str, list[str]]:
        """Every method that the class has, as `Class.method` of the class that defines it, with all
        its arguments; base classes that are not below the folder count for nothing.
        """
        located = self._locate(module, class_name, _MAX_HOPS)
        return self._methods(*located, _MAX_HOPS) if located else {}

    def call_keywords(self, module: str, function: str) -> set[str]:
        """Keywords that every call of `function` in the module passes."""
        calls = [
            {keyword.arg for keyword in node.keywords if keyword.arg}
            for node in ast.walk(self._parse(module) or ast.Module([], []))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == function
        ]
        return set.intersection(*calls) if calls else set()

    def mentions(self, module: str, text: str) -> bool:
        """Whether a string of the module is exactly `text`."""
        tree = self._parse(module) or ast.Module([], [])
        return any(isinstance(node, ast.Constant) and node.value == text for node in ast.walk(tree))

    def _locate(self, module: str, name: str, hops: int) -> tuple[str, Definition] | None:
        tree = self._parse(module)
        if tree is None or hops == 0:
            return None
        for node in _top_level(tree):
            if isinstance(node, Definition) and name in _names(node):
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._locate(self._target(module, node), alias.name, hops - 1)
        return None

    def _member(
        self, module: str, definition: Definition, member: str, hops: int
    ) -> Definition | None:
        if not isinstance(definition, ast.ClassDef) or hops == 0:
            return None
        for node in definition.body:
            if isinstance(node, Definition) and member in _names(node):
                return node
        for base in definition.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            if not isinstance(plain, ast.Name):
                continue
            located = self._locate(module, plain.id, hops - 1)
            found = self._member(*located, member, hops - 1) if located else None
            if found is not None:
                return found
        return None

    def _methods(self, module: str, definition: Definition, hops: int) -> dict[str, list[str]]:
        if not isinstance(definition, ast.ClassDef) or hops == 0:
            return {}
        own = _own_methods(definition)
        found = {f"{definition.name}.{name}": arguments for name, arguments in own.items()}
        for base in definition.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            located = self._locate(module, plain.id, hops) if isinstance(plain, ast.Name) else None
            inherited = self._methods(*located, hops - 1) if located else {}
            hidden = {name.rpartition(".")[2] for name in found}
            found |= {k: v for k, v in inherited.items() if k.rpartition(".")[2] not in hidden}
        return found

    def _target(self, module: str, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        package = module.split(".")
        if self._file(module).name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - (node.level - 1)]
        return ".".join([*package, *([node.module] if node.module else [])])

    def _parse(self, module: str) -> ast.Module | None:
        if module not in self._parsed:
            file = self._file(module)
            self._parsed[module] = (
                ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else None
            )
        return self._parsed[module]

    def _file(self, module: str) -> Path:
        path = self.root.joinpath(*module.split("."))
        package = path / "__init__.py"
        return package if package.is_file() else path.with_suffix(".py")


def _own_methods(definition: ast.ClassDef) -> dict[str, list[str]]:
    return {
        node.name: [
            argument.arg
            for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        ]
        for node in definition.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _names(definition: Definition) -> list[str]:
    if isinstance(definition, ast.Assign):
        targets = definition.targets
    elif isinstance(definition, ast.AnnAssign):
        targets = [definition.target]
    else:
        return [definition.name]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _top_level(tree: ast.Module) -> list[ast.stmt]:
    """Statements of the module, those inside top-level if and try included."""
    found: list[ast.stmt] = []
    queue = list(tree.body)
    while queue:
        node = queue.pop(0)
        found.append(node)
        if isinstance(node, ast.If):
            queue += [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            queue += [*node.body, *node.orelse]
            queue += [inner for handler in node.handlers for inner in handler.body]
    return found
