"""What recipes say beside one another, on the first screen: the gate's verdict and its figures."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sparkdeploy.bench.report.table import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.bench.quality.comparison import SharedEstimate
    from sparkdeploy.bench.quality.kept import QualityResult
    from sparkdeploy.bench.report.table import Row, ShownRun

NOT_MEASURED = "not measured"
REFERENCE = "is the reference"
_LIMITS = {
    "min_top1_agreement": "top-1 agreement at least {:.1%}",
    "max_mean_kl_nats": "mean KL at most {:g} nats",
    "max_perplexity_rise": "perplexity up by at most {:.1%}",
    "max_drift_nats": "drift at most {:g} nats",
}


def quality_rows(runs: Sequence[ShownRun]) -> Iterator[Row]:
    """Yield the verdict always, and figures where one of the runs has them."""
    yield "Quality", tuple(quality_verdict(runs, shown) for shown in runs)
    results = [shown.quality for shown in runs]
    if any(results):
        agreed = (_percent(found.figures.top1_agreement) if found else NOTHING for found in results)
        yield "Top-1 agreement, %", tuple(agreed)
        yield "Mean KL, nats: at least and at most", tuple(map(_divergence, results))


def quality_verdict(runs: Sequence[ShownRun], shown: ShownRun) -> str:
    """Return what the gate says beside which reference, or that nobody measured it."""
    found = shown.quality
    if found is None:
        return REFERENCE if _is_reference(runs, shown) else NOT_MEASURED
    said = "fails the gate" if found.failures else "passes the gate"
    return f"{said} beside {found.figures.against}"


def quality_notes(runs: Sequence[ShownRun]) -> Iterator[str]:
    yield from dict.fromkeys(map(_limits_told, (it.quality for it in runs if it.quality)))
    for shown in runs:
        if shown.quality is not None:
            yield f"Quality of {shown.name}: {_taken(shown.quality)}."
    missing = [it for it in runs if quality_verdict(runs, it) == NOT_MEASURED]
    if missing:
        names = ", ".join(shown.name for shown in missing)
        yield f"Quality of {names}: not measured: {_command(runs[0], missing[0])}."


def _is_reference(runs: Sequence[ShownRun], shown: ShownRun) -> bool:
    return len(runs) > 1 and shown is runs[0]


def _taken(found: QualityResult) -> str:
    told = f"{found.figures.positions:,} positions, {found.taken_at[:10]}"
    return f"{told}; {'; '.join(found.failures)}" if found.failures else told


def _limits_told(found: QualityResult) -> str:
    return f"The gate of quality: {_limits(found.limits)}."


def _limits(limits: Mapping[str, float]) -> str:
    return ", ".join(_LIMITS[name].format(limits[name]) for name in _LIMITS if name in limits)


def _command(first: ShownRun, missing: ShownRun) -> str:
    """Return how it is measured: in one go where both are served, else one after the other."""
    sides = [shown.run.origin.deployment or shown.run.origin.url for shown in (first, missing)]
    if sides[0] and sides[1] and sides[0] != sides[1]:
        return f"`{shlex.join(['sparkdeploy', 'bench', 'quality', sides[0], sides[1]])}`"
    reference = first.name if first is not missing else "reference"
    file = shlex.quote(f"{reference}.json")
    served = shlex.quote(sides[1] or "main")
    command = "sparkdeploy bench quality"
    return (
        f"`{command} {served} --save {file}` while {reference} is served, then "
        f"`{command} {file} {served}`"
    )


def _percent(found: SharedEstimate) -> str:
    if found.value is None:
        return NOTHING
    if found.low is None or found.high is None:
        return f"{100 * found.value:.1f}"
    return f"{100 * found.value:.1f} ({100 * found.low:.1f} to {100 * found.high:.1f})"


def _divergence(found: QualityResult | None) -> str:
    if found is None:
        return NOTHING
    ends = (found.figures.mean_kl_nats.value, found.figures.most_mean_kl_nats)
    return " and ".join(f"{end:.4f}" if end is not None else NOTHING for end in ends)
