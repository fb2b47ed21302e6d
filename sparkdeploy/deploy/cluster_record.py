"""Which nodes a deployment may have containers on, and whether its start was verified.

Labels say the same, but not of a node that does not answer: what is left there is kept here
until the node is back and has been cleaned.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import refuse_no_name
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
        """Return the nodes, by rank; empty for a deployment that is none of a cluster's.

        Raises NodeError for a file that cannot be read: what lies on its nodes is not nothing.
        """
        file = self._file(deployment)
        try:
            return tuple(read_json(file))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            raise NodeError(
                f"{file}, which names the nodes of {deployment}, cannot be read: {error}",
                hint=f"rm {shlex.quote(str(file))}; then look at each node: sparkdeploy status",
            ) from error

    def deployments(self) -> tuple[str, ...]:
        return tuple(sorted(path.stem for path in self.folder.glob("*.json")))

    def note(self, deployment: str, nodes: tuple[str, ...]) -> None:
        """Write a deployment's nodes down; without any, remove the note."""
        if nodes:
            write_private(self._file(deployment), json.dumps(nodes))
        else:
            self._file(deployment).unlink(missing_ok=True)

    def mark_unverified(self, deployment: str, container_id: str) -> None:
        """Keep that a container was started and has not been checked against its plan yet."""
        write_private(self._unverified(deployment), container_id)

    def clear_unverified(self, deployment: str) -> None:
        self._unverified(deployment).unlink(missing_ok=True)

    def is_unverified(self, deployment: str, container_id: str) -> bool:
        try:
            return self._unverified(deployment).read_text(encoding="utf-8") == container_id
        except FileNotFoundError:
            return False

    def _unverified(self, deployment: str) -> Path:
        refuse_no_name(deployment)
        return self.folder.parent / "unsettled" / deployment

    def _file(self, deployment: str) -> Path:
        # It was typed, and could lead to another file.
        refuse_no_name(deployment)
        return self.folder / f"{deployment}.json"
