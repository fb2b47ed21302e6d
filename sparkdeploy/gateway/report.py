"""A stack's plan in words: what fits together, what excludes each other, what each start costs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from sparkdeploy.checks.report import (
    SIGNS,
    Finding,
    Verdict,
    fail,
    fail_early,
    finding_lines,
    legend,
    not_seen,
    refusal,
    said,
    warn,
)
from sparkdeploy.gateway.fit import ModelFit, StackFit
from sparkdeploy.gateway.plans import PlannedModel, StackPlan
from sparkdeploy.plan.steps import Action
from sparkdeploy.terminal.style import Piece, Style
from sparkdeploy.terminal.tables import Block, Fill, TextColumn, TextRow, TextTable, row_of
from sparkdeploy.units import format_bytes, format_gib, in_seconds

MOST_SETS = 20
"""That are printed; JSON has ten times as many."""
MEMORY_CHECK = "machine.memory"
LESS = "keep one of them `idle`, or give one less: set: [serve.gpu_memory_utilization=0.4]"
TITLES = ("takes", "start", "download")


def stack_lines(plan: StackPlan) -> Iterator[Block]:
    stack, fit = plan.stack, plan.fit
    yield f"stack {stack.name}: {stack.path}"
    host = f"[{stack.host}]" if ":" in stack.host else stack.host
    yield f"  clients ask http://{host}:{stack.port}/v1"
    if plan.hardware is not None:
        yield f"  on {plan.hardware.title}"
    columns = (
        *(TextColumn("model"), TextColumn("kept")),
        *(TextColumn(title, Fill.FIGURE) for title in TITLES),
    )
    yield TextTable(columns, tuple(_row(it, fit) for it in plan.members), indent=2)
    yield "  start: ~ is estimated by the bytes of the weights; the others were measured here"
    total = plan.download_bytes
    yield f"  to download: {'unknown' if total is None else format_bytes(total)} in all"
    yield from (f"  {line}" for line in fit_lines(fit))
    found = (*findings(plan), *_unobserved(plan))
    yield from finding_lines(found)
    if found:
        yield f"  ({legend(SIGNS[it.verdict] for it in found)})"


def _unobserved(plan: StackPlan) -> list[Finding]:
    unseen = dict.fromkeys(it for member in plan.members for it in member.plan.observed.unobserved)
    return [not_seen(MEMORY_CHECK, sentence) for sentence in unseen]


def _row(member: PlannedModel, fit: StackFit) -> TextRow:
    model, own = member.model, fit[member.model.name]
    stops = f" {in_seconds(model.idle_stop_s)}" if model.idle_stop_s is not None else ""
    download, takes = own.download_bytes, member.plan.head.needs.memory_bytes
    beneath = [f"    {member.resolved.recipe.name} on port {member.resolved.recipe.serve.port}"]
    if model.other_names:
        beneath.append(f"    also {', '.join(model.other_names)}")
    if any(step.action is not Action.REUSE for step in member.plan.images):
        size = member.plan.head.needs.image_bytes
        beneath.append(f"    its image is to be made{f', {format_bytes(size)}' if size else ''}")
    return row_of(
        Piece(model.name, Style.STRONG),
        f"{model.keep}{stops}",
        "unknown" if takes is None else format_gib(takes),
        _start(own),
        "unknown" if download is None else format_bytes(download) if download else "-",
        beneath=beneath,
    )


def _start(model: ModelFit) -> str:
    if model.start_s is None:
        return "unknown"
    return f"{'' if model.is_measured else '~'}{in_seconds(model.start_s)}"


def fit_lines(fit: StackFit) -> Iterator[str]:
    """Yield what may be used, which models fit together, and which exclude each other."""
    for pool, size in fit.usable.items():
        if size > 1:
            yield f"{pool}: {format_gib(size)} may be used"
    sets = [*fit.largest_sets(MOST_SETS)]
    for names in filter(None, sets):
        yield f"{'fit together' if len(names) > 1 else 'alone'}: {', '.join(names)}"
    pairs = [*islice(fit.excluded(), MOST_SETS)]
    for pair in pairs:
        yield f"exclude each other: {' and '.join(pair)} ({_why(fit, pair)})"
    if MOST_SETS in {len(sets), len(pairs)}:
        yield "and more: --json has them"


def _why(fit: StackFit, names: Sequence[str]) -> str:
    """Return the bytes, or the port, that models are too many for."""
    models = [fit[name] for name in names]
    for pool in fit.usable:
        taking = [it for it in models if it.takes.get(pool)]
        needed = sum(it.takes[pool] for it in taking)
        floor = max((it.floors.get(pool, 0) for it in taking), default=0)
        if needed + floor <= fit.usable[pool]:
            continue
        if needed + floor <= len(models):
            return pool
        sizes = " and ".join(format_gib(it.takes[pool]) for it in taking)
        kept = f", {format_gib(floor)} stay free" if floor else ""
        return f"{sizes} of {format_gib(fit.usable[pool])}{kept}"
    return ""


def findings(plan: StackPlan) -> Iterator[Finding]:
    for member in plan.members:
        for finding in (*member.plan.problems, *member.plan.warnings):
            yield replace(finding, seen=f"{member.model.name}: {finding.seen}")
    yield from _of_disk(plan)
    kept = [it.model.name for it in plan.always]
    fitting = [name for name in kept if plan.fit.is_together((name,))]
    if not plan.fit.is_together(fitting):
        why = _why(plan.fit, fitting)
        seen = f"{', '.join(fitting)} are kept always and do not fit together ({why})"
        yield fail(MEMORY_CHECK, seen, LESS)
        return
    for model in plan.fit.models:
        if plan.fit.is_together((model.name,)) and not plan.fit.fits({*fitting}, model.name):
            why = _why(plan.fit, (*fitting, model.name))
            seen = f"{model.name} never starts beside what is kept always ({why})"
            yield warn(MEMORY_CHECK, seen, LESS)


def _of_disk(plan: StackPlan) -> Iterator[Finding]:
    size, free = plan.download_bytes, plan.members[0].plan.observed.head.facts.data_free_bytes
    if size is not None and free is not None and size > free:
        seen = f"disk: all models take {format_bytes(size)} more, and {format_bytes(free)} are free"
        yield fail_early("folders.disk", seen, "free some space, or point HF_HOME at another disk")


def problems(plan: StackPlan, *, of_preparation: bool = False) -> list[Finding]:
    """Return what stands in the way of the start, or already of images and weights."""
    return [
        it
        for it in findings(plan)
        if it.verdict is Verdict.FAIL and (it.blocks == "prepare" or not of_preparation)
    ]


def refuse(plan: StackPlan, *, of_preparation: bool = False) -> None:
    """Raise NodeError where a model could not start, or what is always kept does not fit."""
    if found := problems(plan, of_preparation=of_preparation):
        done = "be prepared" if of_preparation else "start"
        raise refusal(f"stack {plan.stack.name} cannot {done}", found)


def stack_as_dict(plan: StackPlan) -> dict[str, Any]:
    found = [*findings(plan)]
    return {
        "schema": 1,
        "stack": plan.stack.name,
        "path": str(plan.stack.path),
        "host": plan.stack.host,
        "port": plan.stack.port,
        "usable_bytes": dict(plan.fit.usable),
        "download_bytes": plan.download_bytes,
        "models": [_member_as_dict(it, plan.fit[it.model.name]) for it in plan.members],
        "fit_together": [list(it) for it in plan.fit.largest_sets(10 * MOST_SETS)],
        "exclude_each_other": [list(it) for it in plan.fit.excluded()],
        "problems": [said(it) for it in found if it.verdict is Verdict.FAIL],
        "warnings": [said(it) for it in found if it.verdict is not Verdict.FAIL],
        "has_work": any(it.has_work for it in plan.members),
    }


def _member_as_dict(member: PlannedModel, own: ModelFit) -> dict[str, Any]:
    return {
        "name": own.name,
        "recipe": member.resolved.recipe.name,
        "port": member.resolved.recipe.serve.port,
        "aliases": [*member.model.other_names],
        "keep": own.keep,
        "idle_stop_s": member.model.idle_stop_s,
        "takes_bytes": dict(own.takes),
        "floor_bytes": dict(own.floors),
        "start_s": own.start_s,
        "is_start_measured": own.is_measured,
        "download_bytes": own.download_bytes,
        "has_work": member.has_work,
    }
