"""A deployment as its clients see it: its address, its key, its answer."""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy import labels
from sparkdeploy.deploy.nodes import ClusterRecord
from sparkdeploy.errors import NodeError, UnhealthyError, UsageError
from sparkdeploy.node.container import EXIT_IDLE, ContainerFact, ListedContainer
from sparkdeploy.node.ports import Listener, listener_of
from sparkdeploy.recipe.answers import TEXT, Answers
from sparkdeploy.server.client import ServedModel
from sparkdeploy.stored_json import read_bytes
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.server.metrics import Metrics
    from sparkdeploy.settings import Settings

MAX_KEY_BYTES = 1 << 14
PATIENCE_S = 10.0
"""A server that reads a long prompt may be slow to say that it is well."""
_SAID_UNKNOWN: set[str] = set()
COUNTERS_TIMEOUT_S = 2.0
_UNITS = (("h", 3600), ("m", 60), ("s", 1))


def model_of(
    fact: ContainerFact, settings: Settings, host: DockerHost | None = None
) -> ServedModel:
    """Return a container's client, which sends nothing while another listens on its port."""
    if fact.port is None:
        raise NodeError(
            f"container {fact.name} has no port in its labels",
            hint=f"`sparkdeploy up` makes it anew, or `docker rm -f {fact.name}`",
        )
    return ServedModel(
        f"http://127.0.0.1:{fact.port}",
        read_key(fact, settings),
        model=fact.labels.get(labels.SERVED_NAME),
        require_listener=functools.partial(require_listener, fact, host),
    )


def require_listener(fact: ContainerFact, host: DockerHost | None = None) -> None:
    """UnhealthyError unless a container's own process listens there; one warning if unknown."""
    now = (host.find_container(fact.container_id) if host is not None else None) or fact
    port = fact.port or 0
    found = listener_of(now, port)
    if found is Listener.NOBODY:
        raise UnhealthyError(f"http://127.0.0.1:{port} is not reachable: nobody listens there")
    if found is Listener.ANOTHER:
        raise UnhealthyError(
            f"another program than {fact.name} listens on 127.0.0.1:{port}; neither the key nor "
            "a prompt is sent to it",
            hint=f"`sudo ss -ltnp sport = :{port}` shows which",
        )
    if found is Listener.UNKNOWN and fact.container_id not in _SAID_UNKNOWN:
        _SAID_UNKNOWN.add(fact.container_id)
        console.warn(
            f"whether {fact.name} or another program listens on 127.0.0.1:{port} cannot be seen "
            "from here"
        )


def _key_file(fact: ListedContainer, settings: Settings) -> Path | None:
    is_public = fact.labels.get(labels.EXPOSURE) == labels.PUBLIC
    return settings.state_dir / "keys" / fact.deployment if is_public else None


def read_key(fact: ContainerFact, settings: Settings) -> str | None:
    """Return the deployment's key, None for a loopback deployment; NodeError if unreadable."""
    path = _key_file(fact, settings)
    if path is None:
        return None
    try:
        return path.read_text().strip()
    except OSError as error:
        raise NodeError(
            f"the key of {fact.deployment} cannot be read: {path}: {error.strerror}",
            hint=f"run this as {fact.user or 'the user who deployed it'}",
        ) from error


def read_key_file(path: Path | None) -> str | None:
    """Return the key of a server that is not ours; UsageError for a file that holds none."""
    if path is None:
        return None
    try:
        key = read_bytes(path, MAX_KEY_BYTES).strip()
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be read: {error.strerror}") from error
    if not (key.isascii() and key.decode("ascii").isprintable()):
        # The HTTP library would print it.
        raise UsageError(
            f"the key file {path} holds what no HTTP header can",
            hint="one key, on one line: letters, digits and signs of ASCII",
        )
    return key.decode()


def answers(fact: ContainerFact) -> bool:
    """Say whether the server of a running container calls itself healthy (no key needed)."""
    if not fact.is_running or fact.port is None:
        return False
    if listener_of(fact, fact.port) in {Listener.NOBODY, Listener.ANOTHER}:
        return False
    with ServedModel(f"http://127.0.0.1:{fact.port}") as model:
        return model.is_healthy()


def metrics_of(fact: ContainerFact, settings: Settings) -> Metrics:
    from sparkdeploy.server.metrics import Metrics, read_metrics  # noqa: PLC0415 - for few verbs

    if not fact.is_running:
        return Metrics()
    with contextlib.suppress(NodeError, UnhealthyError), model_of(fact, settings) as model:
        return read_metrics(model.exposition(timeout_s=COUNTERS_TIMEOUT_S)) or Metrics()
    return Metrics()


def require_answers(fact: ContainerFact, model: ServedModel) -> None:
    if not fact.is_running:
        raise UnhealthyError(
            f"deployment {fact.deployment} is not running", hint="`sparkdeploy status` shows why"
        )
    if not model.is_healthy(timeout_s=PATIENCE_S):
        raise UnhealthyError(
            f"deployment {fact.deployment} is still starting, or hangs",
            hint="`sparkdeploy status` says which, and how far it is",
        )


@dataclass(frozen=True, slots=True)
class ServedDeployment:
    name: str
    recipe: str
    port: int
    models: tuple[str, ...]
    """What requests may call it; the first is the one to use."""
    key_file: Path | None = None
    """None: it listens on this machine alone, and asks nobody for a key."""
    context_tokens: int | None = None
    answers: Answers = TEXT
    drafts: bool = False
    """Whether it speculates, so that some kinds of sampling are refused."""
    nodes: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        return self.models[0]


def served_by(fact: ListedContainer, settings: Settings) -> ServedDeployment:
    """Return what a container of ours serves, running or not; NodeError where no label tells."""
    values = _recipe_values(fact)
    named = fact.labels.get(labels.SERVED_NAME)
    if fact.port is None or named is None:
        raise NodeError(
            f"the labels of {fact.name} tell no port, or no name for requests",
            hint=f"`sparkdeploy up --name {fact.deployment}` makes it anew",
        )
    serve = values.get("serve", {})
    tokens = serve.get("max_model_len")
    aliases = values.get("model", {}).get("served_name")
    return ServedDeployment(
        name=fact.deployment,
        recipe=fact.labels.get(labels.RECIPE, ""),
        port=fact.port,
        models=tuple(dict.fromkeys((named, *(aliases if isinstance(aliases, list) else ())))),
        key_file=_key_file(fact, settings),
        context_tokens=tokens if isinstance(tokens, int) else None,
        answers=ClusterRecord.below(settings.state_dir).answers(fact),
        drafts=bool(serve.get("speculative")),
        nodes=fact.nodes,
    )


def stopped_because(fact: ContainerFact) -> str:
    """Say why it stopped itself: `idle for 30m`; empty for what was stopped by a command."""
    if fact.exit_code != EXIT_IDLE or not fact.is_stopped:
        return ""
    idle_s = _recipe_values(fact).get("limits", {}).get("idle_stop_s")
    if not idle_s:
        return "idle"
    unit, size_s = next(it for it in _UNITS if not idle_s % it[1] or it[1] == 1)
    return f"idle for {idle_s / size_s:g}{unit}"


def _recipe_values(fact: ListedContainer) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(fact.labels.get(labels.RECIPE_VALUES, "{}"))
    return values
