"""A deployment as its clients see it: its address, its key, its answer, what it loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.console import console
from sparkdeploy.errors import NodeError, UnhealthyError, UsageError
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.server.client import ServedModel
from sparkdeploy.server.truth import Agreement, BackendFinding, findings

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.deploy.expectation import Expectation, Treatment
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.server.facts import EngineFacts
    from sparkdeploy.settings import Settings


def served_model(host: DockerHost, container_id: str, settings: Settings) -> ServedModel:
    """Return the client of a container of ours, with its key; NodeError when it is gone."""
    fact = host.find_container(container_id)
    if fact is None:
        raise NodeError(f"container {container_id[:12]} is gone")
    return model_of(fact, settings)


def model_of(fact: ContainerFact, settings: Settings) -> ServedModel:
    """Return the client of a container, from its labels and the deployment's key file.

    Raises NodeError where the labels name no port, or the key cannot be read.
    """
    if fact.port is None:
        raise NodeError(
            f"container {fact.name} has no port in its labels",
            hint=f"`sparkdeploy up` makes it anew, or `docker rm -f {fact.name}`",
        )
    return ServedModel(
        f"http://127.0.0.1:{fact.port}",
        read_key(fact, settings),
        model=fact.labels.get(labels.SERVED_NAME),
    )


def read_key(fact: ContainerFact, settings: Settings) -> str | None:
    """Return the deployment's key, None for a loopback deployment; NodeError if unreadable."""
    if fact.labels.get(labels.EXPOSURE) != Exposure.PUBLIC.value:
        return None
    path = settings.state_dir / "keys" / fact.deployment
    try:
        return path.read_text().strip()
    except OSError as error:
        raise NodeError(
            f"the key of {fact.deployment} cannot be read: {path}: {error.strerror}",
            hint=f"run this as {fact.user or 'the user who deployed it'}",
        ) from error


def read_key_file(path: Path | None) -> str | None:
    """Return the key of a server that is not ours; UsageError when the file cannot be read."""
    if path is None:
        return None
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be read: {error.strerror}") from error


def answers(fact: ContainerFact) -> bool:
    """Say whether the server of a running container calls itself healthy (no key needed)."""
    if not fact.is_running or fact.port is None:
        return False
    with ServedModel(f"http://127.0.0.1:{fact.port}") as model:
        return model.is_healthy()


def check_truth(expected: Expectation, facts: EngineFacts) -> tuple[BackendFinding, ...]:
    """Hold what the engine says of itself against what was planned; return what was found.

    Raises UnhealthyError when the treatment or a back end is not the recipe's: the model would
    run, but as something else. What the recipe lists under `backends.warn_only` is only told.
    """
    if expected.treatment is not None:
        _check_treatment(expected.treatment, facts)
    found = findings(expected.backends, facts)
    for finding in found:
        if finding.agreement is Agreement.DIFFERS and not finding.is_failure:
            console.warn(finding.describe())
    failures = [finding for finding in found if finding.is_failure]
    if failures:
        subjects = ", ".join(finding.planned.subject for finding in failures)
        raise UnhealthyError(
            "the engine fell back to something else than the recipe says: "
            + "; ".join(finding.describe() for finding in failures),
            hint=f"if that is fine, say so in the recipe: `backends: {{warn_only: [{subjects}]}}`",
        )
    return found


def _check_treatment(expected: Treatment, facts: EngineFacts) -> None:
    """Hold what the plugin says it converted against the overlay's manifest.

    Raises UnhealthyError when they differ: the model would run, but not as the recipe says.
    """
    wanted = (expected.fp8_layers, expected.lm_head)
    if (facts.fp8_layers, facts.lm_head) != wanted:
        said = f"fp8={facts.fp8_layers} layers, lm_head={facts.lm_head}"
        raise UnhealthyError(
            f"the recipe asks for fp8={wanted[0]} layers and lm_head={wanted[1]}, but the "
            f"plugin {'said ' + said if facts.plugin_spoke else 'said nothing'}",
            hint="this is a fault of sparkdeploy: please report it with the crash folder",
        )
    _check_draft_head(expected.draft_head_rows, facts)


def _check_draft_head(wanted_rows: int | None, facts: EngineFacts) -> None:
    """A draft model that shares the target's head drafts as well, only slower: nobody would see."""
    if wanted_rows is not None and facts.draft_head_rows != wanted_rows:
        raise UnhealthyError(
            f"the recipe asks for a draft head of {wanted_rows} rows, and the plugin made "
            f"{'none' if facts.draft_head_rows is None else f'one of {facts.draft_head_rows}'}",
            hint="this is a fault of sparkdeploy: please report it with the crash folder",
        )
