"""`status`, `logs`, `down` and `rollback`: what runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkdeploy.cli.options import JsonOption, OnOption, PageCacheOption
from sparkdeploy.console import console, format_bytes

NameArgument = Annotated[str, typer.Argument(help="The deployment's name.")]


def register(app: typer.Typer) -> None:
    app.command("status")(status)
    app.command("logs")(logs)
    app.command("down")(down)
    app.command("rollback")(rollback)
    app.command("diagnose")(diagnose)


def status(
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Show every deployment on this machine."""
    from sparkdeploy.commands.operate import current_rows, status_lines

    rows = current_rows()
    if as_json:
        from dataclasses import asdict

        console.answer_json([asdict(row) for row in rows])
        return
    for line in status_lines(rows):
        console.answer(line)


def logs(
    name: NameArgument = "main",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on reading.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines.")] = None,
    node: Annotated[str | None, typer.Option(help="On a cluster: this node's log.")] = None,
    _on: OnOption = None,
) -> None:
    """Show a deployment's log."""
    from sparkdeploy.commands.operate import read_log

    console.answer_log(read_log(name, node=node, follow=follow, tail=tail))


def down(
    name: NameArgument = "main",
    everything: Annotated[bool, typer.Option("--all", help="Every deployment.")] = False,
    _on: OnOption = None,
) -> None:
    """Stop and remove a deployment; images, checkpoints and caches stay."""
    from sparkdeploy.commands.operate import take_down, take_everything_down

    removed = take_everything_down() if everything else take_down(name)
    if not removed:
        console.info("nothing to do" if everything else f"nothing to do: no deployment {name}")
    for container in removed:
        console.info(f"removed {container}")


def rollback(
    name: NameArgument = "main",
    drop_page_cache: PageCacheOption = False,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """End a replacement under way or interrupted, or bring the deployment before this one back."""
    from sparkdeploy.commands.rollback import roll_back
    from sparkdeploy.deploy.memory import PageCache

    done = roll_back(name, PageCache.DROP if drop_page_cache else PageCache.ASK)
    if as_json:
        console.answer_json({"deployment": name, "action": done.action, "text": done.text})
    else:
        console.answer(done.text)


def diagnose(
    subject: Annotated[
        str, typer.Argument(help="A deployment's name, or a crash folder.")
    ] = "main",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
    ] = None,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Pack all that is known of a failure into one file for a bug report, secrets removed."""
    from sparkdeploy.commands.diagnose import diagnose as pack

    bundle = pack(subject, output)
    if as_json:
        answer = {"path": bundle.path, "root_cause": bundle.root_cause, "files": bundle.files}
        console.answer_json(answer)
        return
    console.answer(f"root cause: {bundle.root_cause}")
    for name, size_bytes in bundle.files.items():
        console.info(f"  {format_bytes(size_bytes):>9}  {name}")
    console.answer(f"packed into {bundle.path}; read it before you send it")
