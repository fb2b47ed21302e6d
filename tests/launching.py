"""A launch on one machine, from its first change to its last, with nobody else about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.launch import Launch
from sparkdeploy.node.node import node_behind
from sparkdeploy.plan.container import Place, part_spec
from sparkdeploy.plan.formation import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sparkdeploy.node.container import ContainerFact, ContainerSpec
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.plan.container import Deployment, HostFolders
    from sparkdeploy.plan.observed import ModelFact
    from sparkdeploy.recipe.load import Resolved

Outcome = TypeVar("Outcome")


def container_spec(
    resolved: Resolved,
    model: ModelFact,
    drafter: ModelFact | None = None,
    *,
    image: str,
    deployment: Deployment,
    folders: HostFolders,
) -> ContainerSpec:
    """Return the container of a machine that serves alone."""
    formation = alone("spark")
    return part_spec(
        resolved,
        formation,
        formation.head,
        image=image,
        deployment=deployment,
        place=Place(folders, model, (drafter,) if drafter is not None else ()),
    )


def begin(
    host: DockerHost,
    spec: ContainerSpec,
    deployment: str,
    *,
    crashes_dir: Path,
    before_start: Callable[[], None] = lambda: None,
) -> Launch:
    """Put a container in place."""
    launch = Launch(deployment, crashes_dir, ClusterRecord.below(crashes_dir.parent))
    launch.start([(node_behind("here", host), spec)], lambda _node: before_start())
    return launch


def begin_return(host: DockerHost, kept: ContainerFact, *, crashes_dir: Path) -> Launch:
    """Start a kept container again."""
    launch = Launch(kept.deployment, crashes_dir, ClusterRecord.below(crashes_dir.parent))
    launch.start([(node_behind("here", host), kept)])
    return launch


def wait_and_settle(
    launch: Launch,
    *,
    wait: Callable[[str], Outcome],
    changing: Callable[[], AbstractContextManager[None]],
    details: Callable[[], Mapping[str, Any]] = dict,
) -> Outcome:
    """Wait, and settle."""
    return launch.wait_and_settle(lambda: wait(launch.head.container_id), changing, details)
