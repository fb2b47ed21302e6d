"""What a start is checked against: kept on the container, which outlives its plan."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Mapping  # noqa: TC003 - read from a label
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from sparkdeploy import labels
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.checks.rdma import chosen_adapters
from sparkdeploy.errors import CheckpointError, UnhealthyError
from sparkdeploy.estimate.memory import MemoryClaim  # noqa: TC001 - read from a label
from sparkdeploy.node.node import named
from sparkdeploy.plan.launch import PlannedBackend, planned_backends, planned_transport
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.server.facts import Match, compare_backends
from sparkdeploy.server.phases import read_whole
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerFact, ListedContainer
    from sparkdeploy.node.node import Node
    from sparkdeploy.plan.steps import NodePlan, Plan
    from sparkdeploy.server.facts import BackendCheck, EngineFacts


@dataclass(frozen=True, slots=True)
class Expectation:
    """The memory that is taken, and what the engine's log has to show."""

    memory: MemoryClaim | None
    backends: tuple[PlannedBackend, ...]
    converted: Mapping[str, int | str] | None
    """What the plugin's lines have to say, by their names in EngineFacts; None where the untouched
    download is served."""

    def as_label(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def verify_rank(node: Node, fact: ContainerFact, facts: EngineFacts | None = None) -> None:
    """Compare a rank's log with what its container was made with; UnhealthyError names the node.

    The log is read unless `facts` has what it says.
    """
    expected = expectation_on(fact)
    if expected is None:
        return
    if facts is None:
        with named(node):
            facts = read_whole(node.docker.logs(fact.container_id, this_run=fact)).facts
    if not (node.is_here or facts.has_plugin_line):
        # A worker's log may say nothing of the plugin, as under Ray.
        expected = replace(expected, converted=None)
    try:
        check_backends(expected, facts)
    except UnhealthyError as error:
        if not node.is_here:
            error.message = f"{node.name}: {error.message}"
        raise


@functools.cache
def _reader() -> TypeAdapter[Expectation]:
    return TypeAdapter(Expectation)


def expectation_of(plan: Plan, planned: NodePlan) -> Expectation:
    """Raises CheckpointError when a prepared checkpoint has lost its manifest."""
    backends = planned_backends(plan.resolved)
    if planned.spec is not None:
        backends += planned_transport(plan.resolved, planned.spec.env, _adapters(plan, planned))
    return Expectation(planned.claim, backends, _converted(plan))


def _adapters(plan: Plan, planned: NodePlan) -> tuple[str, ...]:
    """Return the adapters that each process whose words stand in a rank's log has to take."""
    logged = plan.nodes if plan.topology.backend == "ray" and planned is plan.head else (planned,)
    chosen = [chosen_adapters(it.spec.env, it.rank.rdma) for it in logged if it.spec is not None]
    return tuple(name for name in chosen[0] if all(name in names for names in chosen))


def expectation_on(fact: ListedContainer) -> Expectation | None:
    """Return what a container was made with; None for one that was made by hand."""
    text = fact.labels.get(labels.EXPECTATION)
    return _reader().validate_json(text) if text else None


def _converted(plan: Plan) -> dict[str, int | str] | None:
    model, recipe = plan.observed.model, plan.resolved.recipe
    if not isinstance(model, ModelFact) or model.overlay is None:
        return None
    folder = Path(model.overlay.path)
    manifest = read_manifest(folder)
    if manifest is None:
        raise CheckpointError(
            f"{folder} has lost its manifest", hint=f"rm -r {shlex.quote(str(folder))}"
        )
    converted: dict[str, int | str] = {
        "fp8_layers": manifest.fp8_layer_count,
        "lm_head": manifest.conversion["lm_head"],
        "shared_int4_layers": manifest.shared_int4_count,
    }
    if recipe.serve.speculative is not None:
        # A draft model that shares the target's head drafts as well, only slower: nobody would see.
        if recipe.checkpoint.draft_lm_head is not None:
            converted["draft_head_rows"] = recipe.checkpoint.draft_lm_head.rows
        if (layer := manifest.draft_layer) is not None:
            converted["draft_int4_layers"] = layer.int4_layers
            converted["draft_fp8_layers"] = layer.fp8_layers
    return converted


def check_backends(expected: Expectation, facts: EngineFacts) -> None:
    """Compare what the engine says of itself with what was planned.

    Warns of a back end that is not the recipe's. Raises UnhealthyError when the plugin converted
    something else, or NCCL goes over sockets where the recipe does not allow it.
    """
    for name, wanted in (expected.converted or {}).items():
        made = getattr(facts, name)
        # The plugin has no word for what it leaves alone.
        if (made or 0) != (wanted or 0):
            said = f"made {made or 'none'}" if facts.has_plugin_line else "said nothing"
            raise UnhealthyError(
                f"the recipe asks for {name}={wanted}, and the plugin {said}",
                hint="this is a fault of sparkdeploy: please report it with the crash folder",
            )
    failed: BackendCheck | None = None
    for found in compare_backends(expected.backends, facts):
        if found.is_failure:
            failed = failed or found
        elif found.match is Match.DIFFERS:
            console.warn(found.describe())
    if failed is not None:
        raise UnhealthyError(
            f"NCCL fell back: {failed.describe()}",
            hint="if that is fine: --set 'backends.warn_only=[transport]'",
        )
