"""The recipe: settings that are valid and known to fail or be slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import Finding, Verdict, ok, warn
from sparkdeploy.recipe.families import family_of
from sparkdeploy.recipe.features import parse_version
from sparkdeploy.recipe.words import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe

MAX_LISTED = 8
"""Of the settings with consent; `show` and `plan --show mods` have the rest."""
DELTA_NET_CACHING = (0, 20, 0)
"""The first release whose prefix cache of DeltaNet states was not reported to crash."""
MEASURED = "qwen3.5-122b-a10b"
"""The model for which speeds with one and two drafted tokens were reported."""


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
