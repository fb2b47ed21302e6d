"""`bench import`: records and campaigns' bundles of others, kept beside one's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy.bench.campaign.bundle import is_bundle, read_bundle
from sparkdeploy.bench.campaign.page import failed_steps
from sparkdeploy.bench.files import import_record, keep_run, read_content
from sparkdeploy.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkdeploy.bench.campaign.bundle import CampaignBundle
    from sparkdeploy.bench.files import KeptRun, Shelf
    from sparkdeploy.bench.quality.kept import QualityShelf
    from sparkdeploy.bench.record import Run


@dataclass(frozen=True, slots=True)
class TakenFile:
    """What was taken from one file."""

    kept: tuple[KeptRun, ...]
    bundle: CampaignBundle | None = None

    def lines(self) -> Iterator[str]:
        for item in self.kept:
            label = f" as {item.run.label}" if self.bundle is not None else ""
            yield f"kept {item.run.run_id}{label} in {item.path}"
        if self.bundle is not None:
            yield from _told(self.bundle)


def import_file(path: Path, shelf: Shelf, qualities: QualityShelf) -> TakenFile:
    """Keep a record, or the runs of a bundle under marked labels; BenchError for what is neither.

    What a bundle says of quality is kept for reports, with its mark.

    A bundle is read to its end before anything of it is kept.
    """
    if not is_bundle(read_content(path, "record of a run or a campaign's bundle")):
        return TakenFile((import_record(path, shelf),))
    bundle = read_bundle(path)
    if not bundle.runs:
        raise BenchError(f"{path} holds no run", hint="every recipe of that campaign failed")
    own = {(item.run.run_id, item.run.finished_at): item for item in shelf.runs()[0]}
    kept = tuple(
        own.get((run.run_id, run.finished_at)) or keep_run(_marked(run, bundle), shelf)
        for run in bundle.runs
    )
    for result in bundle.quality_results(bundle.mark):
        qualities.keep(result)
    return TakenFile(kept, bundle)


def _marked(run: Run, bundle: CampaignBundle) -> Run:
    """Name it so that it is pooled with no run of one's own, nor of a third."""
    return replace(run, label=f"{run.label}@{bundle.mark}", run_id=f"{run.run_id}-{bundle.mark}")


def _told(bundle: CampaignBundle) -> Iterator[str]:
    """Say what else the bundle tells; it stays in the file."""
    product = bundle.machine.product if bundle.machine is not None else ""
    yield f"a campaign of {bundle.started_at} on {product or 'an unnamed machine'}; also in it:"
    for recipe in bundle.recipes:
        said = [f"quality beside {recipe.quality.against}"] if recipe.quality is not None else []
        said += [f"{len(recipe.needles)} needles"] if recipe.needles else []
        said += [f"{len(recipe.tools)} tool calls"] if recipe.tools else []
        said += ["tuned kernels"] if recipe.tuning else []
        said += [f"failed: {words}" for words in failed_steps(recipe)]
        yield f"  {recipe.name}: {', '.join(said) or 'nothing'}"
