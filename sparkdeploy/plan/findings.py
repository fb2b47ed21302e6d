"""What the doctor's checks say of a plan: of its machines, its recipe and every step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.checks.docker import check_low_disk, check_nvidia_runtime
from sparkdeploy.checks.finding import Finding, Verdict, fail, not_seen, ok, warn
from sparkdeploy.checks.machine import (
    check_gpu,
    check_other_users,
    check_page_cache,
    check_swap,
    gpu_findings,
)
from sparkdeploy.checks.symptoms import check_kho
from sparkdeploy.estimate.hardware import Hardware
from sparkdeploy.estimate.memory import make_budget
from sparkdeploy.estimate.model_facts import ModelFacts
from sparkdeploy.estimate.weights import WeightKind
from sparkdeploy.plan.backends import SOCKETS_COST, allows_sockets, uses_sockets
from sparkdeploy.plan.container import container_user, has_adapters
from sparkdeploy.plan.launch import fabric_env
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.plan.steps import Action
from sparkdeploy.recipe.releases import family_of, parse_version
from sparkdeploy.recipe.words import shown
from sparkdeploy.units import format_bytes, format_gib

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sparkdeploy.estimate.memory import Budget
    from sparkdeploy.plan.observed import ObservedNode
    from sparkdeploy.plan.steps import Part, Plan
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe

BUDGET_CHECK = "machine.room"
MAX_LISTED = 8
"""Of the settings with consent; `show` and `plan --show mods` have the rest."""
DELTA_NET_CACHING = (0, 20, 0)
"""The first release whose prefix cache of DeltaNet states was not reported to crash."""
MEASURED = "qwen3.5-122b-a10b"
"""The model for which speeds with one and two drafted tokens were reported."""


def machine_findings(plan: Plan) -> Iterator[Finding]:
    """Yield what every check says that matters for the nodes' parts, good and bad.

    Among several nodes each finding says which one it is about.
    """
    for part in plan.parts:
        seen = plan.observed.node(part.node)
        if seen is None:
            continue
        prefix = "" if plan.topology.is_alone else f"{part.node}: "
        for finding in (
            *_findings_of_node(plan.resolved, seen, part),
            *_budget_finding(plan, part, seen),
        ):
            yield replace(finding, seen=prefix + finding.seen)
        if part.seat.is_head:
            yield from trust_findings(plan.resolved)
            yield from argument_findings(plan.resolved.warnings)
            yield from _transport(plan)


def _transport(plan: Plan) -> Iterator[Finding]:
    """Say what a recipe gives away that lets NCCL do without the adapters of config.yaml."""
    parts = [it for it in plan.parts if has_adapters(plan.resolved, plan.topology, it.seat)]
    if not parts:
        return
    env = fabric_env(plan.resolved, plan.topology, parts[0].seat)
    fix = "leave it out, unless RDMA does not work there: `sparkdeploy cluster check` says so"
    if uses_sockets(env):
        seen = "the recipe makes NCCL use sockets, and config.yaml names RDMA adapters"
    elif allows_sockets(plan.resolved):
        seen = "the recipe lets NCCL fall back to sockets (backends.warn_only)"
    else:
        return
    yield warn("network.transport", f"{seen}: {SOCKETS_COST}", fix)


def _findings_of_node(resolved: Resolved, seen: ObservedNode, part: Part) -> Iterator[Finding]:
    on_gpu = resolved.engine.runs_on != "cpu"
    if on_gpu:
        yield from _gpu_findings(resolved, seen)
        yield check_kho(seen.facts.meminfo)
    # What runs already has its memory; a finding about it would only be noise.
    if part.action is not Action.REUSE:
        gpu = seen.facts.gpu if on_gpu else None
        yield check_swap(seen.facts.meminfo)
        if gpu is not None and gpu.memory_bytes is None:
            yield check_page_cache(seen.facts.meminfo, part.needs.memory_bytes)


def _gpu_findings(resolved: Resolved, seen: ObservedNode) -> Iterator[Finding]:
    node, recipe = seen.facts, resolved.recipe
    # A rehearsal has vLLM's own CPU build, which knows nothing of a fork.
    needs_another = bool(recipe.preview) or resolved.engine.kind == "image"
    yield check_gpu(
        node.gpu,
        node.gpu_failure,
        node=node.name,
        engine=resolved.engine.name,
        rehearsed=None if needs_another else resolved.called,
    )
    if node.gpu is None:
        return
    yield from gpu_findings(node.gpu)
    ours = frozenset(item.container_id for item in seen.containers)
    yield check_other_users(node.gpu_processes, ours)
    if node.docker is not None:
        yield check_nvidia_runtime(has_runtime=node.docker.has_nvidia_runtime)


def _budget_finding(plan: Plan, part: Part, seen: ObservedNode) -> Iterator[Finding]:
    """Say how many requests fit by estimate; a model whose size nobody knows is never passed."""
    claim, weights_bytes = part.claim, part.needs.weights_bytes
    vllm_bytes = claim.vllm_bytes if claim is not None else None
    is_too_large = (vllm_bytes or 0) < (weights_bytes or 0) and vllm_bytes is not None
    if plan.resolved.engine.runs_on == "cpu" or is_too_large:
        return  # of what is too large no context is short enough, and what refuses it says so
    if weights_bytes is None or seen.facts.memory_total_bytes is None:
        why = _why_unknown(plan, weights_bytes)
        name = plan.resolved.recipe.model.source
        yield not_seen(
            BUDGET_CHECK,
            f"memory was not checked, for nobody says how large {name} is"
            + (f": {why}" if why else ""),
        )
        return
    budget = _part_budget(plan, part, seen, weights_bytes, seen.facts.memory_total_bytes)
    row, weights = budget.longest, format_gib(budget.weight_bytes)
    if budget.unknown:
        yield ok(
            BUDGET_CHECK,
            f"weights take {weights}; what a request takes is not known: {budget.unknown}",
        )
    elif row is not None and row.concurrency < 1:
        cluster = "" if plan.topology.is_alone else " --cluster"
        show = f"sparkdeploy show {plan.resolved.called} --capacity{cluster}"
        yield warn(
            BUDGET_CHECK,
            f"by estimate one request of {row.context_tokens:,} tokens does not fit beside "
            f"{weights} of weights",
            f"lower serve.max_model_len or compress the cache: `{show}`",
        )
    elif row is not None:
        yield ok(
            BUDGET_CHECK,
            f"by estimate {row.concurrency:.1f} requests of {row.context_tokens:,} tokens fit "
            f"beside {weights} of weights",
        )


def _why_unknown(plan: Plan, weights_bytes: int | None) -> str:
    model = plan.observed.model
    if model is None:
        return "the model was not looked for"
    if isinstance(model, ModelFact) and not model.has_weights:
        return "its files hold no weights"
    return model.unknown if weights_bytes is None else "the memory of this machine"


def _part_budget(
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
        tensor_ranks=plan.topology.tensor_parallel,
        stages=plan.topology.pipeline_parallel,
    )
    return make_budget(plan.resolved, facts, hardware)


def plan_findings(plan: Plan) -> Iterator[Finding]:
    """Yield the machine's findings, every problem, and what is well, each check once."""
    yield from plan.findings
    reported = {item.check for item in plan.findings}
    for problem in plan.problems:
        if problem.check not in reported:
            reported.add(problem.check)
            yield problem
    yield from (item for item in _passed(plan) if item.check not in reported)


