"""The same weights on every node: only what differs is sent, and what was sent is verified."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy import shell
from sparkdeploy.console import console, format_bytes
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.node.node import at_once
from sparkdeploy.node.tree import Entry, Ledger, hashes, list_tree
from sparkdeploy.plan.place import move_to, trees_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.plan.place import Tree
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings

SHOWN_FILES = 3
PARTIAL = ".sparkdeploy-partial"
_PROGRESS = re.compile(r"([\d,]+)\s+\d+%")
_SENT = re.compile(r"^Total bytes sent: ([\d,]+)", re.MULTILINE)


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


def same_weights(plan: Plan, nodes: Nodes, worker: Node, settings: Settings) -> int:
    """Make a node's folders hold what ours hold; return the bytes that were sent."""
    move = move_to(plan.observed, worker.name)
    if move is None:
        raise NodeError(f"{worker.name} did not name its user's home folder")
    models = (plan.observed.model, plan.observed.drafter)
    trees = trees_of(models, plan.folders.chat_template, move)
    return sum(same_tree(tree, nodes.here, worker, settings) for tree in trees)


def same_tree(tree: Tree, head: Node, worker: Node, settings: Settings) -> int:
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


def compare(tree: Tree, head: Node, worker: Node, settings: Settings) -> Difference:
    """Hold a worker's files against ours, by sha256; unchanged files are not read again."""

    def look(node: Node) -> tuple[Mapping[str, Entry], Mapping[str, str]]:
        root = tree.here if node is head else tree.there
        found = list_tree(node, root)
        used = {path: found[path] for path in tree.paths if path in found}
        return used, hashes(node, root, used, Ledger(settings.state_dir, node.name))

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


def _require_room(tree: Tree, difference: Difference, worker: Node) -> None:
    folder = shlex.quote(str(tree.there))
    done = worker.script(f"mkdir -p {folder} && df -B1 --output=avail {folder} | tail -n 1")
    if done.exit_code != 0:
        raise NodeError(f"{worker.name}: {tree.there} cannot be made", detail=done.stderr.strip())
    free = done.stdout.strip()
    if free.isdigit() and int(free) < difference.size_bytes:
        raise NodeError(
            f"{worker.name}: disk: {format_bytes(difference.size_bytes)} of weights are missing "
            f"there, and {tree.there} has {format_bytes(int(free))} free",
            hint=f"free some space on {worker.name}",
        )


def _send(tree: Tree, difference: Difference, worker: Node) -> int:
    if worker.link is None:
        raise NodeError(f"{worker.name} is this machine")
    title = f"{tree.here.name} to {worker.name} ({format_bytes(difference.size_bytes)})"
    with console.step(title) as step, shell.list_file(difference.paths) as names:
        argv = [
            *("rsync", "--archive", "--numeric-ids", "--ignore-times", "--no-implied-dirs"),
            *("--partial-dir", PARTIAL, "--no-inc-recursive", "--info=progress2", "--stats"),
            *("--files-from", str(names), "--rsh", worker.link.rsync_shell(worker.entry.ip)),
            *(f"{tree.here}/", worker.link.remote_path(f"{tree.there}/")),
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
