"""The network: needed hosts, open ports, the fabric of two Sparks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import Finding, not_seen, ok, warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.checks.host_facts import NeededHost
    from sparkdeploy.node.fabric import Interface

NEEDED_FOR = {
    "hub": (
        "downloads of models",
        "set `hub` in the configuration to a mirror, or copy the model into HF_HUB_CACHE",
    ),
    "package_index": (
        "image builds",
        "set `index_url` or `wheelhouse` in the configuration, or a proxy",
    ),
    "container_registry": (
        "base images",
        "set `container_registry` to a mirror; without one the base is made from Debian packages",
    ),
}
"""For each host: what fails without it, and the fix."""
KNOWN_PORTS = {
    6379: "Ray's store",
    8265: "Ray's dashboard, which runs any job it is sent",
    11434: "Ollama",
}
"""Ports of model servers that answer anyone when they are left open."""
FABRIC_TWINS = (("enp1s0f0np0", "enP2p1s0f0np0"), ("enp1s0f1np1", "enP2p1s0f1np1"))
"""A Spark's two QSFP ports, each seen as two interfaces (docs/cluster.md)."""


def reach_findings(reached: Mapping[NeededHost, bool]) -> Iterator[Finding]:
    for target, is_reached in reached.items():
        check = f"network.{target.name}"
        place = f"{'the proxy ' if target.is_proxy else ''}{target.host}:{target.port}"
        if is_reached:
            yield ok(check, f"{place} answers")
        else:
            use, remedy = NEEDED_FOR[target.name]
            yield warn(check, f"{place} does not answer: no {use}", remedy)


def check_localhost(addresses: Sequence[str]) -> Finding:
    """Check the address of `localhost`: a server on 127.0.0.1 is not on ::1."""
    check = "network.localhost"
    if not addresses:
        return not_seen(check, "localhost cannot be looked up")
    if "127.0.0.1" not in addresses:
        return warn(
            check,
            f"localhost means {addresses[0]}, and deployments listen on 127.0.0.1",
            "use http://127.0.0.1 in clients, or add `127.0.0.1 localhost` to /etc/hosts",
        )
    first = f"localhost means {addresses[0]} first"
    return ok(check, first if addresses[0] == "127.0.0.1" else f"{first}: give clients 127.0.0.1")


def check_open_ports(open_ports: frozenset[int] | None) -> Finding:
    check = "ports.open"
    if open_ports is None:
        return not_seen(check, "/proc/net/tcp cannot be read")
    named = ", ".join(
        f"{port} ({KNOWN_PORTS[port]})" for port in sorted(open_ports & KNOWN_PORTS.keys())
    )
    if not named:
        return ok(check, "none of Ray's and Ollama's ports is open to the network")
    return warn(
        check,
        f"open to the whole network: {named}",
        "bind them to 127.0.0.1 (Ollama: OLLAMA_HOST=127.0.0.1), or close them in the firewall",
    )


def check_fabric(interfaces: Sequence[Interface] | None) -> Finding:
    """Check the ports between two Sparks; one Spark needs none."""
    check = "network.fabric"
    if interfaces is None:
        return not_seen(check, "`ip -json addr` did not answer")
    known = {item.name: item for item in interfaces}
    cabled = [
        [known[name] for name in pair if name in known]
        for pair in FABRIC_TWINS
        if any(name in known and known[name].is_up for name in pair)
    ]
    if not cabled:
        return ok(check, "no cable between two Sparks; one alone needs none")
    faults = [fault for twins in cabled for fault in _faults_of_port(twins)]
    names = ", ".join(item.name for twins in cabled for item in twins)
    if not faults:
        return ok(check, f"{names} are up, in networks of their own")
    return warn(check, "; ".join(faults), "sudo netplan try, after docs/doctor.md's example")


def _faults_of_port(twins: Sequence[Interface]) -> Iterator[str]:
    first, last = twins[0], twins[-1]
    down = [item.name for item in twins if not item.is_up]
    if len(twins) < 2 or down:
        missing = down[0] if down else "its twin"
        yield f"{first.name} carries half of the speed: {missing} is not up"
        return
    bare = [item.name for item in twins if not item.networks]
    if bare:
        yield f"{' and '.join(bare)} ha{'s' if len(bare) == 1 else 've'} no IPv4 address"
    elif set(first.networks) & set(last.networks):
        yield f"{first.name} and {last.name} are in the same network {first.networks[0]}"
    if first.mtu != last.mtu:
        yield f"{first.name} has MTU {first.mtu} and {last.name} {last.mtu}"