def _passed(plan: Plan) -> Iterator[Finding]:
    node, recipe = plan.observed.head.facts, plan.resolved.recipe
    yield _memory(plan)
    if node.docker is not None and node.docker_free_bytes is not None:
        yield check_low_disk(node.docker, node.docker_free_bytes)
    if node.data_free_bytes is not None:
        yield ok("folders.disk", f"{format_bytes(node.data_free_bytes)} free for models")
    yield ok("ports.recipe", f"port {recipe.serve.port} is free, or {plan.deployment.name}'s own")
    yield _model(plan)
    if isinstance(plan.observed.model, ModelFact):
        yield ok("folders.readable", "the container's user can read every file of the model")
        uid, _ = container_user(plan.observed.model)
        yield ok("folders.owner", f"the container runs as uid {uid}")
    if node.docker is not None:
        yield _image(plan)


def _memory(plan: Plan) -> Finding:
    check = "machine.memory"
    node, needed = plan.observed.head.facts, plan.head.needs.memory_bytes
    if node.memory_available_bytes is None or needed is None:
        return not_seen(check, "/proc/meminfo cannot be read")
    return ok(
        check,
        f"{format_gib(node.memory_available_bytes)} available, {plan.resolved.recipe.name} takes "
        f"{format_gib(needed)}",
    )


def _model(plan: Plan) -> Finding:
    check = "folders.model"
    if plan.observed.missing:
        missing = plan.observed.missing[0]
        return warn(check, missing.describe(), missing.fetch_command)
    if not isinstance(plan.observed.model, ModelFact):
        return not_seen(check, "the model was not looked for")
    return ok(check, f"{plan.observed.model.root}, {format_bytes(plan.observed.model.size_bytes)}")


def _image(plan: Plan) -> Finding:
    check = "docker.image"
    step = plan.images[-1]
    image = plan.observed.head.images.get(step.stage.tag)
    if image is None or step.action is not Action.REUSE:
        # What it will be called depends on the base, and no registry was asked for that here.
        return ok(check, f"{plan.resolved.engine.name} has no such image yet; `up` makes it")
    if step.stage.name == "guard":
        return ok(check, f"{step.stage.tag}: {plan.resolved.engine.image} as it is, and the guard")
    rebuild = f"sparkdeploy image rm {step.stage.tag}, then `sparkdeploy up` builds it anew"
    if not image.proof:
        return warn(check, f"{step.stage.tag} has no record of what it holds", rebuild)
    if image.proof.get("selfcheck") != "fits":
        return fail(check, f"{step.stage.tag}: the plugin does not fit its vLLM", rebuild)
    return ok(check, f"{step.stage.tag}: vLLM {image.proof.get('vllm')}, the plugin fits")


