"""What git fetches of a source, and what is taken out of it: objects by name, never a checkout.

Without a work tree there is nothing that a repository could have git do: no hook, no filter, no
submodule, and no link that is followed.
"""

import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sparkdeploy import shell
from sparkdeploy.errors import NodeError, RecipeError, UsageError
from sparkdeploy.recipe.words import shown
from sparkdeploy.secret_shapes import masked_address
from sparkdeploy.shell import Completed
from sparkdeploy.terminal.safe_text import visible_line

TIMEOUT_S = 300.0
"""Of each step: a source is small."""
MAX_ENTRIES = 200_000
MAX_LIST_BYTES = 64 << 20
MAX_ENTRY_BYTES = 1 << 20
"""A few kilobytes of trees that hold one another list more files than any machine holds."""
MAX_PACK_BYTES = 1 << 30
"""git may write no file that is larger: a source is recipes, not weights."""
MAX_MEMORY_BYTES = 2 << 30
"""A server may list refs without an end; git keeps them all in memory."""
PROTOCOLS = "file:git:http:https:ssh"
"""Others, such as ext::, are commands."""
_QUIET = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.symlinks=false"),
    *("protocol.ext.allow=never", "fetch.recurseSubmodules=false", "transfer.fsckObjects=true"),
    *("gc.auto=0", "maintenance.auto=false", "advice.detachedHead=false", "core.longpaths=true"),
)
KEPT_VARIABLES = ("GIT_SSH", "GIT_SSL", "GIT_CONFIG", "GIT_PROXY", "GIT_TRACE")
"""How these begin. Others lead git elsewhere, as where it is started within a hook."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ABBREVIATED = re.compile(r"[0-9a-f]{4,40}")
_SSH = ("ssh://", "git+ssh://", "ssh+git://")
_REF = re.compile(r"\w[\w./@+-]{0,200}")


@dataclass(frozen=True, slots=True)
class Blob:
    path: str
    mode: str
    """100644, 100755; 120000 is a link, 160000 another repository."""
    object_id: str
    size_bytes: int

    @property
    def is_file(self) -> bool:
        return self.mode in ("100644", "100755")


@dataclass(frozen=True, slots=True)
class Fetched:
    commit: str
    ref: str | None
    """The whole hash where a part of one was given: a branch may be called like the part later."""


def check_origin(origin: str) -> None:
    """Refuse what is no address, and one with a login or a token: it would be stored and shown."""
    is_odd = origin.startswith("-") or not origin.isprintable() or "::" in origin.partition("/")[0]
    if is_odd or ":" not in origin:
        is_folder = bool(origin) and not is_odd and os.path.isdir(origin)  # noqa: PTH112
        raise UsageError(
            f"{shown(origin) or 'an empty word'} is no address of a git repository",
            hint=f"write {shlex.quote(f'./{origin}')} for the folder" if is_folder else None,
        )
    if _has_secret(origin):
        raise UsageError(
            f"{masked_address(origin)} has a login or a token in it, which would be stored",
            hint="leave it out: git asks its own credential helper, or use an ssh address",
        )


def _has_secret(origin: str) -> bool:
    scheme, mark, rest = origin.lower().partition("://")
    if not mark or scheme == "file":
        return False
    if f"{scheme}://" in _SSH:
        login, at, _ = rest.partition("/")[0].rpartition("@")
        return bool(at) and ":" in login
    # Of a password with a slash in it git and we might see different ends.
    return "@" in rest or "?" in rest


def check_ref(ref: str | None) -> None:
    if ref is None:
        return
    is_odd = ".." in ref or ref.endswith((".lock", "/")) or ref == "FETCH_HEAD"
    if is_odd or _REF.fullmatch(ref) is None:
        raise UsageError(f"{shown(ref)} is no branch, tag or commit")


@dataclass(frozen=True, slots=True)
class Repository:
    """A bare repository of ours, made for one fetch.

    One that stays would grow with every fetch, and be locked or damaged by one that was killed.
    """

    folder: Path

    def fetch(self, origin: str, ref: str | None) -> Fetched:
        """Fetch a branch, a tag or a commit, without what went before it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        _checked(_run("init", "--quiet", "--bare", "--template=", "--", str(self.folder)), origin)
        done = self._git("fetch", *_FETCH, "--depth=1", "--", origin, ref or "HEAD")
        # Servers need not give away a commit by its hash, and know no abbreviation of one.
        if done.exit_code != 0 and ref is not None:
            return self._fetch_all(origin, ref)
        _checked(done, origin)
        commit = self._known("FETCH_HEAD")
        if _COMMIT.fullmatch(commit) is None:
            raise NodeError(f"{masked_address(origin)} gave no commit")
        return Fetched(commit, ref)

    def _fetch_all(self, origin: str, ref: str) -> Fetched:
        heads = ("+refs/heads/*:refs/theirs/heads/*", "+refs/tags/*:refs/theirs/tags/*")
        _checked(self._git("fetch", *_FETCH, "--", origin, *heads), origin)
        for kind in ("heads", "tags"):
            if commit := self._known(f"refs/theirs/{kind}/{ref}"):
                return Fetched(commit, ref)
        if _ABBREVIATED.fullmatch(ref) and (commit := self._known(ref)):
            return Fetched(commit, commit)
        raise NodeError(f"{masked_address(origin)} has no branch, tag or commit {shown(ref)}")

    def _known(self, name: str) -> str:
        done = self._git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return done.stdout.strip() if done.exit_code == 0 else ""

    def blobs(self, commit: str) -> Iterator[Blob]:
        """Yield everything of a commit; names are as stored, and not yet to be trusted."""
        try:
            with self._output(
                "ls-tree", "-r", "-l", "-z", commit, max_bytes=MAX_LIST_BYTES
            ) as file:
                for row in _entries(file):
                    facts, _, path = row.decode(errors="surrogateescape").partition("\t")
                    mode, _kind, object_id, size = facts.split()
                    yield Blob(path, mode, object_id, int(size) if size.isdigit() else 0)
        except shell.EndlessOutputError as error:
            raise _too_many() from error

    def contents(self, blobs: Sequence[Blob]) -> Iterator[tuple[Blob, bytes]]:
        ids = "".join(f"{blob.object_id}\n" for blob in blobs)
        with self._output("cat-file", "--batch", max_bytes=MAX_PACK_BYTES, stdin=ids) as file:
            for blob in blobs:
                yield blob, _next_object(file, blob)

    @contextlib.contextmanager
    def _output(self, *words: str, max_bytes: int, stdin: str = "") -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as file:
            done = shell.run(
                _argv(f"--git-dir={self.folder}", *words),
                into=file,
                timeout_s=TIMEOUT_S,
                stdin=stdin,
                env=_environment(),
                max_bytes=max_bytes,
            )
            _checked(done, str(self.folder))
            file.seek(0)
            yield file

    def _git(self, *words: str) -> Completed:
        # So that `safe.bareRepository` has nothing to say.
        return _run(f"--git-dir={self.folder}", *words)


