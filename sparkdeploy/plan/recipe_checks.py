"""Preflight checks of the recipe itself: what it may run, and what its engine can give."""

import re
from collections.abc import Iterator

from sparkdeploy.checks.report import Finding, Verdict, fail_early, ok, warn
from sparkdeploy.plan.known_bad import failures
from sparkdeploy.plan.steps import Plan
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.mods import proposed_setting
from sparkdeploy.recipe.releases import family_of, parse_version
from sparkdeploy.recipe.rules import Mistake
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.recipe.words import shown

MAX_LISTED = 8
"""Of the settings with consent; `show` and `plan --show mods` have the rest."""
DELTA_NET_CACHING = (0, 20, 0)
"""The first release whose prefix cache of DeltaNet states was not reported to crash."""
MEASURED = "qwen3.5-122b-a10b"
"""The model for which speeds with one and two drafted tokens were reported."""


def remote_code(plan: Plan) -> Iterator[Finding]:
    check, recipe = "recipe.remote_code", plan.resolved.recipe
    if not recipe.serve.trust_remote_code:
        yield ok(check, "the model's repository runs no code")
        return
    yield warn(
        check,
        f"{recipe.model.source} may run Python of its own in the container (trust_remote_code)",
        "read that code first, or --set serve.trust_remote_code=false",
    )


def consent(plan: Plan) -> Iterator[Finding]:
    check, resolved = "recipe.unsafe", plan.resolved
    if resolved.pending:
        for it in resolved.pending[:MAX_LISTED]:
            seen = f"`up` asks for your consent to {shown('.'.join(map(str, it.path)))}"
            yield Finding(check, Verdict.WARN, f"{seen}: {it.message}")
        if (left := len(resolved.pending) - MAX_LISTED) > 0:
            show = f"sparkdeploy show {resolved.called} --allow-unsafe"
            fix = f"`{show}` prints all and runs nothing"
            yield warn(check, f"`up` asks for your consent to {left} more things", fix)
        return
    if not resolved.recipe.allow_unsafe and not resolved.allowed:
        yield ok(check, "no setting of a foreign recipe loads code or moves files")
        return
    # A value may be a secret, and a crash folder has this finding.
    allowed = [shown(_setting_of(it)) for it in dict.fromkeys(resolved.allowed)]
    if not allowed:
        unused = "--allow-unsafe is given, and nothing of this recipe needs it"
        yield warn(check, unused, "leave --allow-unsafe out")
        return
    more = [f"and {len(allowed) - MAX_LISTED} more"] if len(allowed) > MAX_LISTED else []
    given = "--allow-unsafe" if resolved.recipe.allow_unsafe else "your earlier answer"
    # There is no fix: without consent the recipe is refused.
    listed = ", ".join([*allowed[:MAX_LISTED], *more])
    yield Finding(check, Verdict.WARN, f"allowed by {given}: {listed}")


def _setting_of(asked: Mistake) -> str:
    """Return what a consent was for: a flag by its name, anything else by its path."""
    if asked.path[:2] == ("serve", "extra_args"):
        return re.split("[ =:]", asked.message, maxsplit=1)[0]
    return ".".join(map(str, asked.path))


def arguments(plan: Plan) -> Iterator[Finding]:
    for warning in plan.resolved.warnings:
        yield warn(
            "recipe.arguments",
            f"{warning} (the nearest release says so, not the image itself)",
            "none needed where the image has a vLLM of its author's own",
        )


def known_to_fail(plan: Plan) -> Iterator[Finding]:
    """Name what the engine's release is known to do wrong with such a recipe."""
    for row, is_mended in failures(plan.case):
        seen = f"vLLM {plan.resolved.engine.vllm}: {row.why} ({row.source})"
        if is_mended:
            seen += f"; so it is started with {' '.join(row.arguments)}"
        yield Finding("recipe.known_bad", Verdict.WARN, seen, None if is_mended else row.fix)


