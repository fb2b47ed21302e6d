"""`cluster`: the nodes, what they say, and whether they can serve together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkdeploy.cli.options import JsonOption
from sparkdeploy.console import console, format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.commands.cluster_look import Survey
    from sparkdeploy.commands.drafting import Request
    from sparkdeploy.node.cluster import ClusterConfig
    from sparkdeploy.settings import Settings

SIGNS = {"ok": "=", "warning": "?", "failed": "x"}


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    group = typer.Typer(help="Two or more nodes: who they are, and whether they fit together.")
    group.command("show")(show)
    group.command("check")(check)
    group.command("discover")(discover)
    app.add_typer(group, name="cluster")


def show(as_json: JsonOption = False) -> None:
    """Show the configured nodes and what each says of itself."""
    from sparkdeploy.commands import cluster_look
    from sparkdeploy.settings import load_settings

    with cluster_look.connected(load_settings()) as cluster:
        found = cluster_look.survey(cluster)
        here = cluster.here.name
        config = cluster.config
    if as_json:
        from dataclasses import asdict

        seen = {name: asdict(item) for name, item in found.seen.items()}
        console.answer_json({"head": here, "config": config.model_dump(), "seen": seen})
        return
    for line in _node_lines(config, found, here):
        console.answer(line)


def check(as_json: JsonOption = False) -> None:
    """Ask every node, probe the fabric, and say what stands in the way of `up --cluster`."""
    from sparkdeploy.commands import cluster_look
    from sparkdeploy.errors import NodeError
    from sparkdeploy.settings import load_settings

    with cluster_look.connected(load_settings()) as cluster:
        found = cluster_look.survey(cluster)
    if as_json:
        console.answer_json([item.as_dict() for item in found.checks])
    else:
        for item in found.checks:
            console.answer(f"{SIGNS[item.verdict]} {item.describe()}")
            if item.verdict != "ok" and item.fix:
                console.answer(f"    fix: {item.fix}")
    if found.failed:
        raise NodeError(f"{len(found.failed)} of {len(found.checks)} checks failed")


def discover(
    subnet: Annotated[str | None, typer.Option(help="Look in here: 192.168.177.0/24.")] = None,
    hosts: Annotated[str, typer.Option(help="Ask these: A,B.")] = "",
    user: Annotated[str | None, typer.Option(help="Whom ssh logs in as.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the `cluster:` section for config.yaml; a host needs ssh, Docker and a GPU to count."""
    from sparkdeploy.commands import cluster_find
    from sparkdeploy.errors import NodeError
    from sparkdeploy.settings import load_settings

    named = [item for item in hosts.split(",") if item]
    found = cluster_find.discover(cluster_find.addresses_of(subnet, named), user, load_settings())
    if as_json:
        from dataclasses import asdict

        console.answer_json([asdict(item) for item in found])
        return
    for item in found:
        if item.facts is None:
            console.info(f"{item.address} does not count: {item.refusal}")
    if not any(item.facts for item in found):
        raise NodeError("no node was found", hint="is ssh on, and does `ssh HOST true` work?")
    console.answer(cluster_find.section(found, user).rstrip())


def print_plan(request: Request, settings: Settings, *, as_json: bool) -> None:
    """Print what `up --cluster` would do on every node, and every check that stands in its way."""
    from sparkdeploy.commands.cluster_deploy import draft
    from sparkdeploy.commands.drafting import resolve
    from sparkdeploy.plan.cluster_report import cluster_as_dict, cluster_lines

    drafted = draft(resolve(request, settings), request, settings)
    if as_json:
        console.answer_json(
            cluster_as_dict(drafted.plan, drafted.formation, drafted.specs, drafted.checks)
        )
        return
    for line in cluster_lines(drafted.plan, drafted.formation):
        console.answer(line)
    for item in drafted.checks:
        if item.verdict != "ok":
            console.answer(f"  {SIGNS[item.verdict]} {item.describe()}")
            console.answer(f"      fix: {item.fix}")


def _node_lines(config: ClusterConfig, found: Survey, here: str) -> Iterator[str]:
    for node in config.nodes:
        role = "head (this machine)" if node.name == here else f"ssh {node.ssh}"
        yield f"{node.name}: {role}"
        seen = found.seen.get(node.name)
        if seen is None:
            yield "  does not answer; `sparkdeploy cluster check` says why"
            continue
        facts = seen.facts
        engine = found.engines.get(node.name)
        yield (
            f"  {facts.gpu or 'no GPU'}, driver {facts.driver or 'none'}, "
            f"docker {engine.version if engine else 'does not answer'}, "
            f"{format_gib(facts.memory_available_bytes)} of memory free"
        )
        for port in node.fabric:
            interface = facts.interface(port.interface)
            state = "missing" if interface is None else "up" if interface.is_up else "down"
            mtu = interface.mtu if interface else "-"
            yield (
                f"  {port.interface:<15} {port.address:<18} {state:<7} MTU {mtu}  "
                f"{port.rdma or 'no RDMA'}"
            )
