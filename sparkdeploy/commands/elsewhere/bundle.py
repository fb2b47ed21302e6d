"""Files on their way to another machine: their digest, and how they arrive whole or not at all."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import secrets
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError
from sparkdeploy.image.context import write_tar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.image.context import ContextFile
    from sparkdeploy.node.ssh import SshLink

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
    """Return a shell script with values of ours as its variables."""
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join([*lines, body])


def digest_of(files: Sequence[ContextFile]) -> str:
    """Return 16 hex digits over names, modes and contents."""
    lines = [f"{file.path} {file.digest()}\n" for file in sorted(files, key=lambda it: it.path)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
