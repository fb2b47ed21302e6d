"""What a start is checked against: kept on the container, which outlives its plan."""

from __future__ import annotations

import functools
import json
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from sparkdeploy import labels
from sparkdeploy.checkpoint.draft_layer import DraftWeights, stated_draft_layer
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.checkpoint.stated import stated_shared_experts
from sparkdeploy.checks.rdma import chosen_adapters
from sparkdeploy.console import console
from sparkdeploy.errors import CheckpointError, UnhealthyError
from sparkdeploy.estimate.memory_claim import MemoryClaim  # noqa: TC001 - read from a label
from sparkdeploy.node.node import named
from sparkdeploy.plan.backends import PlannedBackend, planned_backends, planned_transport
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.server.backend_check import Match, compare_backends
from sparkdeploy.server.phases import read_whole

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerFact, ListedContainer
    from sparkdeploy.node.node import Node
    from sparkdeploy.plan.steps import Part, Plan
    from sparkdeploy.server.facts import EngineFacts


@dataclass(frozen=True, slots=True)
class ExpectedTreatment:
    """What the plugin has to say that it converted."""

    fp8_layers: int
    lm_head: str
    draft_head_rows: int | None
    draft_layer: DraftWeights | None = None
    """None where the draft layer stays as it is, and where nothing drafts."""
    shared_int4_layers: int = 0
    """Modules of shared experts that become INT4."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The memory that is taken, and what the engine's log has to show."""

    memory: MemoryClaim | None
    backends: tuple[PlannedBackend, ...]
    treatment: ExpectedTreatment | None
    """None where the untouched download is served."""

    def as_label(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def verify_part(node: Node, fact: ContainerFact, facts: EngineFacts | None = None) -> None:
    """Compare a part's log with what its container was made with; UnhealthyError names the node.

    The log is read unless `facts` has what it says. A container of an earlier version was made with
    no expectation, and is believed.
    """
    expected = expectation_on(fact)
    if expected is None:
        return
    if facts is None:
        with named(node):
            facts = read_whole(node.docker.logs(fact.container_id, this_run=fact)).facts
    if not (node.is_here or facts.has_plugin_line):
        # A worker's log may say nothing of the plugin, as under Ray.
        expected = replace(expected, treatment=None)
    try:
        check_backends(expected, facts)
    except UnhealthyError as error:
        if not node.is_here:
            error.message = f"{node.name}: {error.message}"
        raise


@functools.cache
def _reader() -> TypeAdapter[Expectation]:
    return TypeAdapter(Expectation)


def expectation_of(plan: Plan, part: Part) -> Expectation:
    """Raises CheckpointError when a prepared checkpoint has lost its manifest."""
    backends = planned_backends(plan.resolved)
    if part.spec is not None:
        backends += planned_transport(plan.resolved, part.spec.env, _adapters(plan, part))
    return Expectation(part.claim, backends, _treatment(plan))


def _adapters(plan: Plan, part: Part) -> tuple[str, ...]:
    """Return the adapters that each process whose words stand in a part's log has to take."""
    logged = plan.parts if plan.formation.backend == "ray" and part is plan.head else (part,)
    chosen = [chosen_adapters(it.spec.env, it.seat.rdma) for it in logged if it.spec is not None]
    return tuple(name for name in chosen[0] if all(name in names for names in chosen))


def expectation_on(fact: ListedContainer) -> Expectation | None:
    """Return what a container was made with; None without a label, as of an earlier version."""
    try:
        return _reader().validate_json(fact.labels[labels.EXPECTATION], strict=True)
    except (KeyError, ValueError):
        return None


def _treatment(plan: Plan) -> ExpectedTreatment | None:
    model, recipe = plan.observed.model, plan.resolved.recipe
    if not isinstance(model, ModelFact) or model.overlay is None:
        return None
    manifest = read_manifest(Path(model.overlay.path))
    if manifest is None:
        raise CheckpointError(
            f"{model.overlay.path} has lost its manifest",
            hint=f"rm -r {shlex.quote(str(model.overlay.path))}",
        )
    drafts = recipe.serve.speculative is not None
    head = recipe.checkpoint.draft_lm_head if drafts else None
    return ExpectedTreatment(
        fp8_layers=manifest.fp8_layer_count,
        lm_head=manifest.treatment["lm_head"],
        draft_head_rows=head.rows if head is not None else None,
        draft_layer=stated_draft_layer(Path(model.overlay.path)) if drafts else None,
        shared_int4_layers=stated_shared_experts(Path(model.overlay.path)),
    )


def check_backends(expected: Expectation, facts: EngineFacts) -> None:
    """Compare what the engine says of itself with what was planned.

    Warns of a back end that is not the recipe's. Raises UnhealthyError when the plugin converted
    something else, or NCCL goes over sockets where the recipe does not allow it.
    """
    if expected.treatment is not None:
        _check_treatment(expected.treatment, facts)
    found = compare_backends(expected.backends, facts)
    for finding in found:
        if finding.match is Match.DIFFERS and not finding.is_failure:
            console.warn(finding.describe())
    failed = next((finding for finding in found if finding.is_failure), None)
    if failed is not None:
        raise UnhealthyError(
            f"NCCL fell back: {failed.describe()}",
            hint="if that is fine: --set 'backends.warn_only=[transport]'",
        )


def _check_treatment(expected: ExpectedTreatment, facts: EngineFacts) -> None:
    fault = "this is a fault of sparkdeploy: please report it with the crash folder"
    wanted = (expected.fp8_layers, expected.lm_head)
    if (facts.fp8_layers, facts.lm_head) != wanted:
        said = f"fp8={facts.fp8_layers} layers, lm_head={facts.lm_head}"
        raise UnhealthyError(
            f"the recipe asks for fp8={wanted[0]} layers and lm_head={wanted[1]}, but the "
            f"plugin {'said ' + said if facts.has_plugin_line else 'said nothing'}",
            hint=fault,
        )
    shared = facts.shared_int4_layers or 0
    if shared != expected.shared_int4_layers:
        raise UnhealthyError(
            f"the recipe asks for int4={expected.shared_int4_layers} layers of shared experts, and "
            f"the plugin made {shared}",
            hint=fault,
        )
    # A draft model that shares the target's head drafts as well, only slower: nobody would see.
    wanted_rows, made_rows = expected.draft_head_rows, facts.draft_head_rows
    if wanted_rows is not None and made_rows != wanted_rows:
        raise UnhealthyError(
            f"the recipe asks for a draft head of {wanted_rows} rows, and the plugin made "
            f"{'none' if made_rows is None else f'one of {made_rows}'}",
            hint=fault,
        )
    layer, made = expected.draft_layer, (facts.draft_int4_layers, facts.draft_fp8_layers)
    if layer is not None and made != (layer.int4_layers, layer.fp8_layers):
        made_text = (
            "said nothing of it" if made == (None, None) else f"made int4={made[0]}, fp8={made[1]}"
        )
        raise UnhealthyError(
            f"the recipe asks for a draft layer of int4={layer.int4_layers} layers of experts and "
            f"fp8={layer.fp8_layers} layers, and the plugin {made_text}",
            hint=fault,
        )
