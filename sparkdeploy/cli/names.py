"""The names that Tab offers: recipes, engines, sources, deployments, images, nodes and runs.

They are listed when they are asked for, so none is out of date. What cannot be read, or does not
answer in time, has no names: somebody is in the middle of a line.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sparkdeploy import folders, labels

ENGINE_TIMEOUT_S = 0.3
"""The Docker Engine takes some milliseconds; a shell waits for all of it."""
MAX_BYTES = 4 << 20
"""Of an engine's answer, and of one source's index."""
MAX_RUNS = 100
DEFAULT_ENGINE = "unix:///var/run/docker.sock"
# What a shell or a terminal would obey is not offered: zsh evaluates what it is given.
_OFFERED = re.compile(r"[A-Za-z0-9][\w./:@-]*")


def completing(list_names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return the callback that Typer asks for the names that begin as what was typed."""

    def complete(incomplete: str) -> list[str]:
        try:
            names = sorted({name for name in list_names() if _OFFERED.fullmatch(name)})
        except (OSError, ValueError):
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


def recipes() -> Iterator[str]:
    yield from _in_recipe_folders("*.yaml")
    for source in sources():
        for row in _index_rows(_state("sources", source, "taken", ".sparkdeploy-source")):
            if not row.get("refusal"):
                yield f"{source}/{row.get('name')}"


def engines() -> Iterator[str]:
    return _in_recipe_folders("engines/*.yaml")


def sources() -> Iterator[str]:
    for path in _state("sources").glob("*/taken/.sparkdeploy-source"):
        yield path.parent.parent.name


def deployments() -> Iterator[str]:
    for item in _from_engine("/containers/json?all=1&", labels.DEPLOYMENT):
        name = str((item.get("Labels") or {}).get(labels.DEPLOYMENT, ""))
        # Anybody can put our label on a container of another name.
        if any(called.startswith(f"/sparkdeploy-{name}") for called in item.get("Names") or ()):
            yield name


def images() -> Iterator[str]:
    for item in _from_engine("/images/json?", labels.KIND):
        yield from item.get("RepoTags") or ()
    yield from engines()


def nodes() -> Iterator[str]:
    cluster = _configuration().get("cluster")
    listed = cluster.get("nodes") if isinstance(cluster, dict) else None
    for node in listed if isinstance(listed, list) else ():
        if isinstance(node, dict):
            yield str(node.get("name"))


def runs() -> Iterator[str]:
    newest_first = sorted(_state("bench").glob("*.json"), reverse=True)
    return (path.stem for path in newest_first[:MAX_RUNS])


def _state(*parts: str) -> Path:
    return Path(folders.state_dir(os.environ), *parts)


def _in_recipe_folders(pattern: str) -> Iterator[str]:
    for folder in folders.recipe_folders(Path(folders.config_dir(os.environ))):
        yield from (path.stem for path in folder.glob(pattern))


def _index_rows(index: Path) -> list[dict[str, Any]]:
    if index.stat().st_size > MAX_BYTES:
        return []
    content = json.loads(index.read_bytes())
    rows = content.get("rows") if isinstance(content, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _configuration() -> dict[str, Any]:
    """Return what config.yaml holds, unchecked; nothing where it cannot be read."""
    from sparkdeploy import yaml_text
    from sparkdeploy.errors import RecipeError

    path = Path(folders.config_dir(os.environ)) / folders.CONFIG_FILE
    try:
        content = yaml_text.load(yaml_text.read_text(path), str(path)) if path.is_file() else {}
    except RecipeError:
        return {}
    return content if isinstance(content, dict) else {}


def _from_engine(route: str, label: str) -> list[dict[str, Any]]:
    """Ask the Docker Engine's socket without the SDK, which takes longer to import."""
    configured = os.environ.get("SPARKDEPLOY_DOCKER_HOST") or _configuration().get("docker_host")
    address = str(configured or os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE)
    if not address.startswith("unix://"):
        return []
    question = f"{route}filters=%7B%22label%22%3A%5B%22{label}%22%5D%7D"
    answer = json.loads(_body(address.removeprefix("unix://"), question))
    return [item for item in answer if isinstance(item, dict)] if isinstance(answer, list) else []


def _body(path: str, question: str) -> bytes:
    import socket

    with socket.socket(socket.AF_UNIX) as engine:
        engine.settimeout(ENGINE_TIMEOUT_S)
        engine.connect(path)
        # In the older protocol an answer ends with its connection.
        engine.sendall(f"GET {question} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
        received = b""
        while piece := engine.recv(1 << 16):
            received += piece
            if len(received) > MAX_BYTES:
                raise OSError("the answer is too long")
    return received.partition(b"\r\n\r\n")[2]