def mods_are_here(plan: Plan) -> Iterator[Finding]:
    """Name mods that are not here: nobody knows what they would make of the image."""
    for mod in plan.resolved.mods:
        if mod.is_missing:
            lacks = f"the source {mod.source} has no" if mod.source else "there is no"
            yield fail_early(
                "image.mods",
                f"{lacks} mod {shown(mod.name)}: its run.sh was looked for {mod.places()}",
                f"name its folder: {proposed_setting(plan.resolved.mods)}; or serve without mods: "
                "--set 'mods=[]'",
            )


def engine_is_enough(plan: Plan) -> Iterator[Finding]:
    recipe = plan.resolved.recipe
    # A rehearsal runs the CPU engine, whatever the recipe needs.
    if recipe.preview and plan.resolved.engine.kind not in ("image", "cpu"):
        fix = "name its image: --set engine=image --set image=NAME:TAG"
        yield fail_early("recipe.preview", f"{recipe.name} needs {recipe.preview}", fix)


def nodes_are_enough(plan: Plan) -> Iterator[Finding]:
    recipe, count = plan.resolved.recipe, len(plan.nodes)
    if count < recipe.cluster.least_nodes:
        needs = f"{recipe.name} needs {recipe.cluster.least_nodes} nodes (cluster.min_nodes), and "
        fix = f"sparkdeploy up {plan.resolved.called} --cluster"
        yield fail_early("recipe.nodes", f"{needs}this plan has {count}", fix)


def idle_stop(plan: Plan) -> Iterator[Finding]:
    """Refuse it for several nodes: a head's guard cannot free the memory of the others."""
    if plan.resolved.recipe.limits.idle_stop_s is not None and not plan.topology.is_alone:
        seen = "limits.idle_stop_s stops a deployment of one machine, and this plan has "
        fix = "--set limits.idle_stop_s=null, or serve it on one machine with --solo"
        yield fail_early("recipe.idle", f"{seen}{len(plan.nodes)} nodes", fix)


CHECKS = (
    remote_code,
    consent,
    arguments,
    known_to_fail,
    mods_are_here,
    engine_is_enough,
    nodes_are_enough,
    idle_stop,
)
"""Of every plan."""


def recipe_findings(recipe: Recipe, engine: Engine) -> Iterator[Finding]:
    """Yield what the doctor says of a recipe beyond what every plan does."""
    yield _speculation(recipe)
    yield _prefix_caching(recipe, engine)
    yield _tool_parser(recipe)
    yield _reasoning(recipe)


def _speculation(recipe: Recipe) -> Finding:
    check, speculative = "recipe.speculation", recipe.serve.speculative
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


def _prefix_caching(recipe: Recipe, engine: Engine) -> Finding:
    check, is_on = "recipe.prefix_caching", recipe.serve.enable_prefix_caching
    if is_on and parse_version(engine.vllm) < DELTA_NET_CACHING:
        return warn(
            check,
            f"prefix caching of DeltaNet layers is wrong in vLLM {engine.vllm}",
            "--set serve.enable_prefix_caching=false, or --set engine=cuda-0.25",
        )
    return ok(check, "left to vLLM" if is_on is None else "set")


def _tool_parser(recipe: Recipe) -> Finding:
    check, parser = "recipe.tool_parser", recipe.serve.tool_call_parser
    family = family_of(recipe.model.known_as)
    if family is not None and parser in family.parsers.leave_calls_empty:
        seen = f"the parser {parser} leaves the tool calls of {family.name} empty"
        return warn(check, seen, f"--set serve.tool_call_parser={family.parsers.tools}")
    if parser is not None and not recipe.serve.enable_auto_tool_choice:
        seen = f"the parser {parser} is never asked without automatic tool choice"
        return warn(check, seen, "--set serve.enable_auto_tool_choice=true")
    return ok(check, parser or "no tool calls")


def _reasoning(recipe: Recipe) -> Finding:
    check, parser = "recipe.reasoning", recipe.serve.reasoning_parser
    if parser is None:
        return ok(check, "reasoning and answer are one text")
    until = "`content` is null until the reasoning in `reasoning` ends; raise max_tokens"
    return ok(check, f"{parser}: {until}")
