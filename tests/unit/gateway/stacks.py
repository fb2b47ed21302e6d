"""A Spark of 112 GiB, and stacks upon it, without Docker or a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.checks.survey import Survey
from sparkdeploy.gateway import plans
from sparkdeploy.gateway.plans import StackPlan, plan_stack
from sparkdeploy.gateway.stack import load_stack
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.facts import NodeFact
from sparkdeploy.node.node import Nodes, node_behind
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers, container
from tests.fakes.plans import SPARK

CODER, EMBED, PROSE = (
    "- {name: coder, recipe: qwen3-coder-next, set: [serve.gpu_memory_utilization=0.7], %s}\n",
    "- {name: embed, recipe: qwen3-vl-embedding, set: [serve.gpu_memory_utilization=0.2], %s}\n",
    "- {name: prose, recipe: v2, aliases: {brief: {temperature: 0}, gpt-4o: }, %s}\n",
)
IDLE = "keep: idle"
HOME = f"schema: 1\nmodels:\n{CODER % IDLE}{EMBED % IDLE}{PROSE % IDLE}"
"""83.3, 23.8 and 101.2 GiB of 112 that are available; 4 GiB stay free."""


def running(deployment: str, gib: float, **more: Any) -> ContainerFact:
    """A deployment that runs, and was planned to take so much memory."""
    marks = {"deployment": deployment, "memory_bytes": str(int(gib * 2**30))}
    return container(f"sparkdeploy-{deployment}", **marks, **more)


def spark(
    monkeypatch: pytest.MonkeyPatch, *containers: ContainerFact, node: NodeFact | None = None
) -> FakeContainers:
    """Let this machine be a Spark on which these containers run."""
    engine = FakeContainers.of(*containers)
    fact = node or replace(SPARK, memory_available_bytes=112 * 2**30)
    here = node_behind(fact.name, engine.host if fact.docker is not None else None)

    @contextlib.contextmanager
    def this_node(_settings: Any) -> Iterator[Nodes]:
        yield Nodes(here)

    monkeypatch.setattr(plans, "this_node", this_node)
    monkeypatch.setattr(plans, "survey", lambda _nodes, _cache: Survey({fact.name: fact}))
    return engine


def written(folder: Path, text: str) -> Path:
    path = folder / "home.yaml"
    path.write_text(text)
    return path


def planned(folder: Path, text: str = HOME, *consents: str) -> StackPlan:
    settings = load_settings()
    return plan_stack(load_stack(written(folder, text), settings), settings, consents)
