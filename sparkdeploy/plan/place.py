"""Where each node keeps what a deployment mounts. Pure.

What is below the head's home is below the other node's user's home there; all else has the same
path everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.plan.container import Place, Weights, container_user
from sparkdeploy.plan.observed import ModelFact

if TYPE_CHECKING:
    from sparkdeploy.node.fabric import FabricFact
    from sparkdeploy.plan.container import HostFolders
    from sparkdeploy.plan.observed import Observed


@dataclass(frozen=True, slots=True)
class Move:
    """From the head to another node, by what each says of its user."""

    here: FabricFact
    there: FabricFact

    def path(self, path: Path) -> Path:
        """Return a path's place on the other node."""
        try:
            return Path(self.there.home) / path.relative_to(self.here.home)
        except ValueError:
            return path

    def model(self, model: ModelFact) -> ModelFact:
        """Return the model as it stands there; only root can keep its owner."""
        overlay = model.overlay
        is_root = self.there.uid == 0
        return replace(
            model,
            root=self.path(model.root),
            overlay=replace(overlay, path=self.path(overlay.path)) if overlay else None,
            owner_uid=model.owner_uid if is_root else self.there.uid,
            owner_gid=model.owner_gid if is_root else self.there.gid,
        )

    def folders(self, folders: HostFolders, user: tuple[int, int]) -> HostFolders:
        """Return the folders of a container that runs there as `user` (uid and gid)."""
        uid, gid = user
        template = folders.chat_template
        return replace(
            folders,
            cache=self.path(folders.cache).with_name(f"{uid}-{gid}"),
            chat_template=self.path(template) if template is not None else None,
        )


def place_of(observed: Observed, folders: HostFolders, node: str) -> Place | None:
    """Return where a node has weights and folders; None while the model is missing at the head.

    `folders` are the head's.
    """
    model, drafter = observed.model, observed.drafter
    if not isinstance(model, ModelFact) or (drafter and not isinstance(drafter, ModelFact)):
        return None
    assert drafter is None or isinstance(drafter, ModelFact)  # noqa: S101 - looked at above
    if node == observed.head.facts.name:
        return Place(Weights(model, drafter), folders)
    move = move_to(observed, node)
    if move is None:
        return None
    moved = move.model(model)
    weights = Weights(moved, move.model(drafter) if drafter is not None else None)
    return Place(weights, move.folders(folders, container_user(moved)))


def move_to(observed: Observed, node: str) -> Move | None:
    """Return the way from the head to a node; None when either has not told of its user."""
    seen, here = observed.node(node), observed.head.facts.fabric
    if seen is None or seen.facts.fabric is None or here is None:
        return None
    return Move(here, seen.facts.fabric)
