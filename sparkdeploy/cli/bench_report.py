"""`bench report`: runs as one page to share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkdeploy.console import console


def register(group: typer.Typer) -> None:
    """Add the command to the group `bench`."""
    group.command("report")(report)


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Ids, labels or files; the newest of each label when left out."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one HTML page about runs, to share.

    It has charts, the table of each, and published figures beside them.
    """
    from sparkdeploy.commands.bench_report import write_report
    from sparkdeploy.settings import load_settings

    count = write_report(runs or (), output, load_settings())
    console.answer(f"wrote {output}: {count} run{'' if count == 1 else 's'}")
