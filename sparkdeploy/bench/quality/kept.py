"""Comparisons of quality as they are kept, and found again for a run that a report shows."""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sparkdeploy.bench.files import adapter_of, read_versioned
from sparkdeploy.bench.quality.capture import CaptureOrigin
from sparkdeploy.bench.quality.comparison import QualityFigures, Thresholds, failures
from sparkdeploy.bench.record import RecipeOrigin, Run
from sparkdeploy.errors import BenchError
from sparkdeploy.node.private_folder import write_private
from sparkdeploy.terminal.safe_text import visible_json

# No `from __future__ import annotations` and no TYPE_CHECKING here: pydantic reads the types.

SCHEMA_VERSION = 1
KIND = "sparkdeploy quality result"


@dataclass(frozen=True, slots=True)
class QualityResult:
    """One side beside another, and what the gate says of it."""

    taken_at: str
    """When the later side was asked. ISO 8601, UTC."""
    reference: CaptureOrigin
    candidate: CaptureOrigin
    figures: QualityFigures
    failures: tuple[str, ...]
    """What is worse than `limits` allow, one sentence each; none when the gate is passed."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """By the name of a threshold; what is not judged is not there."""
    kind: str = KIND
    schema: int = SCHEMA_VERSION


def served_of(recipe: RecipeOrigin | None, *, url: str, model: str) -> CaptureOrigin:
    """Return what says that a capture and a run are of the same server: a recipe, or a place."""
    if recipe is not None:
        return CaptureOrigin(recipe.name, f"{recipe.name} {recipe.fingerprint}")
    return CaptureOrigin(model, hashlib.sha256(f"{url} {model}".encode()).hexdigest())


def served_by(run: Run) -> CaptureOrigin:
    return served_of(run.origin.recipe, url=run.origin.url, model=run.origin.model)


def judged(
    figures: QualityFigures,
    reference: CaptureOrigin,
    candidate: CaptureOrigin,
    taken_at: str,
    thresholds: Thresholds,
) -> QualityResult:
    """Return what the gate says of the candidate beside the reference."""
    return QualityResult(
        taken_at=taken_at,
        reference=reference,
        candidate=candidate,
        figures=replace(figures, against=reference.name),
        failures=tuple(failures(figures, thresholds)),
        limits={name: it for name, it in asdict(thresholds).items() if math.isfinite(it)},
    )


def keep(result: QualityResult, folder: Path) -> Path:
    """Write it, whole or not at all; BenchError when it cannot be written.

    The same result has the same name: what is kept twice is there once.
    """
    text = adapter_of(QualityResult).dump_json(result, indent=1).decode() + "\n"
    moment = re.sub(r"[^0-9T]", "", result.taken_at.partition("+")[0])[:15]
    path = folder / f"{moment}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    try:
        write_private(path, visible_json(text))
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}", hint="make room") from error
    return path


def read_result(path: Path) -> QualityResult:
    result: QualityResult = read_versioned(
        path, QualityResult, "quality result", SCHEMA_VERSION, KIND
    )
    return result


def newest_of_each(
    results: Iterable[QualityResult], runs: Sequence[Run]
) -> tuple[QualityResult | None, ...]:
    """Return for each run its newest result: beside the first run where there is one."""
    known = sorted(results, key=lambda item: item.taken_at)
    served = [served_by(run).fingerprint for run in runs]
    # The last of these is the newest beside the first run, else the newest.
    known.sort(key=lambda item: item.reference.fingerprint in served[:1])
    newest = {item.candidate.fingerprint: item for item in known}
    return tuple(newest.get(fingerprint) for fingerprint in served)
