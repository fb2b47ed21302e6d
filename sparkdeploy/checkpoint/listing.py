"""The hub's answer about a repository: JSON that a stranger wrote, read into facts or refused."""

from __future__ import annotations

import json
from typing import Any

from sparkdeploy.checkpoint.repo_files import (
    FILES_LIMIT,
    HOSTILE_HINT,
    RepoFacts,
    RepoFile,
    check_commit,
    is_commit,
)
from sparkdeploy.errors import CheckpointError

LISTING_LIMIT_BYTES = 4 << 20
"""Ten thousand files take three of them. Python needs up to 24 times as much for hostile JSON."""
_LICENSE_LIMIT = 100


def read_listing(repo: str, revision: str, text: bytes) -> RepoFacts:
    """Return what a listing states of a commit.

    Raises CheckpointError, naming repository and file, when anything in it is not as a hub states
    it, or when it describes another commit than the one that was asked for.
    """
    content = _object(repo, text)
    commit = content.get("sha")
    check_commit(repo, commit)
    if is_commit(revision) and commit != revision:
        raise CheckpointError(
            f"{repo}: the hub was asked for {revision} and describes {commit}.", hint=HOSTILE_HINT
        )
    siblings = content.get("siblings")
    if not isinstance(siblings, list) or not siblings:
        raise _malformed(repo, "it lists no files")
    if len(siblings) > FILES_LIMIT:
        raise _malformed(repo, f"it has {len(siblings)} files, more than {FILES_LIMIT}")
    files = tuple(_file(repo, sibling) for sibling in siblings)
    return RepoFacts(repo, revision, str(commit), _license_of(content), files)


def _object(repo: str, text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(repo, "it is no JSON") from error
    if not isinstance(content, dict):
        raise _malformed(repo, "it is no JSON object")
    return content


def _file(repo: str, sibling: object) -> RepoFile:
    if not isinstance(sibling, dict):
        raise _malformed(repo, "a file of it is no object")
    large = sibling.get("lfs")
    if large is not None and not isinstance(large, dict):
        raise _malformed(repo, "lfs of a file is no object")
    try:
        if large:
            return RepoFile(*_stated(sibling), large.get("sha256"), None)
        return RepoFile(*_stated(sibling), None, sibling.get("blobId"))
    except CheckpointError as error:
        raise CheckpointError(f"{repo}: {error.message}", hint=error.hint) from error


def _stated(sibling: dict[str, Any]) -> tuple[Any, Any]:
    """Name and size, whatever they are."""
    return sibling.get("rfilename"), sibling.get("size")


def _license_of(content: dict[str, Any]) -> str | None:
    """What the card says, or a tag; None for what nobody could read on a terminal."""
    card = content.get("cardData")
    stated = card.get("license") if isinstance(card, dict) else None
    if not isinstance(stated, str):
        tags = content.get("tags")
        named = [
            tag.removeprefix("license:")
            for tag in (tags if isinstance(tags, list) else [])
            if isinstance(tag, str) and tag.startswith("license:")
        ]
        stated = named[0] if named else ""
    is_plain = stated.isprintable() and 0 < len(stated) <= _LICENSE_LIMIT
    return stated if is_plain else None


def _malformed(repo: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{repo}: the hub's answer is not the description of a repository: {problem}.",
        hint=HOSTILE_HINT,
    )
