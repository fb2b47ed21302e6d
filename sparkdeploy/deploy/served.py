"""What others have to know of a deployment to use it, read from its container's labels alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy import labels
from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import EXIT_IDLE
from sparkdeploy.plan.launch import Exposure

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.node.container import ContainerFact, ListedContainer
    from sparkdeploy.settings import Settings

_UNITS = (("h", 3600), ("m", 60), ("s", 1))


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
    """What a request may take in all, where the recipe says it."""
    writes_text: bool = True
    """Whether it answers in words; an embedding model does not."""
    drafts: bool = False
    """Whether it speculates, so that some kinds of sampling are refused."""

    @property
    def model(self) -> str:
        return self.models[0]


def served_by(fact: ListedContainer, settings: Settings) -> ServedDeployment:
    """Return what a container of ours serves, running or not.

    Raises NodeError where its labels do not tell a port and a name for requests.
    """
    values = _recipe_values(fact)
    named = fact.labels.get(labels.SERVED_NAME)
    if fact.port is None or named is None:
        raise NodeError(
            f"the labels of {fact.name} tell no port, or no name for requests",
            hint=f"`sparkdeploy up --name {fact.deployment}` makes it anew",
        )
    is_public = fact.labels.get(labels.EXPOSURE) == Exposure.PUBLIC.value
    serve = values.get("serve", {})
    tokens = serve.get("max_model_len")
    aliases = values.get("model", {}).get("served_name")
    return ServedDeployment(
        name=fact.deployment,
        recipe=fact.labels.get(labels.RECIPE, ""),
        port=fact.port,
        models=tuple(dict.fromkeys((named, *(aliases if isinstance(aliases, list) else ())))),
        key_file=settings.state_dir / "keys" / fact.deployment if is_public else None,
        context_tokens=tokens if isinstance(tokens, int) else None,
        writes_text=serve.get("runner") != "pooling",
        drafts=bool(serve.get("speculative")),
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
    """Return the recipe's own values; empty for a container that was made by hand."""
    values: dict[str, Any] = json.loads(fact.labels.get(labels.RECIPE_VALUES, "{}"))
    return values
