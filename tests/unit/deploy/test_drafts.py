"""What `status` and `up` say of a drafter, from a server that counts its drafts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkdeploy.deploy.serving import metrics_of
from sparkdeploy.monitor import status
from sparkdeploy.monitor.status_row import status_lines
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.server.metrics import Metrics
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers, container
from tests.fakes.http_server import TableServer, serving
from tests.fakes.machines import reached_alone
from tests.unit.plain import plain_lines

pytestmark = pytest.mark.outside

POOR = "vllm:spec_decode_num_{}_total"
COUNTED = {"drafts": 400, "draft_tokens": 4800, "accepted_tokens": 0}
SAID = "0 of 4,800 drafted tokens were accepted in 400 steps (0.0%, less than 5%)"


@pytest.fixture
def server() -> Iterator[TableServer]:
    with serving(TableServer()) as running:
        counted = "".join(f"{POOR.format(name)} {n}\n" for name, n in COUNTED.items())
        running.answers["/metrics"] = (200, counted)
        yield running


def served_by(server: TableServer) -> ContainerFact:
    return container("sparkdeploy-main", port=str(server.port))


@pytest.mark.parametrize(("is_healthy", "is_asked"), [(True, 1), (False, 0)])
def test_status_says_it_of_a_healthy_server_alone(
    monkeypatch: pytest.MonkeyPatch, server: TableServer, is_healthy: bool, is_asked: int
) -> None:
    reached_alone(monkeypatch, FakeContainers.of(served_by(server)))
    monkeypatch.setattr(status, "answers", lambda _fact: is_healthy)
    (row,) = status.current_rows()
    shown = [line for line in plain_lines(status_lines((row,))) if line.startswith("  ! ")]
    assert len(server.asked) == is_asked
    assert (SAID in row.drafting) is is_healthy
    assert len(shown) == is_asked


def test_a_server_that_does_not_tell_is_no_failure(server: TableServer) -> None:
    def counted(fact: ContainerFact) -> Metrics:
        return metrics_of(fact, load_settings())

    assert counted(served_by(server)).drafted is not None
    for answer in ((503, ""), (200, "x" * 100)):
        server.answers["/metrics"] = answer
        assert counted(served_by(server)) == Metrics()
    assert counted(container("sparkdeploy-main", port="1")) == Metrics()
    assert counted(container("sparkdeploy-main")) == Metrics()
