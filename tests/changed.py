"""Prints the test files that a change can break: `python -m tests.changed [REVISION]`.

The change is what differs between a revision and the working tree, with files that git does not
know yet. Without a revision it is the merge base with the upstream branch, or the last commit.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import grimp

from tests.import_graph import (
    PLUGIN_TREE,
    REPOSITORY,
    file_of,
    import_graph,
    is_test_file,
    modules_of,
)

ALWAYS = {"tests.unit.test_changed", "tests.unit.test_layers"}
"""They read every file there is, and take seconds."""
NAMED = (
    *("CHANGELOG.md", "LICENSE", "README.md", "docs", "install.sh", "sparkdeploy/vllm_plugin"),
    *("tests/engine/inside/doors", "tests/engine/inside/plugin_checks", "tests/golden"),
    *("tests/gpu", "tests/unit/checks/recordings", "tests/unit/plan/recordings"),
    "tests/unit/server/logs",
)
"""Places that are read only by tests that name them, by their last part in quotes or a path."""
COPIED = {
    "sparkdeploy/image/inside": ("sparkdeploy.image.stages",),
    "sparkdeploy/vllm_plugin": (
        *("tests.cluster", "tests.engine.image", "tests.engine.inside", "tests.engine.vllm"),
        "tests.unit.image",
    ),
}
"""What goes into images as files, and who builds these images."""


def main(arguments: list[str]) -> int:
    """Print the files; return 2 when git does not know the revision."""
    try:
        paths = changed_files(REPOSITORY, arguments[0] if arguments else None)
    except subprocess.CalledProcessError:
        return 2
    for module in sorted(selected(import_graph(), paths) if paths else ()):
        print(file_of(module).relative_to(REPOSITORY))
    return 0


def changed_files(checkout: Path, revision: str | None = None) -> set[str]:
    """Return what differs from a revision, relative to a checkout; renamed files have two names.

    Raises CalledProcessError when git does not know the revision; git has said so on stderr.
    """
    revision = revision or _merge_base(checkout)
    differing = _git(checkout, "diff", "--name-only", "--no-renames", "-z", revision, "--")
    untracked = _git(checkout, "ls-files", "--others", "--exclude-standard", "-z")
    return set((differing + untracked).split("\0")) - {""}


def selected(graph: grimp.ImportGraph, paths: Iterable[str]) -> set[str]:
    """Return the test modules that changed files can break: all, for a file without a rule."""
    found = set(ALWAYS)
    for path in paths:
        readers = _readers(graph, path)
        if not readers:
            return set(filter(is_test_file, graph.modules))
        for module in readers:
            found |= {module, *graph.find_downstream_modules(module)}
    return set(filter(is_test_file, found))


def _readers(graph: grimp.ImportGraph, path: str) -> set[str]:
    """Return the modules that a file is, or that read it; none when no rule knows it."""
    found = _named_by(path, graph) | _beside(path, graph)
    for folder, copiers in COPIED.items():
        if _is_in(path, folder):
            found |= {module for name in copiers for module in modules_of(graph, name)}
    return found


def _beside(path: str, graph: grimp.ImportGraph) -> set[str]:
    """A module is itself, a package's own is all beneath it, and data is read by its folder's."""
    folder = _dotted(Path(path).parent)
    module = f"{folder}.{Path(path).stem}"
    if path.endswith("/__init__.py") and folder in graph.modules:
        return modules_of(graph, folder)
    if path.endswith(".py"):
        return {module} & graph.modules
    return graph.find_children(folder) if folder in graph.modules else set()


def _named_by(path: str, graph: grimp.ImportGraph) -> set[str]:
    places = [place for place in NAMED if _is_in(path, place)]
    if not places:
        return set()
    name = re.compile(rf'(?:"|[\w.]/){re.escape(Path(places[0]).name)}["/]')
    files = {module: file_of(module) for module in modules_of(graph, "tests")}
    return ALWAYS | {
        module for module, file in files.items() if file.is_file() and name.search(file.read_text())
    }


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def _dotted(folder: Path) -> str:
    own = REPOSITORY / folder
    root = PLUGIN_TREE if own.is_relative_to(PLUGIN_TREE / "sparkdeploy_vllm") else REPOSITORY
    return ".".join(own.relative_to(root).parts)


def _merge_base(checkout: Path) -> str:
    """Return where this branch left its upstream one; without one, the last commit."""
    argv = ["git", "merge-base", "HEAD", "@{upstream}"]
    done = subprocess.run(argv, cwd=checkout, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "HEAD"


def _git(checkout: Path, *arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=checkout, text=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
