"""Other programs that serve models on this machine, and how each is stopped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.checks.finding import not_seen, ok, warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.node.container import NeighbourFact


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A program, recognised by its container's name or image, or by its process."""

    title: str
    stop: str
    """The command that stops it; {name} is the container's."""
    name: str = r"(?!)"
    image: str = r"(?!)"
    program: str = r"(?!)"

    def is_container(self, neighbour: NeighbourFact) -> bool:
        named, made = re.search(self.name, neighbour.name), re.search(self.image, neighbour.image)
        return named is not None or made is not None


SERVERS = (
    ModelServer("sparkrun", "sparkrun stop --all", name=r"^sparkrun_"),
    ModelServer(
        "spark-vllm-docker",
        "./launch-cluster.sh stop, in its folder, or: docker stop {name}",
        name=r"^vllm[_-]node",
        image=r"(^|/)vllm[_-]node",
    ),
    ModelServer(
        "Ollama",
        "`ollama stop MODEL` frees memory; docker stop {name}",
        image=r"(^|/)ollama(/ollama)?(:|@|$)",
    ),
    ModelServer("llama-swap", "docker stop {name}", image=r"(^|/)llama-swap(:|@|$)"),
    ModelServer(
        "Ollama", "`ollama stop MODEL` frees memory; sudo systemctl stop ollama", program=r"^ollama"
    ),
    ModelServer("llama-swap", "stop llama-swap, which restarts models", program=r"^llama-swap"),
    ModelServer("llama.cpp", "stop llama-server", program=r"^llama-server"),
)
"""The first that matches a container counts: sparkrun also runs spark-vllm-docker's images."""


def check_other_servers(
    neighbours: Sequence[NeighbourFact] | None, programs: Iterable[str]
) -> Finding:
    """Name those that run; idle ones take memory with the next request, so they count too.

    `neighbours` is None where Docker did not answer in time; no program at all means that the
    process list could not be read.
    """
    check = "gpu.other_servers"
    # Containers first: their processes are in the process list, too.
    found: dict[str, tuple[str, str]] = {}
    running = sorted(programs)
    for title, seen, stop in _running(neighbours or (), running):
        found.setdefault(title, (seen, stop))
    if not found and (neighbours is None or not running):
        return not_seen(check, "the containers or the processes could not be listed")
    if not found:
        return ok(check, "no other program that serves models was found")
    names = ", ".join(seen for seen, _ in found.values())
    first = next(iter(found.values()))[1]
    return warn(check, f"also here: {names}; memory is shared with them", first)


def _running(
    neighbours: Sequence[NeighbourFact], programs: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    for item in neighbours:
        server = next((it for it in SERVERS if it.is_container(item)), None)
        if server is not None:
            stop = server.stop.format(name=item.name)
            yield server.title, f"{server.title} (container {item.name})", stop
    for program in programs:
        server = next((it for it in SERVERS if re.search(it.program, program)), None)
        if server is not None:
            yield server.title, f"{server.title} (process {program})", server.stop