def recipe_findings(recipe: Recipe, engine: Engine) -> Iterator[Finding]:
    yield _check_speculation(recipe)
    yield _check_prefix_caching(recipe, engine)
    yield _check_tool_parser(recipe)
    yield _check_reasoning(recipe)


def trust_findings(resolved: Resolved) -> Iterator[Finding]:
    """Yield the foreign code that the recipe may run; every plan shows it."""
    check, recipe = "recipe.remote_code", resolved.recipe
    if recipe.serve.trust_remote_code:
        yield warn(
            check,
            f"{recipe.model.source} may run Python of its own in the container (trust_remote_code)",
            "read that code first, or --set serve.trust_remote_code=false",
        )
    else:
        yield ok(check, "the model's repository runs no code")
    yield _check_consent(resolved)


def _check_consent(resolved: Resolved) -> Finding:
    check = "recipe.unsafe"
    if not resolved.recipe.allow_unsafe and not resolved.allowed:
        return ok(check, "no setting of a foreign recipe loads code or moves files")
    # A value may be a secret, and a crash folder has this finding.
    allowed = [shown(".".join(map(str, it.path))) for it in dict.fromkeys(resolved.allowed)]
    if not allowed:
        unused = "--allow-unsafe is given, and nothing of this recipe needs it"
        return warn(check, unused, "leave --allow-unsafe out")
    more = [f"and {len(allowed) - MAX_LISTED} more"] if len(allowed) > MAX_LISTED else []
    listed = ", ".join([*allowed[:MAX_LISTED], *more])
    # There is no fix: without consent the recipe is refused.
    return Finding(check, Verdict.WARN, f"allowed by {_given(resolved)}: {listed}")


def _given(resolved: Resolved) -> str:
    return "--allow-unsafe" if resolved.recipe.allow_unsafe else "your earlier answer"


def argument_findings(warnings: Iterable[str]) -> Iterator[Finding]:
    """Yield arguments that an image's vLLM may refuse, by the nearest release's parser."""
    for warning in warnings:
        yield warn(
            "recipe.arguments",
            f"{warning} (the nearest release says so, not the image itself)",
            "none needed where the image has a vLLM of its author's own",
        )


def _check_speculation(recipe: Recipe) -> Finding:
    check = "recipe.speculation"
    speculative = recipe.serve.speculative
    if speculative is None and recipe.checkpoint.mtp == "required":
        return warn(
            check,
            f"{recipe.name} prepares the MTP weights and does not draft with them",
            "--set 'serve.speculative={method: mtp, tokens: 2}'",
        )
    is_measured = MEASURED in recipe.model.known_as.lower()
    if speculative is None:
        two = "; `mtp-2` and `v2` draft two tokens a step, others saw 30 -> 42 tok/s"
        return ok(check, f"none{two if is_measured else ''}")
    method = speculative.method or f"as {speculative.model} says"
    seen = f"{method}, tokens a step: {speculative.tokens}"
    if is_measured and speculative.is_mtp and speculative.tokens < 2:
        return ok(check, f"{seen}; two were about 10 % faster for others")
    return ok(check, seen)


def _check_prefix_caching(recipe: Recipe, engine: Engine) -> Finding:
    check = "recipe.prefix_caching"
    is_old = parse_version(engine.vllm) < DELTA_NET_CACHING
    if recipe.serve.enable_prefix_caching and is_old:
        return warn(
            check,
            f"prefix caching of DeltaNet layers is wrong in vLLM {engine.vllm}",
            "--set serve.enable_prefix_caching=false, or --set engine=cuda-0.25",
        )
    return ok(check, "left to vLLM" if recipe.serve.enable_prefix_caching is None else "set")


def _check_tool_parser(recipe: Recipe) -> Finding:
    check = "recipe.tool_parser"
    parser, automatic = recipe.serve.tool_call_parser, recipe.serve.enable_auto_tool_choice
    family = family_of(recipe.model.known_as)
    if family is not None and parser in family.parsers.leave_calls_empty:
        seen = f"the parser {parser} leaves the tool calls of {family.name} empty"
        return warn(check, seen, f"--set serve.tool_call_parser={family.parsers.tools}")
    if parser is not None and not automatic:
        seen = f"the parser {parser} is never asked without automatic tool choice"
        return warn(check, seen, "--set serve.enable_auto_tool_choice=true")
    return ok(check, parser or "no tool calls")


def _check_reasoning(recipe: Recipe) -> Finding:
    check = "recipe.reasoning"
    parser = recipe.serve.reasoning_parser
    if parser is None:
        return ok(check, "reasoning and answer are one text")
    until = "`content` is null until the reasoning in `reasoning` ends; raise max_tokens"
    return ok(check, f"{parser}: {until}")
