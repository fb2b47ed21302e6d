"""`cluster`: the nodes, what they say, and whether they can serve together."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sparkdeploy.cli import options
from sparkdeploy.cli.options import answer
from sparkdeploy.errors import NodeError
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.style import Piece, Style
from sparkdeploy.terminal.tables import Block, TextColumn, TextTable, row_of
from sparkdeploy.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.node.cluster import ClusterConfig, ClusterNode
    from sparkdeploy.node.fabric import FabricFact
    from sparkdeploy.node.facts import NodeFact


group = typer.Typer(help="Two or more nodes: who they are, and whether they fit.")


@group.command()
def show(as_json: options.JsonOption = False) -> None:
    """Show the configured nodes and what each says of itself."""
    from sparkdeploy.upkeep.cluster import survey_of_all

    config, here, seen = survey_of_all(options.current_settings())
    facts = {name: asdict(fact) for name, fact in seen.items()}
    content = {"head": here, "config": config.model_dump(), "seen": facts}
    answer(_node_lines(config, here, seen), content, as_json=as_json)


@group.command()
def check(
    recipe: options.RecipeArgument = None,
    assignments: options.SetOption = None,
    known_bad: options.KnownBadOption = False,
    unsafe: options.UnsafeOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Say what stands in the way of `up RECIPE --cluster`.

    On the nodes, between them, and inside the engine's containers: adapters, rights, and a sum
    over all nodes where they have GPUs.
    """
    from sparkdeploy.checks import report
    from sparkdeploy.upkeep.cluster import check_all

    settings = options.current_settings()
    assignments = options.overrides(assignments, known_bad=known_bad, unsafe=unsafe)
    checks = check_all(options.requested(recipe, assignments, settings, cluster=True), settings)
    answer(report.lines(checks), report.as_dict(checks)["checks"], as_json=as_json)
    if failed := report.failures(checks):
        raise NodeError(f"{failed} of {len(checks)} checks failed")


@group.command()
def discover(
    subnet: Annotated[str | None, typer.Option(help="Look in here: 192.168.177.0/24.")] = None,
    hosts: Annotated[str, typer.Option(help="Ask these: A,B.")] = "",
    user: Annotated[str | None, typer.Option(help="Whom ssh logs in as.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Print the `cluster:` section for config.yaml. A host needs ssh, Docker and a GPU to count."""
    from sparkdeploy.upkeep import cluster

    named = [item for item in hosts.split(",") if item]
    found = cluster.discover(cluster.addresses_of(subnet, named), user, options.current_settings())
    if as_json:
        console.answer_json([asdict(item) for item in found])
        return
    for item in found:
        if item.facts is None:
            console.info(f"{item.address} does not count: {item.refusal}")
    if not any(item.facts for item in found):
        raise NodeError("no node was found", hint="is ssh on, and does `ssh HOST true` work?")
    console.answer(cluster.section(found, user).rstrip())


def _node_lines(config: ClusterConfig, here: str, seen: Mapping[str, NodeFact]) -> Iterator[Block]:
    for entry in config.nodes:
        role = "head (this machine)" if entry.name == here else f"ssh {entry.ssh}"
        yield f"{entry.name}: {role}"
        fact = seen.get(entry.name)
        if fact is None or fact.fabric is None:
            yield "  does not answer; `sparkdeploy cluster check` says why"
            continue
        yield (
            f"  {fact.gpu.name if fact.gpu else 'no GPU'}, "
            f"driver {fact.gpu.driver_version if fact.gpu else 'none'}, "
            f"docker {fact.docker.version if fact.docker else 'does not answer'}, "
            f"{format_gib(fact.memory_available_bytes or 0)} of memory free"
        )
        yield _ports_of(entry, fact.fabric)


def _ports_of(entry: ClusterNode, fabric: FabricFact) -> TextTable:
    rows = []
    for port in entry.fabric:
        interface = fabric.interface(port.interface)
        state = "missing" if interface is None else "up" if interface.is_up else "down"
        style = Style.PLAIN if state == "up" else Style.BAD
        mtu, rdma = interface.mtu if interface else "-", port.rdma or "no RDMA"
        rows.append(
            row_of(port.interface, str(port.address), Piece(state, style), f"MTU {mtu}", rdma)
        )
    return TextTable((TextColumn(),) * 5, tuple(rows), indent=2)
