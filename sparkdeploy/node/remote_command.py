"""Run a command of ours with another machine's own sparkdeploy, over ssh.

No environment, key, token or configuration of this machine is sent.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import re
import secrets
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import __version__, shell
from sparkdeploy.errors import NodeError
from sparkdeploy.node.ssh import SSH_FAILED, SshLink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.node.ssh import SshTarget

INTERRUPT_PATIENCE_S = 300.0
"""After Ctrl-C an `up` may still bring back what ran before."""
FACT = re.compile(r"sparkdeploy:(version|cache)=(.*)")
"""A line of PREPARE; a login may greet with any other."""
PREPARE = Path(__file__).with_suffix(".sh").read_text(encoding="utf-8")
RUN = """\
PATH="$PATH:$HOME/.local/bin"
if [ -n "$note" ]; then (umask 077; mkdir -p "${note%/*}"; echo $$ >"$note"); fi
exec sparkdeploy """


def prepare(link: SshLink, archive: bytes) -> tuple[str, str]:
    """Send the files of a tar archive; return the cache folder there, and the files' own.

    Raises NodeError when sparkdeploy is missing there or another version.
    """
    digest = hashlib.sha256(archive).hexdigest()[:16] if archive else ""
    script = _assigned(PREPARE, digest=digest, wanted=f"sparkdeploy {__version__}")
    packed = base64.encodebytes(gzip.compress(archive, mtime=0)).decode()
    done = link.run(script, stdin=packed)
    facts = {it[1]: it[2] for line in done.stdout.splitlines() if (it := FACT.fullmatch(line))}
    if "cache" not in facts:
        raise NodeError(
            f"{link.name}: ssh logs in, but no shell script runs there",
            hint="a forced command or a login shell that is none? Try: ssh NODE echo hello",
        )
    if (version := facts["version"]) != f"sparkdeploy {__version__}":
        installed = f"{version or 'sparkdeploy'} is {'' if version else 'not '}installed there"
        raise NodeError(
            f"{link.name}: {installed}, and this is sparkdeploy {__version__}",
            hint=f"on that machine, in a checkout of {__version__}: ./install.sh --tool-only "
            f"(or: uv tool install sparkdeploy=={__version__})",
        )
    if done.exit_code:
        raise NodeError(
            f"{link.name}: files could not be unpacked below {facts['cache']}/from",
            detail=done.stderr,
            hint="is that disk full, or the folder another user's?",
        )
    return facts["cache"], f"{facts['cache']}/from/{digest}"


def run_attached(
    link: SshLink, target: SshTarget, argv: Sequence[str], variables: dict[str, str], cache: str
) -> int:
    """Run sparkdeploy there with our standard streams and return its exit code.

    It has a terminal where we have one; else a note of its process id lets Ctrl-C reach it.
    """
    at_terminal = shell.is_at_terminal()
    note = "" if at_terminal else f"{cache}/running/{secrets.token_hex(8)}"
    exports = "".join(f"export {name}={shlex.quote(it)}\n" for name, it in variables.items())
    script = _assigned(exports + RUN + shlex.join(argv), note=note)

    def interrupt() -> None:
        if note:
            link.run(f"kill -INT $(cat {shlex.quote(note)})")

    options = ("-q", "-t") if at_terminal else ()
    code = shell.attached(
        link.command(script, *options), on_interrupt=interrupt, patience_s=INTERRUPT_PATIENCE_S
    )
    look = f"`sparkdeploy status --on {shlex.quote(target.name)}` says what goes on there"
    if code is None:
        raise NodeError(
            f"{link.name}: the command has not ended within {INTERRUPT_PATIENCE_S:g} s of Ctrl-C",
            hint=look,
        )
    if code == SSH_FAILED:
        raise NodeError(f"{link.name}: the connection broke, or ssh was ended there", hint=look)
    if note:
        with contextlib.suppress(NodeError):
            link.run(f"rm -f {shlex.quote(note)}")
    return code


def _assigned(script: str, **values: str) -> str:
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join([*lines, script])
