"""Listings as nobody's hub writes them: names that lead elsewhere, hashes that are none, junk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sparkdeploy.checkpoint.hub import Hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.pull import WantedRepository, plan_download, pull, resolve
from sparkdeploy.errors import CheckpointError

COMMIT, REPO = "1" * 40, "lab/twin"
PAYLOAD = b"what an attacker wants the victim to hold"
SHA256 = hashlib.sha256(PAYLOAD).hexdigest()
GIT_SHA1 = hashlib.sha1(b"blob %d\0" % len(PAYLOAD) + PAYLOAD).hexdigest()

HOSTILE_PARTS = (
    *("..", ".", "", "\\", "..\\..", "\x00", "\n", "\r", "\x1b[2J", "\x1b]0;owned\x07", "\x9b31m"),
    *("\ud800", "\u202e", "\u200b", "x" * 256, "é" * 128, "~", "-rf", "$HOME", "`id`", "%2e%2e"),
)
PLAIN_PARTS = (
    *("a", "b", "victim", "config.json", "model.safetensors", "model.safetensors.index.json"),
    *("blobs", "refs", "snapshots", COMMIT, "sparkdeploy.json", ".gitattributes", "日本.bin"),
)

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
parts = st.sampled_from((*HOSTILE_PARTS, *PLAIN_PARTS))
hostile_names = st.one_of(
    st.lists(parts, min_size=1, max_size=6).map("/".join),
    st.lists(parts, min_size=1, max_size=4).map(lambda found: "/" + "/".join(found)),
    st.integers(1, 6).map(lambda up: "../" * up + "victim"),
    st.text(max_size=20),
    junk,
)
plain_names = st.lists(st.sampled_from(PLAIN_PARTS), min_size=1, max_size=3).map("/".join)
hashes = st.sampled_from((SHA256, GIT_SHA1, "../../victim", "F" * 64, "f" * 63, "/etc/x")) | junk
sizes = st.sampled_from((len(PAYLOAD), 0, -1, 2**63, 10**400, float("inf"))) | junk


def sibling(name: object, **changes: object) -> dict[str, Any]:
    """A large file of the payload's content, as a hub would list it."""
    lfs = {"sha256": SHA256, "size": len(PAYLOAD), "pointerSize": 134}
    entry = {"rfilename": name, "size": len(PAYLOAD), "blobId": "0" * 40, "lfs": lfs}
    return {**entry, **changes}


def small(name: object, **changes: object) -> dict[str, Any]:
    """A small file of the payload's content."""
    return sibling(name, lfs=None, **{"blobId": GIT_SHA1, **changes})


def listing(*siblings: object, **changes: object) -> bytes:
    """The API's answer."""
    content = {"id": REPO, "sha": COMMIT, "siblings": siblings, "tags": [], **changes}
    return json.dumps(content).encode()


seldom = st.sampled_from((*[False] * 7, True))


@st.composite
def hostile_siblings(draw: st.DrawFn) -> object:
    """A file of which one thing or several may be wrong."""
    made = draw(st.sampled_from((sibling, small)))(draw(plain_names | hostile_names))
    for key, values in (("size", sizes), ("blobId", hashes), ("rfilename", hostile_names)):
        if draw(seldom):
            made[key] = draw(values)
    if draw(seldom):
        made["lfs"] = draw(junk | st.fixed_dictionaries({"sha256": hashes}))
    if draw(seldom):
        del made[draw(st.sampled_from(sorted(made)))]
    return made


@st.composite
def listings(draw: st.DrawFn) -> bytes:
    """A whole answer, now and then a sound one."""
    changes: dict[str, object] = {"cardData": {"license": draw(st.text(max_size=9) | junk)}}
    if draw(seldom):
        changes["sha"] = draw(hashes)
    if draw(seldom):
        changes[draw(st.sampled_from(("siblings", "tags", "cardData", "id")))] = draw(junk)
    names = draw(st.lists(plain_names, min_size=1, max_size=3, unique_by=lambda n: n.split("/")[0]))
    files: list[object] = [draw(st.sampled_from((sibling, small)))(name) for name in names]
    if draw(st.booleans()):
        files.insert(draw(st.integers(0, len(files))), draw(hostile_siblings()))
    text = listing(*files, **changes)
    return text[: len(text) // 2] if draw(seldom) else text


def canary(folder: Path) -> dict[str, object]:
    """Everything below a folder: kind, mode, place on the disk, where links lead, every byte."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_ino,
            path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes(),
        )
        for path in sorted(folder.rglob("*"))
    }


def refusal(work: Callable[[], object]) -> CheckpointError | None:
    """The error that it ends with, of the only kind that may come; None when it is done."""
    try:
        work()
    except CheckpointError as error:
        return error
    return None


def fetch(hub: Hub, lock: HubLock) -> Path:
    facts = resolve(hub, lock, WantedRepository(REPO), anew=False)
    download = plan_download(hub, lock, facts, free_bytes=1 << 60)
    return pull(hub, lock, download, lambda _done, _total: None)
