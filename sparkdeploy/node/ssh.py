"""One ssh connection to one node: commands, its Docker Engine's socket, and rsync's way there."""

import base64
import contextlib
import gzip
import hashlib
import re
import secrets
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sparkdeploy import __version__, shell
from sparkdeploy.errors import NodeError
from sparkdeploy.shell import Completed

CONNECT_TIMEOUT_S = 5
ALIVE_EVERY_S = 3
OPEN_TIMEOUT_S = 20.0
READY = "sparkdeploy-ready"
SSH_FAILED = 255
OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"),
    *("-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"),
    # A cable that is pulled is noticed within ten seconds.
    *("-o", f"ServerAliveInterval={ALIVE_EVERY_S}", "-o", "ServerAliveCountMax=2"),
)


@dataclass(frozen=True, slots=True)
class SshTarget:
    """Whom to connect to; ssh's own configuration fills in what is left out."""

    name: str
    address: str
    user: str | None = None
    docker_socket: str = "/var/run/docker.sock"


def explain(output: str, address: str, user: str | None) -> tuple[str, str]:
    """Return why ssh did not connect, from its standard error, and the command that helps."""
    target = f"{user}@{address}" if user else address
    known = {
        "REMOTE HOST IDENTIFICATION HAS CHANGED": (
            "its host key has changed",
            f"if it was reinstalled: ssh-keygen -R {address}, then ssh {target} true",
        ),
        "Host key verification failed": (
            "its host key is not known here",
            f"compare the fingerprint that this shows, and say yes: ssh {target} true",
        ),
        "Permission denied": ("ssh needs a password or a key there", f"ssh-copy-id {target}"),
        "Connection refused": (
            f"nothing listens for ssh at {address}",
            "on that node: sudo systemctl enable --now ssh",
        ),
        "Could not resolve hostname": (
            f"the name {address} is not known",
            "check the name, or give its address: `ssh:` in config.yaml, or HostName in"
            " ~/.ssh/config",
        ),
    }
    last = output.strip().splitlines()[-1:] or ["it did not answer"]
    unknown = f"ssh to {address}: {last[0]}", f"is it on, and on this network? ssh {target}"
    return next((fault for words, fault in known.items() if words in output), unknown)


class SshLink:
    """An open connection; a context manager. It ends with this process, however that ends."""

    def __init__(self, target: SshTarget) -> None:
        """Connect; raise NodeError naming the node, the cause and the fix."""
        self._target = target
        self.name = target.name
        self._login = ("-l", target.user) if target.user else ()
        # A socket's path may have 108 characters, so not below the user's own folders.
        self._folder = tempfile.TemporaryDirectory(prefix="sparkdeploy-ssh-")
        control, docker = (str(Path(self._folder.name) / name) for name in ("ctl", "docker"))
        self._control = ("ssh", "-S", control, *OPTIONS, *self._login)
        forward = ("-L", f"{docker}:{target.docker_socket}", "-o", "ExitOnForwardFailure=yes")
        # The remote `cat` ends with our end of its input: no connection outlives us.
        wait = f"echo {READY}; exec cat"
        self._program = shell.Running(
            ("ssh", "-M", "-S", control, *OPTIONS, *forward, *self._login, target.address, wait)
        )
        self.docker_address = f"unix://{docker}"
        if self._program.read_until(READY, timeout_s=OPEN_TIMEOUT_S) is None:
            output = self._program.errors()
            self.close()
            raise self._fault(output)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._program.end()
        self._folder.cleanup()

    @property
    def is_open(self) -> bool:
        return self._program.is_alive

    def run(
        self, script: str, *, stdin: str | None = None, timeout_s: float | None = None
    ) -> Completed:
        """Run a POSIX shell script there; NodeError when the connection does not carry it."""
        if not self.is_open:
            raise self._fault(self._program.errors())
        done = shell.run(self.command(script), stdin=stdin, timeout_s=timeout_s)
        if done.exit_code == SSH_FAILED:
            raise self._fault(done.stderr)
        return done

    def start(self, script: str) -> shell.Running:
        return shell.Running(self.command(script))

    def command(self, script: str, *options: str) -> tuple[str, ...]:
        """Return the command line of an ssh that runs a script there over this connection."""
        remote = f"sh -c {shlex.quote(script)}"
        return (*self._control, *options, self._target.address, remote)

    def rsync_shell(self, address: str) -> str:
        """Return rsync's `--rsh`: straight to `address` on the fabric where that logs in."""
        # As the user's own configuration logs in (User, Port, IdentityFile), held to the same key.
        direct = ("ssh", *OPTIONS, *self._straight_to(address), *self._login)
        done = shell.run((*direct, self._target.address, "true"), timeout_s=OPEN_TIMEOUT_S)
        # Where it cannot be reached so, as behind a ProxyJump, the open connection has the files.
        return shlex.join(direct if done.exit_code == 0 else self._control)

    def remote_path(self, path: str) -> str:
        host = self._target.address
        return f"[{host}]:{path}" if ":" in host else f"{host}:{path}"

    def _straight_to(self, address: str) -> tuple[str, ...]:
        output = shell.run(("ssh", "-G", *self._login, self._target.address)).stdout
        known = dict(line.partition(" ")[::2] for line in output.splitlines())
        host, port = known.get("hostname", self._target.address), known.get("port", "22")
        # known_hosts names a host with another port than 22 so, and an alias as it stands.
        key = known.get("hostkeyalias") or (host if port == "22" else f"[{host}]:{port}")
        return ("-o", f"HostName={address}", "-o", f"HostKeyAlias={key}", "-o", "ProxyJump=none")

    def _fault(self, output: str) -> NodeError:
        cause, fix = explain(output, self._target.address, self._target.user)
        return NodeError(f"{self.name}: {cause}", hint=fix)


INTERRUPT_PATIENCE_S = 300.0
"""After Ctrl-C an `up` may still bring back what ran before."""
FACT = re.compile(r"sparkdeploy:(version|cache)=(.*)")
"""A line of PREPARE; a login may greet with any other."""
PREPARE = Path(__file__).with_name("remote_command.sh").read_text(encoding="utf-8")
RUN = """\
PATH="$PATH:$HOME/.local/bin"
if [ -n "$note" ]; then (umask 077; mkdir -p "${note%/*}"; echo $$ >"$note"); fi
exec sparkdeploy """


def prepare(link: SshLink, archive: bytes) -> tuple[str, str]:
    """Send a tar archive's files; return the cache folder there and theirs, or NodeError."""
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
    """Run sparkdeploy there with our standard streams, and our terminal; return its exit code."""
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
