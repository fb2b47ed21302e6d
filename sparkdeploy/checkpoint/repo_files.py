"""What a hub says of a repository, and the rules it must keep before any of it becomes a path.

A hub, or whoever stands between it and this machine, writes these names. They become files of a
cache, so that the value types themselves refuse what could lie anywhere else; no other place has
to think of it, and what is read back from a file of ours is held to the same rules.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from sparkdeploy.errors import CheckpointError

NAME_LIMIT_BYTES = 1024
"""Of a whole name, which leaves room in a path of 4096 for the cache's own place."""
PART_LIMIT_BYTES = 255
WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".onnx_data", ".h5", ".msgpack"),
    *(".ot", ".tflite", ".ckpt"),
)
DEPTH_LIMIT = 16
"""Folders within folders; models have one or two."""
FILES_LIMIT = 10_000
"""Files of a commit; the largest models have some hundred."""
SIZE_LIMIT_BYTES = 1 << 50
"""Of one file; the hub's own limit is a thousandth of it."""
_HOSTILE_HINT = (
    "nothing was fetched; a sound repository lists no such thing, so check that HF_ENDPOINT, "
    "proxies and the network are yours, and tell the repository's owner"
)
_SHOWN_CHARACTERS = 120

# Not `\w`, which takes letters and digits of every script.
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MODULE = re.compile(r"\d+_\w+/")
_CONSOLIDATED = re.compile("consolidated")
_NUMBERED = re.compile(r"([^/]*?)([0-9]{1,9})-of-([0-9]{1,9})([^0-9/][^/]*)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def hostile(message: str) -> CheckpointError:
    return CheckpointError(message, hint=_HOSTILE_HINT)


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file as the hub describes it; a large one has a sha256, a small one git's own sha1.

    Raises CheckpointError for a name, a hash or a size that no file has.
    """

    name: str
    size_bytes: int
    sha256: str | None
    git_sha1: str | None

    def __post_init__(self) -> None:
        problem = name_problem(self.name)
        if problem is not None:
            raise hostile(f"the name of a file, {shown(self.name)}, {problem}.")
        size = self.size_bytes
        if type(size) is not int or not 0 <= size <= SIZE_LIMIT_BYTES:
            raise self._wrong(f"a size of {shown(size)}, not 0 to {SIZE_LIMIT_BYTES} bytes")
        if self.sha256 is None and self.git_sha1 is None:
            raise self._wrong("no hash")
        if self.sha256 is not None and not _matches(_SHA256, self.sha256):
            raise self._wrong(f"a sha256 of {shown(self.sha256)}, not 64 hexadecimal digits")
        if self.git_sha1 is not None and not _matches(_COMMIT, self.git_sha1):
            raise self._wrong(f"a blob of {shown(self.git_sha1)}, not 40 hexadecimal digits")

    @property
    def blob_name(self) -> str:
        """What the cache calls the file's content: the hub's hash of it."""
        return self.sha256 or self.git_sha1 or ""

    def new_hash(self) -> "hashlib._Hash":
        """The hash whose hexadecimal digits, over the content, are `blob_name`."""
        if self.sha256 is not None:
            return hashlib.sha256()
        return git_blob_hash(self.size_bytes)

    def _wrong(self, what: str) -> CheckpointError:
        return hostile(f"{self.name} is stated with {what}.")


def git_blob_hash(size_bytes: int) -> "hashlib._Hash":
    """Git's own hash of a file of that size; it is no signature and only finds damage."""
    return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class RepoFacts:
    """A repository at one commit; CheckpointError for what no cache can hold."""

    repo: str
    revision: str
    commit: str
    license: str | None
    files: tuple[RepoFile, ...]
    left_out: tuple[RepoFile, ...] = ()

    def __post_init__(self) -> None:
        check_repo(self.repo)
        check_revision(self.repo, self.revision)
        check_commit(self.repo, self.commit)
        if len(self.files) > FILES_LIMIT:
            count = len(self.files)
            raise hostile(f"{self.repo}: the hub lists {count} files, more than {FILES_LIMIT}.")
        clash = _clash([file.name for file in self.files])
        if clash is not None:
            raise hostile(f"{self.repo}: the hub lists {clash}.")

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def weights_bytes(self) -> int:
        return weights_bytes({file.name: file.size_bytes for file in self.files})

    def of_one_format(self, folders: Collection[str] = ()) -> "RepoFacts":
        """Leave out what vLLM does not read: weights that are there in a second format.

        Models in `folders` stay. Raises CheckpointError where there is no such folder.
        """
        names = [file.name for file in self.files]
        unread = unread_weights(names)
        for folder in folders:
            inner = [name.removeprefix(f"{folder}/") for name in names if is_in(folder, name)]
            if not inner:
                raise CheckpointError(
                    f"{self.repo} has no folder {shown(folder)}.",
                    hint="look at its files on the hub: --set serve.speculative.subfolder=FOLDER",
                )
            unread -= {f"{folder}/{name}" for name in {*inner} - unread_weights(inner)}
        files = tuple(file for file in self.files if file.name not in unread)
        left_out = tuple(file for file in self.files if file.name in unread)
        return replace(self, files=files, left_out=left_out)


def is_in(folder: str, name: str) -> bool:
    return name.startswith(f"{folder}/")


def unread_weights(names: Iterable[str]) -> frozenset[str]:
    """Return the files of a repository that vLLM does not read when it loads a model's folder.

    It takes one format: safetensors, else Mistral's `consolidated` ones, else what PyTorch has
    saved; of folders only sentence-transformers' modules, such as `2_Dense`. Nothing is left out
    where no weights lie outside of folders.
    """
    names = list(names)
    weights = [name for name in names if name.endswith(WEIGHTS) and not _MODULE.match(name)]
    here = [name for name in weights if "/" not in name]
    formats = (
        [name for name in here if name.endswith(".safetensors") and not _CONSOLIDATED.match(name)],
        [name for name in here if name.endswith(".safetensors")],
        [name for name in here if name.endswith(".bin")],
        [name for name in here if name.endswith((".pt", ".pth"))],
        here,
    )
    read = next(filter(None, formats), None)
    if read is None:
        return frozenset()
    folders = {name.split("/")[0] for name in weights if "/" in name}
    within = {name for name in names if "/" in name and name.split("/")[0] in folders}
    return frozenset({*weights, *within} - set(read))


def files_here(names: Collection[str], indexed: Collection[str] = ()) -> tuple[int, int] | None:
    """Return how many of how many files of the weights are here; None where none is missing.

    An index says which there are; without one, and without a `model.safetensors` that is all, the
    numbers do, as `model-00002-of-00039` has them, counted from 0 or from 1.
    """
    if indexed:
        here = len({*indexed} & {*names})
        return (here, len({*indexed})) if here < len({*indexed}) else None
    if "model.safetensors" in names:
        return None
    numbers: dict[tuple[str, ...], set[int]] = {}
    unread = unread_weights(names)
    for name in names:
        found = _NUMBERED.fullmatch(name)
        if found and name.endswith(WEIGHTS) and name not in unread:
            numbers.setdefault((found[1], found[3], found[4]), set()).add(int(found[2]))
    counted = []
    for (_, stated, ending), seen in numbers.items():
        first, count = int(0 not in seen), int(stated)
        here = sum(first <= number < first + count for number in seen)
        counted.append((here, count, ending == ".gguf"))
    # Rows of GGUF are one model at several precisions, of which a recipe names one.
    has_gguf = any(name.endswith(".gguf") and not _NUMBERED.fullmatch(name) for name in names)
    has_gguf |= any(is_gguf and here >= count for here, count, is_gguf in counted)
    for here, count, is_gguf in counted:
        if here < count and not (is_gguf and has_gguf):
            return here, count
    return None


def has_weights(files: Iterable[str]) -> bool:
    """Whether any of these names is one that engines load, in a folder of it or not."""
    return any(name.endswith((".safetensors", ".bin", ".gguf", ".pt")) for name in files)


def weights_bytes(files: Mapping[str, int]) -> int:
    """Return the bytes of the weights that vLLM reads; of all files where there are none."""
    unread = unread_weights(files)
    read = [size for name, size in files.items() if name.endswith(WEIGHTS) and name not in unread]
    return sum(read or files.values())


def repo_and_revision(name: str) -> tuple[str, str]:
    """What ORG/NAME[@REVISION] names."""
    repo, _, revision = name.partition("@")
    return repo, revision or "main"


def check_repo(repo: str) -> None:
    """The cache writes `/` as `--`, so that a name with `--` would share a folder with another."""
    if not _matches(_REPO, repo) or "--" in repo or ".." in repo or repo.endswith((".", "-")):
        raise CheckpointError(
            f"{shown(repo)} is no ORGANISATION/NAME that a hub cache can hold.",
            hint="name it as its page on the hub is called, such as Qwen/Qwen3-8B",
        )


def check_revision(repo: str, revision: str) -> None:
    """Raise CheckpointError unless a cache can keep a branch or tag of that name."""
    problem = name_problem(revision)
    if problem is not None:
        raise CheckpointError(
            f"{repo}: the revision {shown(revision)} {problem}.",
            hint="name a branch, a tag or a commit",
        )


def is_commit(text: object) -> bool:
    return _matches(_COMMIT, text)


def check_commit(place: str, commit: object) -> None:
    """Raise CheckpointError, which begins with `place`, unless it is a commit hash."""
    if not is_commit(commit):
        raise hostile(
            f"{place}: {shown(commit)} stands for the commit, which has 40 hexadecimal digits."
        )


def name_problem(name: object) -> str | None:
    """Say why something cannot be the name of a file, or None when it can.

    What passes stays below its folder by its letters alone, can be stored and printed.
    """
    if not isinstance(name, str):
        return "is no text"
    # Control characters, lone surrogates, and marks that turn the direction of writing.
    if not name.isprintable():
        return "holds characters that cannot be printed"
    if "\\" in name:
        return "holds a backslash"
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        return "leads out of its folder, or has an empty part"
    return _length_problem(name, parts)


def shown(value: object) -> str:
    """What a stranger wrote, short and in characters that do nothing to a terminal."""
    if not isinstance(value, str | int | float | None):
        return f"something that is neither text nor number ({type(value).__name__})"
    # Python writes no number of more digits than it likes to read.
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of very many digits"
    text = repr(value[:_SHOWN_CHARACTERS] if isinstance(value, str) else value)
    return text if len(str(value)) <= _SHOWN_CHARACTERS else text + "..."


def printable(words: object) -> str:
    """A stranger's words as they are, but for characters that would act on a terminal."""
    text = str(words)
    kept = "".join(character if character.isprintable() else "?" for character in text[:500])
    return kept if len(text) <= 500 else kept + "..."


def _matches(pattern: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


def _length_problem(name: str, parts: list[str]) -> str | None:
    if len(parts) > DEPTH_LIMIT:
        return f"lies {len(parts)} folders deep, more than {DEPTH_LIMIT}"
    if max(len(part.encode()) for part in parts) > PART_LIMIT_BYTES:
        return f"has a part of more than {PART_LIMIT_BYTES} bytes"
    if len(name.encode()) > NAME_LIMIT_BYTES:
        return f"has more than {NAME_LIMIT_BYTES} bytes"
    return None


def _clash(names: list[str]) -> str | None:
    """Two names that cannot both be there: the same twice, or a file where a folder must be."""
    files = set(names)
    if len(files) < len(names):
        return f"{Counter(names).most_common(1)[0][0]} twice"
    for name in names:
        for folder in accumulate(name.split("/")[:-1], "{}/{}".format):
            if folder in files:
                return f"{folder} both as a file and as a folder"
    return None
