"""The memory that a part has for requests beside its weights, estimated before a start."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class PartBudget:
    """The budget of one part; None where something it needs is not known, which `unknown` says."""

    budget: Budget | None
    unknown: str = ""


def budget_of(plan: Plan, part: Part, seen: ObservedNode) -> PartBudget:
    """Count weights and cache against what vLLM may take of a node."""
    model, memory_bytes = plan.observed.model, seen.facts.memory_total_bytes
    weights_bytes = part.needs.weights_bytes
    if isinstance(model, ModelFact) and not model.has_weights:
        return PartBudget(None, "its files hold no weights")
    if model is None:
        return PartBudget(None, "the model was not looked for")
    if weights_bytes is None:
        return PartBudget(None, model.unknown)
    if memory_bytes is None:
        return PartBudget(None, "the memory of this machine")
    gpu = seen.facts.gpu
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
        architecture=model.layers,
        weight_bytes={WeightKind.OTHER: weights_bytes},
        origin="file sizes",
        unknown=model.unknown,
        tensor_ranks=plan.formation.tensor_parallel,
        stages=plan.formation.pipeline_parallel,
    )
    budget = make_budget(plan.resolved, facts, hardware)
    return PartBudget(budget, budget.unknown)


def budget_finding(plan: Plan, part: Part, seen: ObservedNode) -> Iterator[Finding]:
    """Say how many requests fit by estimate; a model whose size nobody knows is never passed."""
    if plan.resolved.engine.runs_on == "cpu":
        return
    claim, weights_bytes = part.claim, part.needs.weights_bytes
    if claim is not None and weights_bytes is not None and weights_bytes > claim.needed_bytes:
        return  # no context is short enough, and what to do is said by what refuses it
    estimate = budget_of(plan, part, seen)
    if estimate.budget is None:
        yield not_checked(plan, estimate.unknown)
        return
    row, weights = estimate.budget.longest, format_gib(estimate.budget.weight_bytes)
    if estimate.unknown:
        yield ok(
            CHECK, f"weights take {weights}; what a request takes is not known: {estimate.unknown}"
        )
    elif row is not None and row.concurrency < 1:
        yield warn(
            CHECK,
            f"by estimate one request of {row.context_tokens:,} tokens does not fit beside "
            f"{weights} of weights",
            f"lower serve.max_model_len or compress the cache: `{_capacity_command(plan)}`",
        )
    elif row is not None:
        yield ok(
            CHECK,
            f"by estimate {row.concurrency:.1f} requests of {row.context_tokens:,} tokens fit "
            f"beside {weights} of weights",
        )


def _capacity_command(plan: Plan) -> str:
    cluster = "" if plan.formation.is_alone else " --cluster"
    return f"sparkdeploy show {plan.resolved.called} --capacity{cluster}"


def not_checked(plan: Plan, reason: str) -> Finding:
    name = plan.resolved.recipe.model.source
    why = f": {reason}" if reason else ""
    return not_seen(CHECK, f"memory was not checked, for nobody says how large {name} is{why}")
