"""Status, logs and down in real Docker, by label alone."""

import time

import pytest

from sparkdeploy.deploy.deployments import (
    find_deployment,
    remove_containers,
    require_deployment,
)
from sparkdeploy.monitor.status_row import StatusRow, status_row
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import load_settings
from tests.engine.conftest import SpecMaker, model_at, patiently, port_of, start_serving, until

pytestmark = pytest.mark.docker


def down(host: DockerHost, name: str) -> tuple[str, ...]:
    found = find_deployment(host, name)
    return remove_containers(host, found.containers if found is not None else ())


def row_of(host: DockerHost, name: str) -> StatusRow:
    def is_answering(fact: ContainerFact) -> bool:
        assert fact.port is not None
        with model_at(fact.port) as model:
            return model.is_healthy()

    found = require_deployment(host, name)
    return status_row(host, found, load_settings(), is_answering)


def test_a_serving_deployment_is_shown_with_all_it_has(
    host: DockerHost, make_spec: SpecMaker, deployment: str
) -> None:
    spec = make_spec()
    start_serving(host, spec)

    row = row_of(host, deployment)

    assert (row.recipe, row.state, row.port) == ("stand-in", "healthy", port_of(spec))
    assert row.uptime_s is not None
    assert 0 <= row.uptime_s < 600
    assert (row.memory_bytes or 0) > 1 << 20


def test_a_dead_deployment_is_shown_with_its_exit_code(
    host: DockerHost, make_spec: SpecMaker, deployment: str
) -> None:
    container_id = host.create(make_spec(die_after_s=0, exit_code=5))
    host.start(container_id)
    until(lambda: row_of(host, deployment).state == "exited (5)")

    row = row_of(host, deployment)

    assert (row.exit_code, row.uptime_s, row.memory_bytes) == (5, None, None)


def test_down_removes_it_and_a_second_down_does_nothing(
    host: DockerHost, make_spec: SpecMaker, deployment: str
) -> None:
    start_serving(host, make_spec())

    assert down(host, deployment) == (f"sparkdeploy-{deployment}",)
    assert down(host, deployment) == ()
    assert find_deployment(host, deployment) is None


def test_down_ends_a_server_that_ignores_the_stop_signal(
    host: DockerHost, make_spec: SpecMaker, deployment: str
) -> None:
    start_serving(host, make_spec(ignore_sigterm=True))
    started_s = time.monotonic()

    down(host, deployment)

    assert time.monotonic() - started_s < patiently(10)
    assert find_deployment(host, deployment) is None


def test_the_log_is_followed_until_the_container_ends(
    host: DockerHost, make_spec: SpecMaker, deployment: str
) -> None:
    host.start(host.create(make_spec(log="cpu-0.32-mtp", die_after_s=1.5)))

    current = require_deployment(host, deployment).current
    text = b"".join(host.logs(current.container_id, follow=True)).decode()

    assert "Application startup complete" in text


@pytest.mark.usefixtures("foreign_container")
def test_what_runs_beside_ours_is_a_neighbour(
    host: DockerHost, make_spec: SpecMaker, mark: str, stand_in_image: str
) -> None:
    spec = make_spec()
    host.start(host.create(spec))

    found = {item.name: item.image for item in host.neighbours()}

    assert found[f"foreign-{mark}"] == stand_in_image
    assert spec.name not in found
