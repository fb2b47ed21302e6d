"""The names that there are on this machine: of recipes, deployments, nodes, images, runs.

They are listed when they are asked for, so none is out of date. Nothing here loads what the
commands load, and what does not answer within ANSWER_S has no names.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import folders, labels
from sparkdeploy.cli.completion.line import Candidate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sparkdeploy.cli.completion.words import Words

ANSWER_S = 0.3
"""Of the Docker Engine, which takes some milliseconds; a shell waits for all of it."""
MOST_BYTES = 4 << 20
"""Of an engine's answer, and of one source's index."""
LABEL_BYTES = 2048
"""A record of a run begins with its label."""
RUNS = 100
"""The newest are offered."""
DEFAULT_ENGINE = "unix:///var/run/docker.sock"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_ENDING = re.compile(r"|-replaced|-kept-[0-9]+")
_RUN_LABEL = re.compile(rb'"label":\s*("(?:[^"\\]|\\.)*")')


def names_of(kind: str, words: Words) -> Iterator[Candidate]:
    """Yield the names of a kind; none for what shells complete themselves, as files."""
    if kind == "setting":
        yield from (Candidate(f"{path}=") for path in words.settings)
    elif kind in KINDS:
        yield from KINDS[kind](os.environ)


def setting_values(path: str, words: Words) -> Iterator[Candidate]:
    """Yield what `--set PATH=` may be followed by."""
    listed = words.settings.get(path, ())
    values = engines(os.environ) if path == "engine" else map(Candidate, listed)
    yield from (value._replace(text=f"{path}={value.text}") for value in values)


def recipes(env: Mapping[str, str]) -> Iterator[Candidate]:
    yield from _in_recipe_folders("*.yaml", env)
    for source in sources(env):
        index = _state(env, "sources", source.text, "taken", ".sparkdeploy-source")
        for row in _rows(index):
            if isinstance(row, dict) and not row.get("refusal"):
                name, title = row.get("name"), row.get("title")
                yield Candidate(f"{source.text}/{name}", title if isinstance(title, str) else "")


def engines(env: Mapping[str, str]) -> Iterator[Candidate]:
    return _in_recipe_folders("engines/*.yaml", env)


def sources(env: Mapping[str, str]) -> Iterator[Candidate]:
    for path in _state(env, "sources").glob("*/taken/.sparkdeploy-source"):
        yield Candidate(path.parent.parent.name)


def deployments(env: Mapping[str, str]) -> Iterator[Candidate]:
    seen = set()
    for item in _from_engine("/containers/json?all=1&", labels.DEPLOYMENT, env):
        marks = item.get("Labels") or {}
        name, recipe = str(marks.get(labels.DEPLOYMENT, "")), str(marks.get(labels.RECIPE, ""))
        start = f"/sparkdeploy-{name}"
        is_ours = any(
            called.startswith(start) and _ENDING.fullmatch(called[len(start) :])
            for called in item.get("Names") or ()
        )
        if is_ours and _NAME.fullmatch(name) and name not in seen:
            seen.add(name)
            yield Candidate(name, recipe if _NAME.fullmatch(recipe) else "")


def images(env: Mapping[str, str]) -> Iterator[Candidate]:
    for item in _from_engine("/images/json?", labels.KIND, env):
        yield from (Candidate(tag) for tag in item.get("RepoTags") or ())
    yield from engines(env)


def nodes(env: Mapping[str, str]) -> Iterator[Candidate]:
    cluster = _configuration(env).get("cluster")
    listed = cluster.get("nodes") if isinstance(cluster, dict) else None
    for node in listed if isinstance(listed, list) else ():
        if isinstance(node, dict) and isinstance(node.get("name"), str):
            yield Candidate(node["name"], str(node.get("ssh", "")))


def runs(env: Mapping[str, str]) -> Iterator[Candidate]:
    """Yield labels before ids: a label stands for its newest run."""
    newest_first = sorted(_state(env, "bench").glob("*.json"), reverse=True)[:RUNS]
    found = {path.stem: _label(path) for path in newest_first}
    yield from (Candidate(label, "newest run") for label in dict.fromkeys(found.values()) if label)
    yield from (Candidate(run_id, label) for run_id, label in found.items())


def checkpoints(env: Mapping[str, str]) -> Iterator[Candidate]:
    for path in folders.hub_cache(env).glob("models--*--*"):
        yield Candidate("/".join(path.name.split("--")[1:]), "download")
    told = None if env.get("SPARKDEPLOY_DATA_DIR") else _configuration(env).get("data_dir")
    kept = Path(told if isinstance(told, str) else folders.data_dir(env)).expanduser() / "m"
    for kind, name in (("prepared", "ck"), ("fp8", "fp8")):
        yield from (Candidate(path.name, kind) for path in (kept / name).glob("[!.]*"))


KINDS: Mapping[str, Callable[[Mapping[str, str]], Iterable[Candidate]]] = {
    "recipe": recipes,
    "engine": engines,
    "source": sources,
    "deployment": deployments,
    "image": images,
    "node": nodes,
    "run": runs,
    "checkpoint": checkpoints,
}
OF_A_MACHINE = frozenset(KINDS) - {"node", "recipe", "engine", "source"}
"""Kinds whose names another machine has its own of."""


def _state(env: Mapping[str, str], *parts: str) -> Path:
    return Path(os.path.expanduser(folders.state_dir(env)), *parts)  # noqa: PTH111 - never raises


def _config(env: Mapping[str, str]) -> Path:
    return Path(os.path.expanduser(folders.config_dir(env)))  # noqa: PTH111 - as above


def _in_recipe_folders(pattern: str, env: Mapping[str, str]) -> Iterator[Candidate]:
    found = folders.recipe_folders(_config(env))
    stems = {path.stem for folder in found for path in folder.glob(pattern)}
    yield from (Candidate(stem) for stem in sorted(stems))


def _rows(index: Path) -> list[Any]:
    try:
        if index.stat().st_size > MOST_BYTES:
            return []
        content = json.loads(index.read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    rows = content.get("rows") if isinstance(content, dict) else None
    return rows if isinstance(rows, list) else []


def _label(path: Path) -> str:
    try:
        with path.open("rb") as file:
            found = _RUN_LABEL.search(file.read(LABEL_BYTES))
        return str(json.loads(found[1])) if found else ""
    except (OSError, ValueError):
        return ""


def _configuration(env: Mapping[str, str]) -> Mapping[str, Any]:
    """Return what config.yaml holds, checked by nobody; nothing where it cannot be read."""
    path = _config(env) / folders.CONFIG_FILE
    if not path.is_file():
        return {}
    from sparkdeploy import yaml_text
    from sparkdeploy.errors import RecipeError

    try:
        content = yaml_text.load_file(path)
    except RecipeError:
        return {}
    return content if isinstance(content, dict) else {}


def _from_engine(question: str, label: str, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Ask the Docker Engine's socket, without the SDK: that takes 0.2 s to import."""
    told = env.get("SPARKDEPLOY_DOCKER_HOST") or _configuration(env).get("docker_host")
    address = str(told or env.get("DOCKER_HOST") or DEFAULT_ENGINE)
    if not address.startswith("unix://"):
        return []
    filters = "filters=%7B%22label%22%3A%5B%22" + label + "%22%5D%7D"
    try:
        answer = json.loads(_answer(address.removeprefix("unix://"), question + filters))
    except (OSError, ValueError, RecursionError):
        return []
    return [item for item in answer if isinstance(item, dict)] if isinstance(answer, list) else []


def _answer(path: str, question: str) -> bytes:
    """Return the body of an answer; OSError where none comes in time, ValueError for a refusal."""
    import socket

    # In the older protocol an answer ends with its connection.
    request = f"GET {question} HTTP/1.0\r\nHost: docker\r\n\r\n"
    deadline_s = time.monotonic() + ANSWER_S
    received = b""
    with socket.socket(socket.AF_UNIX) as engine:
        engine.settimeout(ANSWER_S)
        engine.connect(path)
        engine.sendall(request.encode())
        while piece := engine.recv(1 << 16):
            received += piece
            if time.monotonic() > deadline_s or len(received) > MOST_BYTES:
                raise OSError("too slow, or too long")
    head, _, body = received.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ValueError("the engine refused")
    return body
