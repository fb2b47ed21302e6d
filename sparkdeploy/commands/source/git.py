"""What git fetches of a source, and what is taken out of it: objects by name, never a checkout.

Without a work tree there is nothing that a repository could have git do: no hook, no filter, no
submodule, and no link that is followed.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from sparkdeploy import shell
from sparkdeploy.errors import NodeError, RecipeError, UsageError
from sparkdeploy.recipe.harmless import shown
from sparkdeploy.settings import LOGIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sparkdeploy.shell import Completed

TIMEOUT_S = 900.0
MAX_PACK_BYTES = 1 << 30
"""git may write no file that is larger: a source is recipes, not weights."""
PROTOCOLS = "file:git:http:https:ssh"
"""Others, such as ext::, are commands."""
_QUIET = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.symlinks=false"),
    *("protocol.ext.allow=never", "fetch.recurseSubmodules=false", "transfer.fsckObjects=true"),
    *("gc.auto=0", "maintenance.auto=false", "advice.detachedHead=false", "core.longpaths=true"),
)
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_REF = re.compile(r"\w[\w./@+-]{0,200}")


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a commit, or what stands in a file's place."""

    path: str
    mode: str
    """100644, 100755; 120000 is a link, 160000 another repository."""
    object_id: str
    size_bytes: int

    @property
    def is_file(self) -> bool:
        return self.mode in ("100644", "100755")


def check_origin(origin: str) -> None:
    """Refuse what is no address, and one with a login: it would be stored and shown."""
    if origin.startswith("-") or not origin.isprintable() or "::" in origin.partition("/")[0]:
        raise UsageError(f"{shown(origin)} is no address of a git repository")
    if re.search(r"//[^/@]*:[^/@]*@", origin):
        raise UsageError(
            f"{LOGIN.sub('//***@', origin)} has a password in it, which would be stored",
            hint="leave it out: git asks its own credential helper, or use an ssh address",
        )


def check_ref(ref: str | None) -> None:
    if ref is not None and (_REF.fullmatch(ref) is None or ".." in ref or ref.endswith(".lock")):
        raise UsageError(f"{shown(ref)} is no branch, tag or commit")


@dataclass(frozen=True, slots=True)
class Repository:
    """A bare repository of ours."""

    folder: Path

    def fetch(self, origin: str, ref: str | None) -> str:
        """Fetch a branch, a tag or a commit, without what went before it; return the commit.

        Raises NodeError where the origin does not answer, or has no such ref.
        """
        if not (self.folder / "HEAD").is_file():
            self.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _checked(_run("init", "--quiet", "--bare", "--template=", str(self.folder)), origin)
        if ref is None or not self._fetch_alone(origin, ref):
            return self._fetch_default(origin) if ref is None else self._fetch_all(origin, ref)
        return self._commit("FETCH_HEAD", origin)

    def _fetch_default(self, origin: str) -> str:
        _checked(self._git("fetch", *_FETCH, "--depth=1", "--", origin, "HEAD"), origin)
        return self._commit("FETCH_HEAD", origin)

    def _fetch_alone(self, origin: str, ref: str) -> bool:
        """Servers need not give away a commit by its hash, and know no abbreviation of one."""
        done = self._git("fetch", *_FETCH, "--depth=1", "--", origin, ref)
        return done.exit_code == 0

    def _fetch_all(self, origin: str, ref: str) -> str:
        heads = ("+refs/heads/*:refs/theirs/heads/*", "+refs/tags/*:refs/theirs/tags/*")
        _checked(self._git("fetch", *_FETCH, "--", origin, *heads), origin)
        for name in (f"refs/theirs/heads/{ref}", f"refs/theirs/tags/{ref}", ref):
            done = self._git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
            if done.exit_code == 0:
                return done.stdout.strip()
        raise NodeError(f"{LOGIN.sub('//***@', origin)} has no branch, tag or commit {shown(ref)}")

    def _commit(self, name: str, origin: str) -> str:
        found = _checked(self._git("rev-parse", "--verify", f"{name}^{{commit}}"), origin).strip()
        if _COMMIT.fullmatch(found) is None:
            raise NodeError(f"{shown(origin)} gave no commit")
        return found

    def blobs(self, commit: str) -> Iterator[Blob]:
        """Yield everything of a commit; names are as they are stored, and not yet to be trusted."""
        listed = _checked(self._git("ls-tree", "-r", "-l", "-z", commit), str(self.folder))
        for row in filter(None, listed.split("\0")):
            told, _, path = row.partition("\t")
            mode, _kind, object_id, size = told.split()
            yield Blob(path, mode, object_id, int(size) if size.isdigit() else 0)

    def contents(self, blobs: Sequence[Blob]) -> Iterator[tuple[Blob, bytes]]:
        """Yield the content of each, as it is stored."""
        with tempfile.TemporaryFile() as file:
            names = "".join(f"{blob.object_id}\n" for blob in blobs)
            argv = _argv("-C", str(self.folder), "cat-file", "--batch")
            done = shell.run_into(argv, file, timeout_s=TIMEOUT_S, stdin=names, env=_environment())
            _checked(done, str(self.folder))
            file.seek(0)
            for blob in blobs:
                yield blob, _next_object(file, blob)

    def _git(self, *words: str) -> Completed:
        return _run("-C", str(self.folder), *words)


_FETCH = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-commit-graph")


def _next_object(file: IO[bytes], blob: Blob) -> bytes:
    head = file.readline().split()
    if len(head) != 3 or head[1] != b"blob":
        raise RecipeError(f"{shown(blob.path)} is no file in its repository")
    content = file.read(int(head[2]))
    file.read(1)
    return content


def _run(*words: str) -> Completed:
    return shell.run(_argv(*words), timeout_s=TIMEOUT_S, env=_environment())


def _argv(*words: str) -> list[str]:
    settings = [word for setting in _QUIET for word in ("-c", setting)]
    limit = ["prlimit", f"--fsize={MAX_PACK_BYTES}"] if shell.which("prlimit") else []
    return [*limit, "git", *settings, *words]


def _environment() -> dict[str, str]:
    # Where git is started from within a repository's hook, these would lead it there.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_DIR")}
    return kept | {
        "GIT_ALLOW_PROTOCOL": PROTOCOLS,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "LC_ALL": "C",
    }


def _checked(done: Completed, origin: str) -> str:
    if done.exit_code == 0:
        return done.stdout
    said = LOGIN.sub("//***@", done.stderr.strip()) or f"exit code {done.exit_code}"
    if done.exit_code < 0 or "File too large" in said:
        said = f"it is larger than {MAX_PACK_BYTES >> 20} MiB, or git was ended: {said}"
    raise NodeError(
        f"git could not take {LOGIN.sub('//***@', origin)}: {said.splitlines()[-1]}",
        hint="try `git ls-remote` with that address",
        detail=said,
    )
