"""Runs this very command on another machine, with our terminal and exit code."""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
from typing import TYPE_CHECKING

from sparkdeploy import shell
from sparkdeploy.commands.elsewhere import program
from sparkdeploy.commands.elsewhere.luggage import pack
from sparkdeploy.commands.elsewhere.program import BundleFolder, assigned, body_of
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.node.cluster import configured
from sparkdeploy.node.ssh import SSH_FAILED, SshLink, SshTarget
from sparkdeploy.settings import ON_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.settings import Settings

OPTION = "--on"
BY_URL = "ssh://"
# What begins with a dash would be an option to ssh.
DESTINATION = re.compile(r"(?:ssh://)?(?:\w[\w.-]*@)?[\w\[][\w.:%\[\]-]*/?")
KEPT_LUGGAGE = 20
INTERRUPT_PATIENCE_S = 300.0
"""After Ctrl-C an `up` may still bring back what ran before."""
RUN = """\
PATH="$PATH:$HOME/.local/bin"
if [ -n "$note" ]; then (umask 077; mkdir -p "${note%/*}"; echo $$ >"$note"); fi
exec """


def run_on(node: str, argv: Sequence[str], settings: Settings) -> int:
    """Run a command of ours on a node; return its exit code.

    Raises NodeError naming the node when it cannot be reached, or has no such program and cannot
    be given it; RecipeError for a recipe that cannot be sent.
    """
    target = target_of(node, settings)
    luggage = pack(without_option(argv), settings)
    with SshLink(target) as link:
        answer = program.ask(link, luggage.digest)
        there = answer.program or program.bring(link, answer)
        place = BundleFolder(f"{answer.cache}/from", luggage.digest, KEPT_LUGGAGE)
        if luggage.files and not answer.has_files:
            place.unpack(link, luggage.files, then=body_of("put"))
        words = f"{target.user}@{target.address}" if target.user else target.address
        variables = {ON_VARIABLE: words, **luggage.variables_in(place.path)}
        command = (*there, *luggage.argv_in(place.path))
        return _attached(link, node, command, variables, f"{answer.cache}/running")


def target_of(node: str, settings: Settings) -> SshTarget:
    """Return a configured node by its name, else what OpenSSH makes of the words."""
    if settings.cluster is not None:
        for known in configured(settings).nodes:
            if known.name == node:
                return known.target
    if not DESTINATION.fullmatch(node):
        raise UsageError(
            f"{node!r} is no node of config.yaml and no ssh destination",
            hint="a node's name, HOST, USER@HOST, a Host of ~/.ssh/config or ssh://USER@HOST:PORT",
        )
    if node.startswith(BY_URL) or "@" not in node:
        return SshTarget(node, node)
    user, _, address = node.partition("@")
    return SshTarget(node, address, user)


def without_option(argv: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            return (*kept, word, *words)
        if word == OPTION:
            next(words, None)
        elif not word.startswith(f"{OPTION}="):
            kept.append(word)
    return tuple(kept)


def _attached(
    link: SshLink, node: str, command: tuple[str, ...], variables: dict[str, str], folder: str
) -> int:
    """Run it with our standard streams. Without a terminal a note of its process id is kept."""
    at_terminal = shell.is_at_terminal()
    note = "" if at_terminal else f"{folder}/{secrets.token_hex(8)}"
    exports = "".join(f"export {name}={shlex.quote(it)}\n" for name, it in variables.items())
    script = assigned(exports + RUN + shlex.join(command), note=note)

    def interrupt() -> None:
        if note:
            link.run(f"kill -INT $(cat {shlex.quote(note)})")

    options = ("-q", "-t") if at_terminal else ()
    code = shell.attached(
        link.command(script, *options), on_interrupt=interrupt, patience_s=INTERRUPT_PATIENCE_S
    )
    look = f"`sparkdeploy status --on {node}` says what goes on there"
    if code is None:
        raise NodeError(
            f"{link.name}: the command has not ended within {INTERRUPT_PATIENCE_S:g} s of Ctrl-C",
            hint=look,
        )
    if code == SSH_FAILED:
        raise _broken(link, look)
    if note:
        with contextlib.suppress(NodeError):
            link.run(f"rm -f {shlex.quote(note)}")
    return code


def _broken(link: SshLink, look: str) -> NodeError:
    try:
        link.run(":")
    except NodeError as error:
        return NodeError(
            f"{error.message}; the connection broke while the command ran there",
            hint=f"{look}; {error.hint}",
        )
    return NodeError(f"{link.name}: the command was killed there", hint=look)
