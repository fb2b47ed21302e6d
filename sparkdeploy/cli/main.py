"""The program: one table of commands, each loaded when it is named, and every exit code."""

import contextlib
import errno
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from sparkdeploy import __version__
from sparkdeploy.cli.command_table import COMMANDS, STAY_HERE
from sparkdeploy.cli.names import completing, nodes
from sparkdeploy.cli.start import INTERRUPTED_EXIT_CODE, Interruption
from sparkdeploy.errors import (
    ConsentNeededError,
    NodeError,
    SparkdeployError,
    UnknownRecipeError,
    UsageError,
)
from sparkdeploy.terminal.console import console, drop_answer
from sparkdeploy.terminal.safe_text import nothing_raw, visible

# Typer has no public name for what all its errors about a command line are.
_ERRORS = typer.BadParameter.__mro__
NotAsTyped: type[Any] = next(it for it in _ERRORS if it.__name__ == "ClickException")
ON = "--on"
COMPLETE = "_SPARKDEPLOY_COMPLETE"
"""Set by a shell that completes a line, in the scripts that Typer prints."""
BUG_EXIT_CODE = 70
_MISUSES = {
    r"^No such command (.+?)\.?(?= Did|$)": r"unknown command \1",
    r"^No such option: ": "unknown option ",
    r" \(Possible options: (.+)\)$": r"; did you mean \1?",
    r" Did you mean (.+)$": r"; did you mean \1",
    r"^Missing (argument|option) '(.+)'\.$": r"\1 \2 is missing",
    r"^Missing command\.$": "a command is missing",
    r"^Got unexpected extra argument\(s\) \((.+)\)$": r"unexpected argument: \1",
    r"^Option '(.+)' requires an argument\.$": r"\1 needs a value",
    r"^Option '(.+)' does not take a value\.$": r"\1 takes no value",
    r"^Invalid value for '(.+?)': (?:Value error, )?": r"\1: ",
    r" is not one of (.{1,300})\.$": r" is none of \1",
}
"""Typer's words about a command line, and this program's."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
NO_ROOM_HINT = "`df -h` says which disk is full; `sparkdeploy config` which folders are used"


def program(loaded: Collection[str]) -> typer.Typer:
    """Return the program with only the commands in `loaded` whole: importing all takes long."""
    app = typer.Typer(
        name="sparkdeploy",
        help="Deploy large language models with vLLM on NVIDIA DGX Spark.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, entry in COMMANDS.items():
        if name not in loaded:
            app.command(name, help=entry.summary)(_not_loaded)
            continue
        with Interruption.loading():
            found = getattr(import_module(f"sparkdeploy.cli.{entry.module}"), entry.name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        elif name == "list":
            from sparkdeploy.cli.options import FitsHereByDefault

            app.command(name, cls=FitsHereByDefault)(found)
        else:
            app.command(name)(found)
    return app


def _not_loaded() -> None:
    raise AssertionError("the command that was named is always loaded")


def named_command(arguments: list[str]) -> list[str]:
    """Return the command among the arguments, which no option of the program itself can be."""
    return [word for word in arguments if not word.startswith("-")][:1]


def split_on(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Return the node of `--on NODE`, wherever it stands, and the other arguments."""
    node: str | None = None
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            return node, [*kept, word, *words]
        if word == ON:
            node = next(words, "")
        elif word.startswith(f"{ON}="):
            node = word.removeprefix(f"{ON}=")
        else:
            kept.append(word)
    return node, kept


def _node_to_run_on(node: str | None, words: list[str]) -> str | None:
    """Return the machine that was named, or that an ssh `docker_host` names; None for this one."""
    command = next(iter(named_command(words)), "")
    if command not in COMMANDS or command in STAY_HERE:
        if node is not None and command in COMMANDS:
            there = shlex.join(["ssh", "-t", node, shlex.join(["sparkdeploy", *words])])
            raise UsageError(f"`sparkdeploy {command}` has no option {ON}", hint=there)
        return None
    from sparkdeploy.settings import ON_VARIABLE, load_settings

    # Machines that share their configuration would hand it on for ever.
    if node is not None or ON_VARIABLE in os.environ or {"-h", "--help"} & set(words):
        return node
    docker_host = load_settings().docker_host or ""
    return docker_host if docker_host.startswith("ssh://") else None


def _complete() -> int:
    """Let Typer answer a shell; nothing where that fails, for somebody is typing."""
    from typer.completion import get_completion_inspect_parameters

    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    _, words = split_on(line.split()[1:])
    command = typer.main.get_command(program(named_command(words)))
    # It is what makes bash, zsh and fish known to Typer; its options are not wanted.
    get_completion_inspect_parameters()
    try:
        command.main(prog_name="sparkdeploy")
    except Exception:  # noqa: BLE001 - as above
        return 1
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        console.answer(f"sparkdeploy {__version__}")
        raise typer.Exit


