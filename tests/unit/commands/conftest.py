"""What several tests of this room start from."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.commands import cluster_operate, cluster_recovery, rollback
from sparkdeploy.deploy import changing
from tests.unit.commands.two_nodes import Pair
from tests.unit.fake_containers import FakeContainers
from tests.unit.plan.test_cluster_launch import sparks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.machines import Cluster


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Two nodes that every command reaches, and a head that does not answer."""
    made = Pair(FakeContainers(), FakeContainers())

    @contextlib.contextmanager
    def connected(*_: object) -> Iterator[Cluster]:
        yield made.cluster

    for module in (cluster_recovery, cluster_operate):
        monkeypatch.setattr(module, "connected", connected)
        monkeypatch.setattr(module, "name_here", lambda _config: "spark-1")
    monkeypatch.setattr(cluster_recovery, "configured", lambda _settings: sparks(2))
    monkeypatch.setattr(rollback, "connect", lambda _settings: made.head)
    monkeypatch.setattr(changing, "answers", lambda _fact: False)
    return made
