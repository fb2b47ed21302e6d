"""The program on another machine: the same code as here, found there or brought.

What is sent, files of a command too, arrives whole or not at all.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import secrets
import shlex
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import __version__, shell
from sparkdeploy.console import console
from sparkdeploy.errors import NodeError
from sparkdeploy.image.context import ContextFile, write_tar
from sparkdeploy.settings import resources
from sparkdeploy.shell import AS_MODULE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.node.ssh import SshLink

KEPT_PROGRAMS = 2
SHOWN_LINES = 20
FACT = re.compile(r"sparkdeploy:(cache|sent|python|command)=(.+)")
"""A line of ask.sh; a login may greet with any other."""


@dataclass(frozen=True, slots=True)
class BundleFolder:
    """A folder `name` below `into` on the other machine, of which the newest are kept."""

    into: str
    name: str
    keep: int
    _staged: str = field(default_factory=lambda: f".new-{secrets.token_hex(8)}", init=False)
    """Beside it, for what is not whole yet."""

    @property
    def path(self) -> str:
        return f"{self.into}/{self.name}"

    def script(self, body: str, **values: str) -> str:
        """Return a script that knows the place under the names that the scripts use."""
        place = {"into": self.into, "name": self.name, "keep": str(self.keep)}
        return assigned(body, **place, staged=f"{self.into}/{self._staged}", **values)

    def unpack(self, link: SshLink, files: Sequence[ContextFile], *, then: str = "") -> None:
        """Send files and unpack them beside the place; NodeError when they did not arrive."""
        tar = io.BytesIO()
        write_tar(files, tar)
        packed = base64.encodebytes(gzip.compress(tar.getvalue(), mtime=0)).decode()
        done = link.run(self.script(body_of("unpack") + then), stdin=packed)
        if done.exit_code:
            raise NodeError(
                f"{link.name}: files could not be unpacked below {self.into}",
                detail=done.stderr,
                hint="is that disk full, or the folder another user's?",
            )


def body_of(name: str) -> str:
    return Path(__file__).with_name(f"{name}.sh").read_text(encoding="utf-8")


def assigned(body: str, **values: str) -> str:
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join([*lines, body])


def digest_of(files: Sequence[ContextFile]) -> str:
    """Return 16 hex digits over names, modes and contents."""
    lines = [f"{file.path} {file.digest()}\n" for file in sorted(files, key=lambda it: it.path)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class MachineReport:
    cache: str
    program: tuple[str, ...] | None
    """How it is called there."""
    has_files: bool


def identity() -> str:
    """Return the version and a digest of all that the program consists of."""
    return f"{__version__}-{digest_of(tuple(program_files()))}"


def program_files() -> Iterator[ContextFile]:
    """Yield the package, recipes and Dockerfiles, in the places that a checkout has them."""
    package = Path(__file__).parents[2]
    for folder in (package, resources() / "recipes", resources() / "dockerfiles"):
        for path in folder.rglob("*"):
            place = path.relative_to(folder)
            # Caches of Python and of linters; what an installed package has of recipes is below.
            is_made = any(part.startswith((".", "__pycache__", "_data")) for part in place.parts)
            if path.is_file() and not is_made:
                yield ContextFile(f"{folder.name}/{place.as_posix()}", path)


def ask(link: SshLink, digest: str) -> MachineReport:
    """Ask in one go; a file in the user's shell start-up may print before."""
    values = {"identity": identity(), "interpreter": sys.executable, "digest": digest}
    said = link.run(assigned(body_of("ask"), **values)).stdout.splitlines()
    told = {fact[1]: fact[2] for line in said if (fact := FACT.fullmatch(line))}
    if "cache" not in told:
        raise NodeError(
            f"{link.name}: ssh logs in, but no shell script runs there",
            hint="a forced command or a login shell that is none? Try: ssh NODE echo hello",
        )
    program: tuple[str, ...] | None = None
    if "python" in told:
        program = (told["python"], *AS_MODULE)
    elif "command" in told:
        program = (told["command"],)
    return MachineReport(told["cache"], program, "sent" in told)


def bring(link: SshLink, answer: MachineReport) -> tuple[str, ...]:
    """Send this program, make it a virtual environment there, and return how it is called."""
    place = BundleFolder(f"{answer.cache}/program", identity(), KEPT_PROGRAMS)
    requirements = metadata.requires("sparkdeploy") or []
    files = (
        *program_files(),
        ContextFile("requirements.txt", "".join(f"{line}\n" for line in requirements).encode()),
        # From there it can be brought further: this is where `requires` reads.
        ContextFile(f"sparkdeploy-{__version__}.dist-info/METADATA", _metadata(requirements)),
    )
    with console.step(f"sparkdeploy {place.name} to {link.name}") as step:
        step.say("sending it")
        place.unpack(link, files)
        script = place.script(body_of("install") + body_of("put"), identity=place.name)

        def show(text: str) -> None:
            for line in text.splitlines()[-1:]:
                step.say(line)

        done = shell.follow(link.command(script), show)
    if done.exit_code:
        raise _not_installed(link, done.stdout)
    return (f"{place.path}/venv/bin/python", *AS_MODULE)


def _metadata(requirements: list[str]) -> bytes:
    head = ["Metadata-Version: 2.1", "Name: sparkdeploy", f"Version: {__version__}"]
    return "\n".join([*head, *(f"Requires-Dist: {line}" for line in requirements), ""]).encode()


def _not_installed(link: SshLink, said: str) -> NodeError:
    """Say why; a connection that broke meanwhile raises its own cause."""
    link.run(":")
    hint = "is its package index reached? pip and uv take it from their own settings on that node"
    if "older than 3.11" in said or "python3: not found" in said:
        hint = "install uv there, which brings its own Python"
    elif "ensurepip" in said or "No module named venv" in said:
        hint = "on that node: sudo apt-get install -y python3-venv (or install uv)"
    detail = "\n".join(said.splitlines()[-SHOWN_LINES:])
    told = f"{link.name}: sparkdeploy could not be installed there"
    return NodeError(told, hint=hint, detail=detail)
