"""The program on another machine: the same code as here, found there or brought.

What is sent, files of a command too, arrives whole or not at all.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.node.ssh import SshLink

MARK = "sparkdeploy:"
KEPT_PROGRAMS = 2
SHOWN_LINES = 20
# -P: a folder of the user's that is called sparkdeploy is not the program.
AS_MODULE = ("-P", "-m", "sparkdeploy")
# Cheapest first: a folder's name says what it holds, an installed program has to start.
ASK = """\
cache="${SPARKDEPLOY_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sparkdeploy}"
PATH="$PATH:$HOME/.local/bin"
tell() { printf '\\nsparkdeploy:%s=%s\\n' "$1" "$2"; }
# Another user there may have made what stands at a path of ours, as below /tmp.
ours() {
  path="$1"
  while [ -n "$path" ]; do
    case "$(stat -c %u "$path")" in 0 | "$(id -u)") ;; *) return 1 ;; esac
    path="${path%/*}"
  done
}
same() { [ "$("$@" --identity 2>/dev/null </dev/null)" = "$identity" ]; }
tell cache "$cache"
if [ -d "$cache/from/$digest" ]; then touch "$cache/from/$digest"; tell sent "$digest"; fi
brought="$cache/program/$identity"
if [ -x "$brought/venv/bin/python" ]; then
  touch "$brought"
  tell python "$brought/venv/bin/python"
elif [ -x "$interpreter" ] && ours "$interpreter" && same "$interpreter" -P -m sparkdeploy; then
  tell python "$interpreter"
elif installed="$(command -v sparkdeploy)" && same "$installed"; then
  tell command "$installed"
fi
"""
# uv does not read pip's configuration, where a machine's package index often stands.
INSTALL = """\
exec 2>&1 </dev/null
set -eu
umask 077
cd "$staged"
PATH="$PATH:$HOME/.local/bin:$HOME/.cargo/bin"
if ! {
  command -v uv >/dev/null && uv venv --python '>=3.11' venv &&
    uv pip install --python venv/bin/python --requirement requirements.txt
}; then
  rm -rf venv
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "python3 there is older than 3.11"; exit 1; }
  python3 -m venv venv
  venv/bin/python -m pip install --disable-pip-version-check --requirement requirements.txt
fi
export PYTHONDONTWRITEBYTECODE=1
found="$(PYTHONPATH="$staged" venv/bin/python -P -m sparkdeploy --identity)"
[ "$found" = "$identity" ] || { echo "it is $found, and not $identity"; exit 1; }
site="$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
printf '%s\\n' "$into/$name" >"$site/sparkdeploy.pth"
[ -x "$into/$name/venv/bin/python" ] || rm -rf "$into/$name"
"""
# What a killed bringing left is removed by a later one; two may be at it at the same time.
UNPACK = """\
set -eu
umask 077
mkdir -p "$into"
find "$into" -maxdepth 1 -name '.new-*' -mmin +120 -exec rm -rf {} +
mkdir "$staged"
base64 -d | tar -xz -C "$staged"
"""
# A folder has its name only once it is whole. Somebody else's with that name is the same.
PUT = """\
touch "$staged"
if ! mv -T "$staged" "$into/$name" 2>/dev/null; then rm -rf "$staged"; [ -d "$into/$name" ]; fi
ls -1td "$into"/*/ | tail -n "+$((keep + 1))" | while read -r old; do rm -rf "$old"; done
"""


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
        """Return a script that knows the place under the names that the bodies above use."""
        place = {"into": self.into, "name": self.name, "keep": str(self.keep)}
        return assigned(body, **place, staged=f"{self.into}/{self._staged}", **values)

    def unpack(self, link: SshLink, files: Sequence[ContextFile], *, then: str = "") -> None:
        """Send files and unpack them beside the place; NodeError when they did not arrive."""
        tar = io.BytesIO()
        write_tar(files, tar)
        packed = base64.encodebytes(gzip.compress(tar.getvalue(), mtime=0)).decode()
        done = link.run(self.script(UNPACK + then), stdin=packed)
        if done.exit_code:
            raise NodeError(
                f"{link.name}: files could not be unpacked below {self.into}",
                detail=done.stderr,
                hint="is that disk full, or the folder another user's?",
            )


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
    said = link.run(assigned(ASK, **values)).stdout.splitlines()
    told = dict(line.removeprefix(MARK).split("=", 1) for line in said if line.startswith(MARK))
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
        script = place.script(INSTALL + PUT, identity=place.name)

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
