"""The program: commands by group, and the one place where an error becomes an exit code."""

from __future__ import annotations

import errno
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from sparkdeploy import __version__
from sparkdeploy.cli import (
    bench,
    checkpoint,
    cluster,
    completion_commands,
    connecting,
    deployments,
    export,
    image,
    recipe_import,
    recipes,
    stopping,
    talking,
    upkeep,
)
from sparkdeploy.cli.options import FitsHereByDefault
from sparkdeploy.console import console
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.terminal import nothing_raw, visible

app = typer.Typer(
    name="sparkdeploy",
    help="Deploy large mixture-of-experts models with vLLM on NVIDIA DGX Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("list", cls=FitsHereByDefault)(recipes.list_recipes)
app.command("fits")(recipes.fits)
app.command("new")(recipes.new)
app.command("show")(recipes.show_recipe)
app.command("plan")(recipes.plan_recipe)
app.command("up")(deployments.up)
app.command("switch")(deployments.switch)
app.command("status")(deployments.status)
app.command("logs")(deployments.logs)
app.command("ask")(talking.ask)
app.command("chat")(talking.chat)
app.command("connect")(connecting.connect)
app.command("stop")(stopping.stop)
app.command("start")(stopping.start)
app.command("restart")(stopping.restart)
app.command("down")(deployments.down)
app.command("rollback")(deployments.rollback)
app.command("diagnose")(deployments.diagnose)
app.command("doctor")(recipes.doctor)
app.command("setup")(upkeep.setup)
app.command("update")(upkeep.update)
app.command("config")(upkeep.config)
app.command("clean")(upkeep.clean)
app.command("rehearse")(deployments.rehearse)
app.add_typer(recipe_import.group, name="recipe")
app.add_typer(export.group, name="export")
app.add_typer(checkpoint.group, name="checkpoint")
app.add_typer(image.group, name="image")
bench.register(app)
app.add_typer(cluster.group, name="cluster")
app.add_typer(completion_commands.group, name="completion")

# Typer has no public name for what all its errors about a command line are.
_ERRORS = typer.BadParameter.__mro__
NotAsTyped: type[Any] = next(it for it in _ERRORS if it.__name__ == "ClickException")
BUG_EXIT_CODE = 70
INTERRUPTED_EXIT_CODE = 130
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
NO_ROOM_HINT = "`df -h` says which disk is full; `sparkdeploy config` which folders are used"


def _print_version(wanted: bool) -> None:
    if wanted:
        console.answer(f"sparkdeploy {__version__}")
        raise typer.Exit


def _print_identity(wanted: bool) -> None:
    if wanted:
        from sparkdeploy.commands.elsewhere.program import identity

        console.answer(identity())
        raise typer.Exit


@app.callback()
def _options(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show details.")] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print and exit."),
    ] = False,
    _identity: Annotated[
        bool, typer.Option("--identity", callback=_print_identity, is_eager=True, hidden=True)
    ] = False,
) -> None:
    """Deploy large mixture-of-experts models with vLLM on NVIDIA DGX Spark."""
    console.quiet = quiet
    console.verbose = verbose


@nothing_raw()
def main() -> None:
    """Run a command; exit with its code and never with a traceback for a user's mistake."""
    _hear_stop_signals()
    try:
        _run()
    except SparkdeployError as error:
        console.error(error.message, hint=error.hint, detail=error.detail)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.error("interrupted")
        sys.exit(INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:
        # The reader of our answer has gone, as `head` does; nothing is left to say.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno not in NO_ROOM:
            _end_with_bug(error)
        console.error(f"{error.strerror}: {error.filename or 'a file of ours'}", hint=NO_ROOM_HINT)
        sys.exit(NodeError.exit_code)
    except Exception as error:  # noqa: BLE001 - the one place where a bug becomes a message
        _end_with_bug(error)


def _run() -> NoReturn:
    """Run the command that was typed; UsageError names the one that was meant."""
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        console.error("aborted")
        sys.exit(1)
    except NotAsTyped as error:
        from sparkdeploy.cli.completion.words import load_words
        from sparkdeploy.cli.meant import corrected

        meant = corrected(sys.argv[1:], load_words())
        if meant is not None:
            raise meant from error
        error.show()
        sys.exit(error.exit_code)
    # What a callback ends with, such as --version's.
    sys.exit(code if isinstance(code, int) else 0)


def _end_with_bug(error: Exception) -> NoReturn:
    place = _write_crash_log()
    console.error(f"unexpected {type(error).__name__}: {error}", hint=f"details in {place}")
    sys.exit(BUG_EXIT_CODE)


def _hear_stop_signals() -> None:
    """A terminal that goes away, or a `kill`, interrupts like Ctrl-C: nothing stays half done."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup the signal is ignored, and stays so.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, interrupt)


def _write_crash_log() -> str:
    """Write where it came from; beside other temporary files where the state folder is full."""
    from sparkdeploy.settings import load_settings

    # Whoever reads it does so in a terminal.
    text = visible(f"sparkdeploy {__version__}\n{traceback.format_exc()}")
    try:
        return _write_log_into(load_settings().state_dir, text)
    except (SparkdeployError, OSError):
        return _write_log_into(Path(tempfile.mkdtemp(prefix="sparkdeploy-")), text)


def _write_log_into(folder: Path, text: str) -> str:
    from sparkdeploy import atomic_files
    from sparkdeploy.node.private_folder import make_private

    make_private(folder)
    path = folder / "crash.log"
    atomic_files.write_bytes(path, text.encode("utf-8", "backslashreplace"))
    return str(path)
