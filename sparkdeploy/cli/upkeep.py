"""`setup`, `config` and `clean`: what this machine lacks, gets, is told, and has left."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkdeploy.cli import options
from sparkdeploy.cli.options import answer
from sparkdeploy.errors import NodeError
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.style import Piece, Style, line_of
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.terminal.tables import TextRow
    from sparkdeploy.upkeep.clean import Leftover


def setup(
    rehearsal: Annotated[
        bool, typer.Option("--rehearsal", help="For rehearsals alone: no GPU, and less disk.")
    ] = False,
    yes: options.YesOption = False,
) -> None:
    """Name what this machine lacks; as root, install it. It asks before."""
    from sparkdeploy.checks import report
    from sparkdeploy.upkeep.setup import Need, commands_of, is_fixable, set_up

    def agrees(needs: Sequence[Need]) -> bool:
        commands = "; ".join(commands_of([need for need in needs if need.is_fixable]))
        return yes or console.confirm(f"Run all of this: {commands}")

    needs = set_up(options.current_settings(), rehearsal=rehearsal, agrees=agrees)
    findings = [need.finding for need in needs]
    commands = [f"  {command}" for command in commands_of(needs)]
    all_of_it = ["All of it:", *commands] if commands else []
    console.answer_blocks([*report.lines(findings), *all_of_it])
    if failed := report.failures(findings):
        by_itself = f"sudo {shlex.quote(str(Path(sys.argv[0]).absolute()))} setup --yes"
        hint = f"`{by_itself}` does it, or the commands above" if is_fixable(needs) else None
        raise NodeError(f"{failed} missing", hint=hint or "the commands above, then this again")


def config(as_json: options.JsonOption = False) -> None:
    """Show every setting, its value and where it comes from."""
    from sparkdeploy.recipe.library import wrong_settings
    from sparkdeploy.settings import describe

    settings = options.current_settings()
    rows, wrong = describe(settings), wrong_settings(settings)
    # By default first, what somebody set after it, what is wrong last.
    plain = ("default", "shipped")
    marks = {
        name: "x" if name in wrong else " " if source.startswith(plain) else "*"
        for name, _, source in rows
    }
    ordered = sorted(rows, key=lambda it: " *x".index(marks[it[0]]))
    table = TextTable(
        (TextColumn(), TextColumn("", Fill.WORDS)),
        tuple(_setting(marks[row[0]], *row, wrong.get(row[0], "")) for row in ordered),
    )
    set_here = sum(mark != " " for mark in marks.values())
    count = f"{len(rows)} settings, {set_here} not by default (*), {len(wrong)} wrong (x)"
    content = {name: {"value": value, "source": source} for name, value, source in rows}
    answer([table, count], content, as_json=as_json)


def _setting(mark: str, name: str, value: str, source: str, wrong: str) -> TextRow:
    ink = Style.BAD if wrong else Style.STRONG if mark == "*" else Style.PLAIN
    origin = "" if mark == " " else f"  ({source})"
    text = line_of(value or "-", Piece(origin, Style.QUIET), f": {wrong}" if wrong else "")
    return row_of(Piece(f"{mark} {name}", ink), text)


def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, remove nothing.")] = False,
    yes: options.YesOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Remove old images, crash folders and caches, after a question. Only sparkdeploy's own."""
    import time

    from sparkdeploy.deploy.nodes import connect
    from sparkdeploy.upkeep import clean as cleaning

    def agrees(found: Sequence[Leftover]) -> bool:
        _show(found)
        return yes or console.confirm("Remove them?")

    settings = options.current_settings()
    with connect(settings) as host:
        if dry_run:
            found = cleaning.find_leftovers(settings, host, now_s=time.time())
            _show(found)
        else:
            found = cleaning.clean(settings, host, agrees=agrees)
            console.info(f"removed {len(found)}" if found else "nothing was removed")
    if as_json:
        console.answer_json([asdict(item) for item in found])


def _show(found: Sequence[Leftover]) -> None:
    rows = (row_of(item.kind, format_bytes(item.size_bytes), item.name, item.why) for item in found)
    figure, words = TextColumn("", Fill.FIGURE), TextColumn("", Fill.WORDS)
    console.info_blocks([TextTable((TextColumn(), figure, TextColumn(), words), tuple(rows))])
    total = format_bytes(sum(item.size_bytes for item in found))
    console.info(f"{len(found)} leftovers, at most {total}: images share layers")
