"""`bench report`: records in, one page out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sparkdeploy import __version__
from sparkdeploy.bench.report.page import report_page
from sparkdeploy.bench.report.palette import SERIES
from sparkdeploy.bench.report.published import read_published
from sparkdeploy.commands.bench import shelf_of
from sparkdeploy.console import console
from sparkdeploy.errors import BenchError
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkdeploy.bench.record import Run
    from sparkdeploy.bench.shelf import Shelf
    from sparkdeploy.settings import Settings


def write_report(names: Sequence[str], output: Path, settings: Settings) -> int:
    """Write the page about the named runs and return how many; BenchError when there is none.

    A run is named by its id, its label (the newest wins) or its file; without names the newest run
    of each label is shown.
    """
    shelf = shelf_of(settings)
    runs = [shelf.find(name).run for name in names] or _newest_of_each_label(shelf)
    if not runs:
        raise BenchError(
            f"there are no runs in {shelf.folder}",
            hint="`sparkdeploy bench` makes one, or name the files of some",
        )
    page = report_page(
        runs,
        read_published(resources() / "recipes" / "facts" / "published.yaml"),
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=__version__,
    )
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{output} cannot be written: {error.strerror}") from error
    return len(runs)


def _newest_of_each_label(shelf: Shelf) -> list[Run]:
    """Return as many runs as there are colours; a damaged record is named and left out."""
    kept, damaged = shelf.runs()
    for message in damaged:
        console.warn(message)
    newest = {item.run.label: item.run for item in kept}
    return list(newest.values())[-len(SERIES) :]
