"""Whether a node has the memory for what it serves: the one place that judges it."""

import math
from collections.abc import Iterable, Iterator, Set

from sparkdeploy.checks.machine import check_page_cache
from sparkdeploy.checks.report import Finding, fail, not_seen, ok, warn
from sparkdeploy.estimate.hardware import Hardware
from sparkdeploy.estimate.memory import MemoryClaim, make_budget
from sparkdeploy.estimate.model import ModelFacts, WeightKind
from sparkdeploy.estimate.verdict import Fits, verdict_of
from sparkdeploy.node.container import ListedContainer
from sparkdeploy.plan.observed import ModelFact, ObservedNode
from sparkdeploy.plan.steps import BUDGET_CHECK, Action, NodePlan, Plan
from sparkdeploy.recipe.image_pins import is_unknown
from sparkdeploy.units import format_gib

MOST_MACHINES = 8
"""No message advises more: what the design is for."""


def memory(plan: Plan, planned: NodePlan, seen: ObservedNode) -> Iterator[Finding]:
    """Yield whether the weights fit, whether enough is free, and how many requests fit."""
    claim, weights_bytes = planned.claim, planned.needs.weights_bytes
    vllm_bytes = claim.vllm_bytes if claim is not None else None
    is_new = planned.action is not Action.REUSE
    if vllm_bytes is not None and (weights_bytes or 0) > vllm_bytes:
        # No context is short enough for it, so nothing is said of requests.
        if is_new:
            yield _too_large(plan, claim, weights_bytes or 0, vllm_bytes)
        return
    yield from _requests(plan, planned, seen)
    available_bytes = seen.facts.memory_available_bytes
    if claim is None or (available_bytes is None and seen.facts.memory_total_bytes is None):
        yield not_seen("machine.memory", "/proc/meminfo cannot be read")
        return
    # What runs already has its memory; a finding about it would only be noise.
    free_bytes = _free_bytes(plan, seen)
    if is_new and free_bytes is not None and free_bytes < claim.total_bytes:
        yield shortage(claim, free_bytes)
    elif available_bytes is not None:
        yield ok(
            "machine.memory",
            f"{format_gib(available_bytes)} available, {plan.resolved.recipe.name} takes "
            f"{format_gib(claim.needed_bytes)}",
        )
    else:
        yield not_seen("machine.memory", "/proc/meminfo does not say what is available")
    gpu = seen.facts.gpu if plan.resolved.engine.runs_on != "cpu" else None
    if is_new and gpu is not None and gpu.memory_bytes is None:
        yield check_page_cache(seen.facts.meminfo, claim.needed_bytes)


def _too_large(
    plan: Plan, claim: MemoryClaim | None, weights_bytes: int, vllm_bytes: int
) -> Finding:
    share = plan.resolved.recipe.serve.gpu_memory_utilization
    whose = "machine's" if claim is not None and vllm_bytes == claim.needed_bytes else "GPU's"
    takes = f"takes {format_gib(weights_bytes)}, and vLLM may use {format_gib(vllm_bytes)} "
    takes += f"({share:g} of the {whose} memory)"
    if plan.topology.is_alone:
        needed = math.ceil(weights_bytes / max(vllm_bytes, 1))
        # A machine without the GPU that the engine needs is none to take more of.
        serves = plan.resolved.engine.runs_on == "cpu" or plan.observed.head.facts.gpu is not None
        is_near = serves and needed <= MOST_MACHINES
        divided = f", {needed} such machines with --cluster" if is_near else ""
        seen = f"memory: the weights alone {takes.replace('takes', 'take', 1)}"
        fix = f"use a machine with more memory{divided}, or a smaller model"
        return fail("machine.memory", seen, fix)
    fix = f"divide the model among more nodes than {len(plan.nodes)}: "
    fix += f"--set cluster.tensor_parallel={2 * plan.topology.tensor_parallel}, or a smaller model"
    return fail("machine.memory", f"memory: its share of the weights alone {takes}", fix)


