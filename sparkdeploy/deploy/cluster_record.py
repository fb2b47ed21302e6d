"""Which nodes a deployment may have containers on, and whether its start was verified.

Labels say the same, but not of a node that does not answer: what is left there is kept here
until the node is back and has been cleaned.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.node.container import is_name
from sparkdeploy.node.private_folder import write_private
from sparkdeploy.stored_json import read_json

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The notes below the state folder, one file a deployment."""

    folder: Path

    @classmethod
    def below(cls, state_dir: Path) -> ClusterRecord:
        return cls(state_dir / "cluster" / "deployments")

    def nodes(self, deployment: str) -> tuple[str, ...]:
        """Return the nodes, by rank; empty for a deployment that is none of a cluster's."""
        try:
            names = read_json(self._file(deployment)) if is_name(deployment) else ()
        except (OSError, ValueError):
            return ()
        is_whole = isinstance(names, list) and all(
            isinstance(name, str) and is_name(name) for name in names
        )
        return tuple(names) if is_whole else ()

    def deployments(self) -> tuple[str, ...]:
        return tuple(sorted(path.stem for path in self.folder.glob("*.json")))

    def note(self, deployment: str, nodes: tuple[str, ...]) -> None:
        """Write a deployment's nodes down; without any, remove the note."""
        if not is_name(deployment):
            return  # it could lead to another file
        file = self._file(deployment)
        if nodes:
            write_private(file, json.dumps(nodes))
        else:
            file.unlink(missing_ok=True)

    def mark_unverified(self, deployment: str, container_id: str) -> None:
        """Keep that a container was started and has not been checked against its plan yet."""
        if is_name(deployment):
            write_private(self._unverified(deployment), container_id)

    def clear_unverified(self, deployment: str) -> None:
        if is_name(deployment):
            self._unverified(deployment).unlink(missing_ok=True)

    def is_unverified(self, deployment: str, container_id: str) -> bool:
        try:
            known = self._unverified(deployment).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return is_name(deployment) and known == container_id

    def _unverified(self, deployment: str) -> Path:
        return self.folder.parent / "unsettled" / deployment

    def _file(self, deployment: str) -> Path:
        return self.folder / f"{deployment}.json"
