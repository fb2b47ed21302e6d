"""Looking at a node: which registry is asked, and what a closed cache is called."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.node.node import Nodes, node_behind
from sparkdeploy.plan import observe as room
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.settings import load_settings
from tests.unit.plan.facts import DOCKER

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.node.reports import EngineInfo


class _Engine:
    """A Docker Engine without anything, whose registry answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def own_images(self) -> tuple[()]:
        return ()

    def own_containers(self) -> tuple[()]:
        return ()

    def info(self) -> EngineInfo:
        return DOCKER

    def registry_digest(self, reference: str) -> str:
        self.asked.append(reference)
        return "sha256:0"


def test_the_configured_registry_is_the_one_that_is_asked(shipped: Library) -> None:
    settings = load_settings({"SPARKDEPLOY_CONTAINER_REGISTRY": "mirror.lab:5000"})
    engine = _Engine()
    resolved = load_recipe(shipped, "v2")
    nodes = Nodes(node_behind("here", engine))  # type: ignore[arg-type]
    seen = room.observe(resolved, settings, nodes, Exposure.LOOPBACK)
    assert seen.base_source == "registry"
    assert engine.asked == ["mirror.lab:5000/library/debian:bookworm-slim"]


def test_a_cache_this_user_may_not_enter_is_named(
    shipped: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = str(tmp_path / "hub")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", closed)

    monkeypatch.setattr("sparkdeploy.plan.observe._find_source", refuse)
    settings = replace(load_settings(), hub_cache=tmp_path / "hub")
    with pytest.raises(NodeError, match=closed):
        room.locate_model(load_recipe(shipped, "v2").recipe, settings)
