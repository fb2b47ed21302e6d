"""Writes the table of owners' figures from the bundles in docs/figures/owners.

Run in a checkout: python -m tools.owners_figures [--check]. --check writes nothing and exits 9
when the table is not what the bundles say.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.bench.campaign.folder import read_bundle
from sparkdeploy.bench.figures import summarise
from sparkdeploy.errors import ChangesPendingError, SparkdeployError
from sparkdeploy.terminal.safe_text import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.bench.campaign.folder import CampaignBundle
    from sparkdeploy.bench.record import Run, Summary

FOLDER = Path(__file__).parents[1] / "docs" / "figures" / "owners"
HEAD = """\
# Figures from owners

`python -m tools.owners_figures` writes this page from the bundles beside it.
How to add one: [owners-figures.md](../../owners-figures.md).

tok/s: the suite `five`, one request at a time, from sending it to the last token. The mean of the
rounds, and the 95 % interval of that mean.

"""
TITLES = ("bundle", "machine", "card", "driver", "recipe", "vLLM", "tok/s", "95 %", "rounds")
NONE = "**No owner has given figures yet.**\n"


def page(folder: Path) -> str:
    """Return the page; BenchError for a file that is no bundle."""
    rows = [row for path in sorted(folder.glob("*.json")) for row in rows_of(path)]
    if not rows:
        return HEAD + NONE
    lines = [TITLES, ("---",) * len(TITLES), *rows]
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rows_of(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each recipe of a bundle that was measured."""
    bundle = read_bundle(path)
    for recipe in bundle.recipes:
        if recipe.run is not None:
            yield (_link(path, bundle), *map(plain, _origin(recipe.run)), *_speed(recipe.run))


def _link(path: Path, bundle: CampaignBundle) -> str:
    quick = ", quick" if bundle.is_quick else ""
    return f"[{plain(path.stem)}]({path.name}) {plain(bundle.started_at[:10])}{quick}"


def _origin(run: Run) -> tuple[str, ...]:
    origin, machine = run.origin, run.origin.machine
    name = origin.recipe.name if origin.recipe is not None else run.label
    vllm = origin.engine.version if origin.engine is not None else None
    if machine is None:
        return ("?", "?", "?", name, vllm or "?")
    return (machine.product or "?", machine.gpu or "?", machine.driver or "?", name, vllm or "?")


def _speed(run: Run) -> tuple[str, str, str]:
    found = five(run)
    if found is None:
        return ("not measured", "", "")
    if found.low95 is None or found.high95 is None:
        return (f"{found.mean:.1f}", "one round", "1")
    return (f"{found.mean:.1f}", f"{found.low95:.1f} to {found.high95:.1f}", str(found.count))


def five(run: Run) -> Summary | None:
    """Return the mean over the prompts of each round, and what the rounds say together."""
    suite = run.suite("five")
    rounds: dict[int, list[float]] = defaultdict(list)
    for cell in suite.cells if suite is not None and suite.is_complete else ():
        for result in cell.rounds:
            if result.end_to_end_tok_s is not None:
                rounds[result.round].append(result.end_to_end_tok_s)
    return summarise([statistics.fmean(values) for values in rounds.values()])


def plain(text: str) -> str:
    """Return foreign text so that it is no markup, no link and one cell."""
    return re.sub(r"([\\`*_\[\]()<>|#&!~])", r"\\\1", visible_line(text))


def main(arguments: list[str]) -> int:
    target = FOLDER / "README.md"
    try:
        text = page(FOLDER)
        if "--check" not in arguments:
            target.write_text(text, encoding="utf-8")
        elif target.read_text(encoding="utf-8") != text:
            raise ChangesPendingError(f"{target} is stale", hint="python -m tools.owners_figures")
    except SparkdeployError as error:
        print(f"error: {error.message}", file=sys.stderr)  # noqa: T201 - a tool
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
