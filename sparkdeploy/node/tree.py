"""The files of a folder on any node: what they are, and their hashes, asked only once."""

import json
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparkdeploy.atomic_files import write_private
from sparkdeploy.errors import NodeError
from sparkdeploy.node.node import Node

HASH_TIMEOUT_S = 3600.0
"""72 GB at 0.5 GB/s take three minutes; a disk that is slower than that is still not stuck."""
STORED = re.compile(r"([0-9a-f]{2})/\1[0-9a-f]{62}")
"""A file's name in `blobs`, the folder beside those of repositories that a hub cache shares among
them since huggingface_hub 2.4."""
_STORE = "../blobs/"
_LIST = r"LC_ALL=C find {root} -printf '%P\t%y\t%s\t%T@\t%C@\t%i\t%l\0'"
_GONE = "No such file or directory"
"""What find says of a root that is missing, and of what was removed while it looked."""
_FOLLOW = (
    r"cd {root} && xargs -d '\n' stat -L --printf '%n\t%F\t%s\t%Y %Z %i\0' -- 2>/dev/null || true"
)
_FIELDS = 7


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a link below a root. `stamp` changes whenever the content may have changed.

    A link into the store that repositories share is a file: it is the content that counts.
    """

    kind: str
    size_bytes: int
    stamp: str
    """Size, times of change of content and of status, inode: the latter two cannot be forged by
    setting a file's time back."""
    link: str

    @property
    def is_shared(self) -> bool:
        return self.kind == "f" and self.link != ""


def list_tree(node: Node, root: Path) -> dict[str, Entry]:
    """Return every file and link below a root by path; NodeError for an unreadable folder."""
    done = node.script(_LIST.format(root=shlex.quote(str(root))))
    unread = [line for line in done.stderr.splitlines() if not line.endswith(_GONE)]
    if done.exit_code and unread:
        raise NodeError(
            f"{node.name}: {root} cannot be read whole: {unread[0].removeprefix('find: ')}",
            hint=f"on {node.name}, as its owner: chmod -R u+rX {shlex.quote(str(root))}",
        )
    entries = read_listing(done.stdout, node.name, root)
    stored = [path for path, entry in entries.items() if _is_stored(path, entry.link)]
    if not stored:
        return entries
    script = _FOLLOW.format(root=shlex.quote(str(root)))
    records = node.script(script, stdin="\n".join(stored)).stdout.split("\0")[:-1]
    for path, kind, size, stamp in (record.split("\t") for record in records):
        if kind.startswith("regular"):
            entries[path] = replace(
                entries[path], kind="f", size_bytes=int(size), stamp=f"{size} {stamp}"
            )
    return entries


def _is_stored(path: str, link: str) -> bool:
    place = posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) if link else ""
    return place.startswith(_STORE) and STORED.fullmatch(place[len(_STORE) :]) is not None


def read_listing(text: str, node: str, root: Path) -> dict[str, Entry]:
    """Read what _LIST printed; NodeError names a file that no list of lines can hold."""
    entries: dict[str, Entry] = {}
    for record in text.split("\0")[:-1]:
        fields = record.split("\t")
        if len(fields) != _FIELDS or record.splitlines() != [record]:
            raise NodeError(
                f"{node}: the name of {str(root / fields[0])!r}, or of what it links to, has a tab "
                "or a line end",
                hint=f"rename it on {node}",
            )
        path, kind, size, changed, status, inode, link = fields
        if kind in {"f", "l"}:
            entries[path] = Entry(kind, int(size), f"{size} {changed} {status} {inode}", link)
    return entries


class Ledger:
    """Hashes that were computed before, kept per node and valid as long as the stamp is."""

    def __init__(self, state_dir: Path, node: str) -> None:
        """Read what is known; a broken file counts as nothing known."""
        self._file = state_dir / "cluster" / f"hashes-{node}.json"
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        self._known: dict[str, object] = known if isinstance(known, dict) else {}

    def find(self, path: Path, entry: Entry) -> str | None:
        match self._known.get(str(path)):
            case [entry.stamp, str(digest)]:
                return digest
        return None

    def remember(self, digests: Mapping[Path, tuple[Entry, str]]) -> None:
        for path, (entry, digest) in digests.items():
            self._known[str(path)] = [entry.stamp, digest]
        write_private(self._file, json.dumps(self._known))


def hashes(node: Node, root: Path, entries: Mapping[str, Entry], ledger: Ledger) -> dict[str, str]:
    """Return the sha256 of every regular file; only those that changed are read again."""
    known = {
        path: ledger.find(root / path, entry)
        for path, entry in entries.items()
        if entry.kind == "f"
    }
    missing = [path for path, digest in known.items() if digest is None]
    fresh = _read(node, root, missing) if missing else {}
    ledger.remember({root / path: (entries[path], digest) for path, digest in fresh.items()})
    return {**{path: digest for path, digest in known.items() if digest}, **fresh}


def _read(node: Node, root: Path, paths: Sequence[str]) -> dict[str, str]:
    script = f"cd {shlex.quote(str(root))} && xargs -d '\\n' -n 1 -P 4 sha256sum --"
    done = node.script(script, stdin="\n".join(paths), timeout_s=HASH_TIMEOUT_S)
    if done.exit_code != 0:
        raise NodeError(
            f"{node.name}: files below {root} cannot be read", detail=done.stderr.strip()
        )
    pairs = (line.partition("  ") for line in done.stdout.splitlines())
    return {path: digest for digest, _, path in pairs}