def _free_bytes(plan: Plan, seen: ObservedNode) -> int | None:
    """Return what is free once a container that is replaced has ended; None where unknown."""
    if seen.facts.memory_total_bytes is None:
        return None
    # What is promised to others counts, whether they have taken it yet or not.
    name = plan.deployment.name
    unpromised = seen.facts.memory_total_bytes - promised_bytes(seen.containers, {name})
    if seen.facts.memory_available_bytes is None:
        return unpromised
    existing = seen.container(name)
    freed = existing.promised_bytes if existing is not None and existing.is_running else 0
    return min(seen.facts.memory_available_bytes + freed, unpromised)


def promised_bytes(containers: Iterable[ListedContainer], but: Set[str]) -> int:
    """Return what all deployments but some were planned to take, also those still loading."""
    others = (it for it in containers if it.is_running and it.deployment not in but)
    return sum(it.promised_bytes for it in others)


def shortage(claim: MemoryClaim, available_bytes: int) -> Finding:
    return fail(
        "machine.memory",
        f"memory: {format_gib(claim.needed_bytes)} needed and {format_gib(claim.floor_bytes)} "
        f"kept free for the machine, but only {format_gib(max(available_bytes, 0))} are available",
        "stop other programs (`sparkdeploy status` shows ours), drop the page cache, or lower "
        "serve.gpu_memory_utilization",
    )


def _requests(plan: Plan, planned: NodePlan, seen: ObservedNode) -> Iterator[Finding]:
    """Say how many requests fit by estimate; a model whose size nobody knows is never passed."""
    model, weights_bytes = plan.observed.model, planned.needs.weights_bytes
    if plan.resolved.engine.runs_on == "cpu":
        return
    gpu_bytes = seen.facts.gpu.memory_bytes if seen.facts.gpu is not None else None
    memory_bytes = gpu_bytes or seen.facts.memory_total_bytes
    if weights_bytes is None or memory_bytes is None:
        name = plan.resolved.recipe.model.source
        why = "the model was not looked for" if model is None else model.unknown
        if isinstance(model, ModelFact) and not model.has_weights:
            why = "its files hold no weights"
        elif model is not None and weights_bytes is not None:
            why = "the memory of this machine"
        reason = f"memory was not checked, for nobody says how large {name} is"
        yield not_seen(BUDGET_CHECK, reason + (f": {why}" if why else ""))
        return
    hardware = Hardware(planned.node, planned.node, memory_bytes, 0.0, "seen", gpu_bytes is None)
    facts = ModelFacts(
        repo=plan.resolved.recipe.model.source,
        architecture=model.layers if model is not None else None,
        weight_bytes={WeightKind.OTHER: weights_bytes},
        origin="file sizes",
        unknown=model.unknown if model is not None else "",
        tensor_ranks=plan.topology.tensor_parallel,
        stages=plan.topology.pipeline_parallel,
    )
    budget = make_budget(plan.resolved, facts, hardware)
    verdict = verdict_of(plan.resolved.recipe, budget, facts, tok_s=None)
    weights = f"{format_gib(budget.weight_bytes)} of weights"
    if verdict.fits is Fits.NO:
        cluster = "" if plan.topology.is_alone else " --cluster"
        show = f"sparkdeploy plan {plan.resolved.called} --hardware here -v{cluster}"
        fix = f"`{show}` counts what takes the memory"
        # Nobody held the estimate against an image of others, or against what is insisted on.
        is_sure = not (is_unknown(plan.resolved.engine) or plan.resolved.recipe.allow_known_bad)
        made = fail if is_sure and plan.resolved.engine.kind != "image" else warn
        yield made(BUDGET_CHECK, f"by estimate {verdict.reason}", fix)
    elif verdict.fits is Fits.UNKNOWN:
        yield ok(BUDGET_CHECK, f"{weights}; what a request takes is not known: {budget.unknown}")
    elif verdict.requests is not None:
        fits = f"{verdict.requests:.1f} requests of {verdict.context_tokens:,} tokens fit"
        yield ok(BUDGET_CHECK, f"by estimate {fits} beside {weights}")
