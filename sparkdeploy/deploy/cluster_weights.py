"""The same weights on every node: only what differs is sent, and what was sent is verified."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import shell
from sparkdeploy.console import console, format_bytes
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.node.machines import at_once
from sparkdeploy.node.tree import Entry, Ledger, hashes, list_tree
from sparkdeploy.plan.observed import ModelFact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.node.fabric import FabricFacts
    from sparkdeploy.node.machines import ClusterMachine
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings

SHOWN_FILES = 3
PARTIAL = ".sparkdeploy-partial"
_PROGRESS = re.compile(r"([\d,]+)\s+\d+%")
_SENT = re.compile(r"^Total bytes sent: ([\d,]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder here, where it belongs on a worker, and which of its paths are needed."""

    here: Path
    there: Path
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """What a worker lacks of a tree, or has otherwise."""

    missing: tuple[str, ...]
    changed: tuple[str, ...]
    size_bytes: int

    @property
    def paths(self) -> tuple[str, ...]:
        """All that must be sent."""
        return (*self.missing, *self.changed)


def there(path: Path, here: FabricFacts, worker: FabricFacts) -> Path:
    """Return a path's place on another node: below its user's home what is below ours here."""
    try:
        return Path(worker.home) / path.relative_to(here.home)
    except ValueError:
        return path


def model_there(model: ModelFact, here: FabricFacts, worker: FabricFacts) -> ModelFact:
    """Return the model as it stands on a worker; only root can keep its owner there."""
    overlay = model.overlay
    is_root = worker.uid == 0
    return replace(
        model,
        root=there(model.root, here, worker),
        overlay=replace(overlay, path=there(overlay.path, here, worker)) if overlay else None,
        owner_uid=model.owner_uid if is_root else worker.uid,
        owner_gid=model.owner_gid if is_root else worker.gid,
    )


def trees_of(plan: Plan, here: FabricFacts, worker: FabricFacts) -> tuple[Tree, ...]:
    """Return every folder that a node's container mounts."""
    found: list[Tree] = []
    for model in (plan.observed.model, plan.observed.drafter):
        if isinstance(model, ModelFact):
            moved = model_there(model, here, worker)
            found.append(Tree(model.root, moved.root, _used(model.root, model.files)))
            if model.overlay is not None and moved.overlay is not None:
                path = model.overlay.path
                found.append(Tree(path, moved.overlay.path, _used(path, "")))
    template = plan.folders.chat_template
    if template is not None:
        folder = template.parent
        found.append(Tree(folder, there(folder, here, worker), (template.name,)))
    return tuple(found)


def same_weights(
    tree: Tree, head: ClusterMachine, worker: ClusterMachine, settings: Settings
) -> int:
    """Make a worker's folder hold what ours holds; return the bytes that were sent.

    Raises CheckpointError when a file is still another one after it was sent, NodeError when
    there is no room or rsync fails; both name the node.
    """
    difference = compare(tree, head, worker, settings)
    if not difference.paths:
        return 0
    for path in difference.changed[:SHOWN_FILES]:
        console.warn(f"{worker.name}: {tree.there / path} differs from {head.name}'s; sent again")
    _require_room(tree, difference, worker)
    sent_bytes = _send(tree, difference, worker)
    left = compare(tree, head, worker, settings)
    if left.paths:
        raise CheckpointError(
            f"{worker.name}: {tree.there / left.paths[0]} is not what {head.name} has, right after "
            "it was sent",
            hint=f"its disk may be failing: on {worker.name}: sudo dmesg | tail",
        )
    return sent_bytes


def compare(
    tree: Tree, head: ClusterMachine, worker: ClusterMachine, settings: Settings
) -> Difference:
    """Hold a worker's files against ours, by sha256; unchanged files are not read again."""

    def look(machine: ClusterMachine) -> tuple[Mapping[str, Entry], Mapping[str, str]]:
        root = tree.here if machine.is_here else tree.there
        found = list_tree(machine, root)
        used = {path: found[path] for path in tree.paths if path in found}
        return used, hashes(machine, root, used, Ledger(settings.state_dir, machine.name))

    with console.step(f"comparing {tree.here.name} with {worker.name}"):
        (ours, our_hashes), (theirs, their_hashes) = at_once(look, (head, worker))
    missing = tuple(path for path in ours if path not in theirs)
    changed = tuple(
        path
        for path, entry in ours.items()
        if path in theirs
        and (entry.link, our_hashes.get(path)) != (theirs[path].link, their_hashes.get(path))
    )
    return Difference(missing, changed, sum(ours[path].size_bytes for path in missing + changed))


def _used(root: Path, files: str) -> tuple[str, ...]:
    """Return the files of a folder and, where they are links within the root, what they lead to."""
    used: dict[str, None] = {}
    for path in sorted((root / files).rglob("*")):
        if path.is_dir():
            continue
        used[str(path.relative_to(root))] = None
        target = path.parent / path.readlink() if path.is_symlink() else path
        inside = Path(_normal(target))
        if inside.is_relative_to(root):
            used[str(inside.relative_to(root))] = None
    return tuple(used)


def _normal(path: Path) -> str:
    """Fold `..` by name alone: another link on the way must not lead elsewhere."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return str(Path(*parts))


def _require_room(tree: Tree, difference: Difference, worker: ClusterMachine) -> None:
    folder = shlex.quote(str(tree.there))
    script = f"mkdir -p {folder} && df -B1 --output=avail {folder} | tail -n 1"
    done = worker.run(script)
    if done.exit_code != 0:
        raise NodeError(f"{worker.name}: {tree.there} cannot be made", detail=done.stderr.strip())
    free = done.stdout.strip()
    if free.isdigit() and int(free) < difference.size_bytes:
        raise NodeError(
            f"{worker.name}: disk: {format_bytes(difference.size_bytes)} of weights are missing "
            f"there, and {tree.there} has {format_bytes(int(free))} free",
            hint=f"free some space on {worker.name}",
        )


def _send(tree: Tree, difference: Difference, worker: ClusterMachine) -> int:
    if worker.link is None:
        raise NodeError(f"{worker.name} is this machine")
    user = f"{worker.node.user}@" if worker.node.user else ""
    title = f"{tree.here.name} to {worker.name} ({format_bytes(difference.size_bytes)})"
    with console.step(title) as step, shell.list_file(difference.paths) as names:
        argv = [
            *("rsync", "--archive", "--numeric-ids", "--ignore-times", "--no-implied-dirs"),
            *("--partial-dir", PARTIAL, "--no-inc-recursive", "--info=progress2", "--stats"),
            *("--files-from", str(names), "--rsh", worker.link.rsync_shell()),
            *(f"{tree.here}/", f"{user}{worker.node.ip}:{tree.there}/"),
        ]

        def show(text: str) -> None:
            for match in _PROGRESS.finditer(text):
                done_bytes = int(match[1].replace(",", ""))
                step.progress(done_bytes, max(difference.size_bytes, done_bytes))

        done = shell.follow(argv, show)
    if done.exit_code != 0:
        raise NodeError(
            f"{worker.name}: rsync could not send {tree.here.name} (exit code {done.exit_code}): "
            + next(iter(done.stderr.strip().splitlines()), "it said nothing"),
            hint="run it again: what arrived is kept",
            detail=done.stderr.strip(),
        )
    sent = _SENT.search(done.stdout)
    return int(sent[1].replace(",", "")) if sent else difference.size_bytes
