"""A launch on one machine, from its first change to its last, with nobody else about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkdeploy.deploy.launch import Launch, Rank
from sparkdeploy.node.container import ContainerSpec
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.node import Nodes, node_behind
from sparkdeploy.plan.container import Deployment, HostFolders, NodePaths, rank_spec
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.plan.steps import alone
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.settings import load_settings


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
    topology = alone("spark")
    return rank_spec(
        resolved,
        topology,
        topology.head,
        image=image,
        deployment=deployment,
        paths=NodePaths(folders, model, (drafter,) if drafter is not None else ()),
    )


def begin(host: DockerHost, spec: ContainerSpec, deployment: str, *, crashes_dir: Path) -> Launch:
    """Put a container in place."""
    launch = launch_on(host, deployment, crashes_dir)
    launch.start([Rank(launch.nodes.here, spec)])
    return launch


def launch_on(host: DockerHost, deployment: str, crashes_dir: Path) -> Launch:
    """Return a launch whose state lies beside its crash folders."""
    assert crashes_dir.name == "crashes"
    folder = crashes_dir.parent
    settings = replace(load_settings(), state_dir=folder, lock_dir=folder / "locks")
    nodes = Nodes(node_behind("here", host))
    return Launch(nodes, deployment, settings, f"up test --name {deployment}")


@dataclass(frozen=True)
class _Wait:
    """What a launch waits with."""

    container_id: str
    answer: Callable[[str], Any]
    details: Callable[[], Mapping[str, Any]] = dict

    def wait(self) -> Any:
        return self.answer(self.container_id)


def wait_and_commit(
    launch: Launch, *, wait: Callable[[str], Any], details: Callable[[], Mapping[str, Any]] = dict
) -> Any:
    """Wait for the head's container, and keep what was started or put back the old."""
    watch: Any = _Wait(launch.head.container_id, wait, details)
    return launch.wait_and_commit(watch)