def _options(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Errors only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show details.")] = False,
    _on: Annotated[
        str | None,
        typer.Option(
            ON,
            metavar="NODE",
            help="Run on this node of config.yaml, or ssh destination; it may stand anywhere.",
            autocompletion=completing(nodes),
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print and exit."),
    ] = False,
) -> None:
    """Deploy large language models with vLLM on NVIDIA DGX Spark."""
    console.quiet = quiet
    console.verbose = verbose


@nothing_raw()
def main() -> None:
    """Run a command; exit with its code and never with a traceback for a user's mistake."""
    try:
        code = _run_with_consent()
    except KeyboardInterrupt as interrupt:
        # What had failed before the interruption was heard is what the user has to know.
        if isinstance(interrupt.__context__, SparkdeployError):
            _show(interrupt.__context__)
        code = _interrupted()
    except SparkdeployError as error:
        if Interruption.was_just_now():
            code = _interrupted()
        else:
            _show(error)
            code = error.exit_code
    except OSError as error:
        if error.errno not in NO_ROOM:
            _end_with_bug(error)
        console.error(f"{error.strerror}: {error.filename or 'a file of ours'}", hint=NO_ROOM_HINT)
        code = NodeError.exit_code
    except Exception as error:  # noqa: BLE001 - the one place where a bug becomes a message
        if not Interruption.was_just_now():
            _end_with_bug(error)
        code = _interrupted()
    _flush_answer()
    sys.exit(code)


def _interrupted() -> int:
    console.error("interrupted")
    return INTERRUPTED_EXIT_CODE


def _show(error: SparkdeployError) -> None:
    if isinstance(error, UnknownRecipeError):
        _look_among_deployments(error)
    console.error(error.message, hint=error.hint, detail=error.detail)


def _look_among_deployments(error: UnknownRecipeError) -> None:
    """Say of a name that no recipe has whether a deployment has it."""
    from sparkdeploy.deploy.nodes import is_deployment

    with contextlib.suppress(SparkdeployError):
        if is_deployment(error.name):
            error.message = f"{error.name} is a deployment, and a recipe is asked for"
            error.hint = f"sparkdeploy status {error.name}"


def _run_with_consent() -> int:
    """Run what was typed; once more where a person agrees to what its recipe sets."""
    try:
        return _run()
    except ConsentNeededError as error:
        if error.record is None or not console.can_ask:
            raise
        _show(error)
        if not console.confirm("Allow all of it, as long as nothing of these files changes?"):
            return error.exit_code
        from sparkdeploy.atomic_files import write_private

        write_private(error.record, "")
        return _run()


def _run() -> int:
    if COMPLETE in os.environ:
        return _complete()
    node, words = split_on(sys.argv[1:])
    if (there := _node_to_run_on(node, words)) is not None:
        from sparkdeploy.cli.on import run_on
        from sparkdeploy.settings import load_settings

        return run_on(there, words, load_settings())
    command = typer.main.get_command(program(named_command(words)))
    try:
        # Typer's own call would make an exit code of a Ctrl-C, and lose what had failed before.
        with command.make_context("sparkdeploy", words) as context:
            code = command.invoke(context)
    except typer.Exit as ended:
        return int(ended.exit_code)
    except typer.Abort:
        console.error("aborted")
        return 1
    except NotAsTyped as error:
        _show_misuse(error, typed_path(command, words))
        return int(error.exit_code)
    return code if isinstance(code, int) else 0


def typed_path(command: Any, words: list[str]) -> str:  # noqa: ANN401 - typer has no name for it
    """Return the program, the group and the command that some arguments name, as far as they do."""
    path = ["sparkdeploy"]
    for word in words:
        found = getattr(command, "commands", {}).get(word)
        if found is not None:
            command = found
            path.append(word)
        elif not word.startswith("-"):
            break
    return " ".join(path)


def _show_misuse(error: Any, typed: str) -> None:  # noqa: ANN401 - typer has no name for it
    """Say what is wrong with a command line; for a group without a command, what there is."""
    if error.ctx is not None and error.message == error.ctx.get_help():
        error.show()
        return
    elsewhere = _only_near_options(error)
    message = error.format_message()
    for theirs, ours in _MISUSES.items():
        message = re.sub(theirs, ours, message)
    wrong: list[Any] = getattr(error.__cause__, "errors", list)()
    if wrong:
        from sparkdeploy.settings import in_words

        message = message.replace(wrong[0]["msg"], in_words(wrong[0]))
    path = error.ctx.command_path if error.ctx is not None else typed
    console.error(message, hint=elsewhere or f"{path} --help")


def _only_near_options(error: Any) -> str:  # noqa: ANN401 - typer has no name for it
    """Drop suggestions that begin otherwise; return which command of the group has the option."""
    option, context = getattr(error, "option_name", None), error.ctx
    if option is None or context is None:
        return ""
    begin = option.lstrip("-")[:1]
    near = getattr(error, "possibilities", None) or ()
    error.possibilities = [it for it in near if it.lstrip("-")[:1] == begin]
    group = context.parent
    having = [
        f"`{group.command_path} {name}`"
        for name, command in getattr(group and group.command, "commands", {}).items()
        if any(option in it.opts for it in command.params)
    ]
    return f"{' and '.join(having)} {'has' if len(having) == 1 else 'have'} it" if having else ""


def _flush_answer() -> None:
    """Let a reader that has gone, as `head` does, change nothing about the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_answer()  # else it would end with 120


def _end_with_bug(error: Exception) -> NoReturn:
    place = _write_crash_log()
    console.error(f"unexpected {type(error).__name__}: {error}", hint=f"details in {place}")
    sys.exit(BUG_EXIT_CODE)


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
    from sparkdeploy.atomic_files import make_private

    make_private(folder)
    path = folder / "crash.log"
    atomic_files.write_bytes(path, text.encode("utf-8", "backslashreplace"))
    return str(path)
