"""Which machines a command is about, and how it reaches them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import deployments_in, nodes_with
from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.node.cluster import configured, name_here, open_nodes, this_node
from sparkdeploy.plan.formation import form_up
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Nodes
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings


def connect(settings: Settings) -> DockerHost:
    """Connect to this machine's Docker Engine; raise NodeError when nobody answers."""
    from sparkdeploy.node.host import DockerHost  # noqa: PLC0415 - the SDK takes 0.2 s to import

    return DockerHost(settings.docker_host)


def connect_serving(
    resolved: Resolved, settings: Settings, *, cluster: bool
) -> contextlib.AbstractContextManager[Nodes]:
    """Connect to the nodes that serve a recipe; the machine alone unless for a cluster."""
    if not cluster:
        return this_node(settings)
    return open_nodes(settings, needed_nodes(resolved, settings))


def needed_nodes(resolved: Resolved, settings: Settings) -> frozenset[str]:
    """Return the nodes of config.yaml that serve a recipe together, by name."""
    config = configured(settings)
    return frozenset(form_up(resolved, config, name_here(config)).nodes)


@contextlib.contextmanager
def connect_nodes(
    settings: Settings, deployment: str, also: frozenset[str] = frozenset()
) -> Iterator[Nodes]:
    """Connect to this machine, to all that may have something of a deployment, and to `also`.

    Raises NodeError when the Docker Engine here does not answer. What cannot be known of nodes
    that only may have something is a warning and stops nothing.
    """
    noted = ClusterRecord.below(settings.state_dir).nodes(deployment)
    with contextlib.ExitStack() as opened:
        here = opened.enter_context(this_node(settings))
        nodes, found = here, deployments_in(here.here.listing).get(deployment)
        names = {*also, *nodes_with(found, noted)}
        try:
            if names:
                nodes = opened.enter_context(open_nodes(settings, frozenset(names), here.here))
        except (NodeError, RecipeError) as error:
            if also:
                raise
            console.warn(f"{error.message}; containers of {deployment} may be on other nodes")
        yield nodes
