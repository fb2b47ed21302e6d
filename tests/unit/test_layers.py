"""Packages import downwards only, and each library has one wrapper."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdeploy.image.stages import GUARD_MODULES
from tests import syntax
from tests.unit.conftest import REPOSITORY

PACKAGE = REPOSITORY / "sparkdeploy"
MAX_LINES = 400
MAX_FUNCTION_LINES = 60
NOTES = ("field", "vllm", "rehearsal", "reference-system", "style")
"""Files of notes that were never part of the repository: what they say stands where it is used."""

LAYERS = (
    (
        *("about", "atomic_files", "bounded_http", "errors", "folders", "labels"),
        *("stored_json", "terminal", "units"),
    ),
    ("secret_shapes", "settings", "shell", "yaml_text"),
    ("recipe",),
    ("node",),
    ("checkpoint", "image"),
    ("checks", "estimate"),
    ("plan",),
    ("server",),
    ("deploy",),
    ("rehearsal", "bench", "export", "gateway", "authoring", "upkeep", "chat", "monitor"),
    ("cli",),
)
# Where a wrapper has several modules, they are one class: other packages use DockerHost alone.
WRAPPERS = {
    "docker": {"sparkdeploy.node.connection", "sparkdeploy.node.containers"},
    "filelock": {"sparkdeploy.checkpoint.transfer"},
    "h11": {"sparkdeploy.bench.streams"},
    "huggingface_hub": {
        *("sparkdeploy.checkpoint.hub", "sparkdeploy.checkpoint.hub_client"),
        *("sparkdeploy.checkpoint.store", "sparkdeploy.checkpoint.transfer"),
    },
    "starlette": {
        "sparkdeploy.gateway.access",
        "sparkdeploy.gateway.app",
        "sparkdeploy.gateway.proxy",
    },
    "subprocess": {"sparkdeploy.shell"},
    "uvicorn": {"sparkdeploy.gateway.app"},
    "jinja2": {"sparkdeploy.image.templates"},
    "rich": {"sparkdeploy.terminal.progress"},
    "yaml": {"sparkdeploy.yaml_text"},
}
ONLY_FOR_A_START = {
    *("filelock", "httpx2", "huggingface_hub", "rich", "ruamel", "sparkdeploy.export"),
    *(f"sparkdeploy.deploy.{it}" for it in ("expectation", "lifecycle", "prepare", "wait")),
    *("sparkdeploy.deploy.replace", "sparkdeploy.image.build", "sparkdeploy.recipe.foreign"),
    *(f"sparkdeploy.server.{it}" for it in ("crash", "facts", "health", "metrics", "phases")),
}
"""What an `up` with nothing to do leaves alone: half of its time is imports."""
INSIDE_IMAGES = "sparkdeploy.image.inside."
"""Programs that an image's own Python runs, with nothing of sparkdeploy beside them."""
DOCKER_INTERNALS = {"connection", "containers"}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "vllm_plugin" not in path.parts:
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), path


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    return tuple(_imports(syntax.tree(path.read_text())))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if not (REPOSITORY / node.module.replace(".", "/")).is_dir():
                yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(module: str) -> int | None:
    """The layer of a module's package; None for what stands above all of them."""
    package = module.split(".")[1] if module.startswith("sparkdeploy.") else ""
    return next((index for index, packages in enumerate(LAYERS) if package in packages), None)


def test_every_module_belongs_to_a_layer() -> None:
    outside = {module for module, _ in modules() if layer_of(module) is None}
    assert outside == {"sparkdeploy", "sparkdeploy.__main__", "sparkdeploy.uninstall"}


def test_a_package_imports_nothing_above_it() -> None:
    backward = [
        f"{module} imports {name}"
        for module, path in modules()
        if (own := layer_of(module)) is not None
        for name in imports(path)
        if (layer_of(name) or 0) > own
    ]
    assert backward == []


@pytest.mark.parametrize(("library", "wrapper"), list(WRAPPERS.items()))
def test_a_library_has_one_wrapper(library: str, wrapper: set[str]) -> None:
    users = {
        module
        for module, path in modules()
        if any(name.split(".")[0] == library for name in imports(path))
        if not module.startswith(INSIDE_IMAGES)
    }
    assert users == wrapper


def test_other_packages_reach_docker_through_docker_host_only() -> None:
    hidden = {f"sparkdeploy.node.{name}" for name in DOCKER_INTERNALS}
    users = {
        module
        for module, path in modules()
        if not module.startswith("sparkdeploy.node.") and hidden & set(imports(path))
    }
    assert users == set()


def test_a_module_stays_small() -> None:
    large = [
        module for module, path in modules() if len(path.read_text().splitlines()) >= MAX_LINES
    ]
    assert large == [], "split along a noun"


def test_a_name_means_one_class() -> None:
    names = [
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in syntax.tree(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_plugin_imports_nothing_of_the_rest() -> None:
    for path in sorted((PACKAGE / "vllm_plugin").rglob("*.py")):
        names = [name for name in imports(path) if name.split(".")[0] == "sparkdeploy"]
        assert names == [], path


def test_an_image_that_has_the_guard_alone_has_all_that_it_imports() -> None:
    package = PACKAGE / "vllm_plugin" / "sparkdeploy_vllm"
    # The package's own function is the plugin's, which nothing calls there.
    files = [package / f"{name}.py" for name in GUARD_MODULES if name != "__init__"]
    for path in (*files, *sorted((package / "guard").rglob("*.py"))):
        own = {name.split(".")[1] for name in imports(path) if name.startswith("sparkdeploy_vllm.")}
        assert own <= {*GUARD_MODULES, "guard"}, path


def test_an_up_with_nothing_to_do_loads_no_more_than_it_uses() -> None:
    loads = "import sys, sparkdeploy.cli.deployments, sparkdeploy.cli.outcome, docker"
    code = f"{loads}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ONLY_FOR_A_START & set(done.stdout.split()) == set()


def test_hosts_of_the_outside_world_stand_in_one_file() -> None:
    text = (PACKAGE / "registries.yaml").read_text()
    hosts = {line.split("://")[-1].split("/")[0] for line in text.splitlines() if "://" in line}
    roots = ("sparkdeploy", "recipes", "dockerfiles", "tests", "install.sh", "docs", "README.md")
    for path in texts(*roots):
        if path.name != "registries.yaml":
            content = path.read_text(errors="ignore")
            assert not [host for host in hosts if host in content], path


def test_a_function_stays_small() -> None:
    long = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(syntax.tree(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert long == []


def test_nothing_refers_to_notes_that_are_not_here() -> None:
    gone = [name for name in NOTES if not (REPOSITORY / "docs" / f"{name}.md").exists()]
    reference = re.compile(rf"(?<![\w-])({'|'.join(gone)})\.md\b")
    found = [
        f"{path.relative_to(REPOSITORY)}: {match[0]}"
        for path in texts("sparkdeploy", "docs", "recipes", "dockerfiles", "tests")
        if (match := reference.search(path.read_text(errors="ignore"))) is not None
    ]
    assert found == []


def texts(*roots: str) -> Iterator[Path]:
    """Every file below these folders, and these files; nothing that Python compiled."""
    for root in roots:
        base = REPOSITORY / root
        for path in [base] if base.is_file() else sorted(base.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                yield path