_FETCH = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-commit-graph")


def _entries(output: IO[bytes]) -> Iterator[bytes]:
    rest, count = b"", 0
    while chunk := output.read(1 << 16):
        *entries, rest = (rest + chunk).split(b"\0")
        count += len(entries)
        if count > MAX_ENTRIES or len(rest) > MAX_ENTRY_BYTES:
            raise _too_many()
        yield from entries


def _too_many() -> RecipeError:
    return RecipeError(
        f"the source lists more than {MAX_ENTRIES} files, or {MAX_LIST_BYTES >> 20} MiB of names",
        hint="a repository of recipes is smaller; is it the right one?",
    )


def _next_object(file: IO[bytes], blob: Blob) -> bytes:
    head = file.readline().split()
    if len(head) != 3 or head[1] != b"blob":
        raise RecipeError(f"{shown(blob.path)} is no file in its repository")
    content = file.read(int(head[2]))
    file.read(1)
    return content


def diff_stat(before: Path, after: Path, *, without: str) -> list[str]:
    """Return git's own summary of what differs between the files of two folders.

    `without` is a name at the top that is left out. Files are read as they are: attributes that a
    stranger wrote beside them start no filter.
    """
    with tempfile.TemporaryDirectory(prefix="sparkdeploy-diff-") as place:
        _checked(_run("init", "--quiet", "--bare", place), place)
        trees = [_tree(place, folder, without) for folder in (before, after)]
        words = ["-c", "core.quotePath=false", "diff", "--no-ext-diff", "--no-textconv"]
        words += ["--no-renames", "--stat=140,100", "--summary", *trees]
        output = _checked(_run(f"--git-dir={place}", *words), place)
    return [visible_line(line.strip()) for line in output.splitlines()]


def _tree(repository: str, folder: Path, without: str) -> str:
    """Store the files of a folder in a repository; return their tree's name."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in files if path != folder / without]

    def run(*words: str, stdin: str = "") -> str:
        return _checked(_run(f"--git-dir={repository}", *words, stdin=stdin), str(folder))

    names = "".join(f"{path}\n" for path in files)
    ids = run("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=names).split()
    rows = (
        f"{'100755' if os.access(path, os.X_OK) else '100644'} {object_id}"
        f"\t{path.relative_to(folder)}\0"
        for path, object_id in zip(files, ids, strict=True)
    )
    run("read-tree", "--empty")
    run("update-index", "-z", "--index-info", stdin="".join(rows))
    return run("write-tree").strip()


def _run(*words: str, stdin: str = "") -> Completed:
    return shell.run(_argv(*words), timeout_s=TIMEOUT_S, stdin=stdin, env=_environment())


def _argv(*words: str) -> list[str]:
    settings = [word for setting in _QUIET for word in ("-c", setting)]
    limits = ["prlimit", f"--fsize={MAX_PACK_BYTES}", f"--data={MAX_MEMORY_BYTES}"]
    return [*(limits if shell.which("prlimit") else ()), "git", *settings, *words]


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(KEPT_VARIABLES)
    }
    return kept | {
        "GIT_ALLOW_PROTOCOL": PROTOCOLS,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "LC_ALL": "C",
    }


def _checked(done: Completed, origin: str) -> str:
    if done.exit_code == 0:
        return done.stdout
    output = masked_address(done.stderr.strip()) or f"exit code {done.exit_code}"
    first = next((line for line in output.splitlines() if line.startswith("fatal:")), None)
    reason = first.removeprefix("fatal: ") if first else output.splitlines()[-1]
    # It is a program of git's own that the limit ends.
    if done.exit_code < 0 or "File too large" in output or "died of signal" in output:
        reason = f"it is larger than {MAX_PACK_BYTES >> 20} MiB, or git was ended: {reason}"
    raise NodeError(
        f"git could not take {masked_address(origin)}: {reason}",
        hint="try `git ls-remote` with that address",
        detail=output,
    )
