"""Lends images of one Docker Engine to another on the same machine, without copying their files.

overlay2 never writes into a finished layer: what changes goes into a folder of its own above it.
So an engine may have another one's layer by a link to its folder, and removes no more than the
link. What Docker knows of an image and of its layers is small, and copied.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

LAYERS = "overlay2"
RECORDS = "image/overlay2"


def lend(images: Mapping[str, str], lender: Path, borrower: Path) -> bool:
    """Give images, id by tag, to the engine with an empty data root `borrower`, before it starts.

    Returns False, and has done nothing, when the lender keeps its images in another way.
    """
    configs = [Path(RECORDS, "imagedb/content/sha256", _digest(name)) for name in images.values()]
    if not all((lender / config).is_file() for config in configs):
        return False
    for config in configs:
        (borrower / config).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(lender / config, borrower / config)
        for chain in _chains(json.loads((lender / config).read_text())["rootfs"]["diff_ids"]):
            _lend_layer(Path(RECORDS, "layerdb/sha256", _digest(chain)), lender, borrower)
    _write_tags(images, borrower)
    return True


def _digest(name: str) -> str:
    """The part of `sha256:...` that names a file."""
    return name.removeprefix("sha256:")


def _chains(diff_ids: list[str]) -> Iterator[str]:
    """Docker's name for each layer together with all below it, from the lowest up."""

    def over(below: str, own: str) -> str:
        return "sha256:" + hashlib.sha256(f"{below} {own}".encode()).hexdigest()

    return itertools.accumulate(diff_ids, over)


def _lend_layer(record: Path, lender: Path, borrower: Path) -> None:
    if (borrower / record).exists():
        return
    shutil.copytree(lender / record, borrower / record)
    name = (lender / record / "cache-id").read_text()
    theirs, ours = (root / LAYERS / name for root in (lender, borrower))
    shutil.copytree(theirs, ours, ignore=shutil.ignore_patterns("diff", "work", "merged"))
    (ours / "work").mkdir()
    (ours / "diff").symlink_to(theirs / "diff")
    short_names = borrower / LAYERS / "l"
    short_names.mkdir(exist_ok=True)
    (short_names / (ours / "link").read_text()).symlink_to(f"../{name}/diff")


def _write_tags(images: Mapping[str, str], borrower: Path) -> None:
    repositories: dict[str, dict[str, str]] = {}
    for tag, image_id in images.items():
        repositories.setdefault(tag.rpartition(":")[0], {})[tag] = image_id
    (borrower / RECORDS).mkdir(parents=True, exist_ok=True)
    known = json.dumps({"Repositories": repositories})
    (borrower / RECORDS / "repositories.json").write_text(known)
