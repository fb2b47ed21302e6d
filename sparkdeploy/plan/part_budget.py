"""The memory that a part has for requests beside its weights, estimated before a start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import Finding, not_seen, ok, warn
from sparkdeploy.estimate.hardware import Hardware
from sparkdeploy.estimate.memory import make_budget
from sparkdeploy.estimate.model_facts import ModelFacts
from sparkdeploy.estimate.weights import WeightKind
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.estimate.memory import Budget
    from sparkdeploy.plan.observed import ObservedNode
    from sparkdeploy.plan.steps import Part, Plan

CHECK = "machine.room"


def budget_finding(plan: Plan, part: Part, seen: ObservedNode) -> Iterator[Finding]:
    """Say how many requests fit by estimate; a model whose size nobody knows is never passed."""
    claim, weights_bytes = part.claim, part.needs.weights_bytes
    is_too_large = (
        claim is not None and weights_bytes is not None and weights_bytes > claim.needed_bytes
    )
    if plan.resolved.engine.runs_on == "cpu" or is_too_large:
        return  # of what is too large no context is short enough, and what refuses it says so
    if weights_bytes is None or seen.facts.memory_total_bytes is None:
        why = _unknown(plan, weights_bytes)
        name = plan.resolved.recipe.model.source
        yield not_seen(
            CHECK,
            f"memory was not checked, for nobody says how large {name} is"
            + (f": {why}" if why else ""),
        )
        return
    budget = _budget(plan, part, seen, weights_bytes, seen.facts.memory_total_bytes)
    row, weights = budget.longest, format_gib(budget.weight_bytes)
    if budget.unknown:
        yield ok(
            CHECK, f"weights take {weights}; what a request takes is not known: {budget.unknown}"
        )
    elif row is not None and row.concurrency < 1:
        cluster = "" if plan.formation.is_alone else " --cluster"
        show = f"sparkdeploy show {plan.resolved.called} --capacity{cluster}"
        yield warn(
            CHECK,
            f"by estimate one request of {row.context_tokens:,} tokens does not fit beside "
            f"{weights} of weights",
            f"lower serve.max_model_len or compress the cache: `{show}`",
        )
    elif row is not None:
        yield ok(
            CHECK,
            f"by estimate {row.concurrency:.1f} requests of {row.context_tokens:,} tokens fit "
            f"beside {weights} of weights",
        )


def _unknown(plan: Plan, weights_bytes: int | None) -> str:
    model = plan.observed.model
    if model is None:
        return "the model was not looked for"
    if isinstance(model, ModelFact) and not model.has_weights:
        return "its files hold no weights"
    return model.unknown if weights_bytes is None else "the memory of this machine"


def _budget(
    plan: Plan, part: Part, seen: ObservedNode, weights_bytes: int, memory_bytes: int
) -> Budget:
    """Count weights and cache against what vLLM may take of a node."""
    model, gpu = plan.observed.model, seen.facts.gpu
    own_bytes = gpu.memory_bytes if gpu is not None else None
    hardware = Hardware(
        name=part.node,
        title=part.node,
        memory_bytes=own_bytes or memory_bytes,
        bandwidth_bytes_s=0.0,
        source="seen",
        shares_memory=own_bytes is None,
    )
    facts = ModelFacts(
        repo=plan.resolved.recipe.model.source,
        architecture=model.layers if model is not None else None,
        weight_bytes={WeightKind.OTHER: weights_bytes},
        origin="file sizes",
        unknown=model.unknown if model is not None else "",
        tensor_ranks=plan.formation.tensor_parallel,
        stages=plan.formation.pipeline_parallel,
    )
    return make_budget(plan.resolved, facts, hardware)
