"""Status, logs and down in real Docker, by label alone."""

import time

import pytest

from sparkdeploy.deploy.deployments import (
    DeploymentContainers,
    StatusRow,
    down,
    find_deployment,
    list_deployments,
    require_deployment,
    status_rows,
)
from sparkdeploy.deploy.serving import remark_on_drafts
from sparkdeploy.errors import NodeError
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.ports import port_owner
from sparkdeploy.settings import load_settings
from tests.engine.conftest import SpecMaker, model_at, patiently, port_of, start_serving, until

pytestmark = pytest.mark.docker


def row_of(host: DockerHost, name: str) -> StatusRow:
    def is_healthy(deployment: DeploymentContainers) -> bool:
        if deployment.name != name or deployment.current.port is None:
            return False  # another worker's
        with model_at(deployment.current.port) as model:
            return model.is_healthy()

    rows = status_rows(host, list_deployments(host), is_healthy)
    return next(row for row in rows if row.name == name)


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


@pytest.mark.parametrize(
    ("drafted", "is_said"),
    [
        ("200,2400,24", True),
        ("200,2400,120", False),
        pytest.param("199,2388,0", False, marks=pytest.mark.slow),
        pytest.param(None, False, marks=pytest.mark.slow),
    ],
)
def test_a_drafter_that_is_hardly_ever_right_is_told_of_a_running_server(
    host: DockerHost, make_spec: SpecMaker, deployment: str, drafted: str | None, is_said: bool
) -> None:
    start_serving(host, make_spec(**({"drafted": drafted} if drafted else {})))

    said = remark_on_drafts(require_deployment(host, deployment).current, load_settings())

    assert ("24 of 2,400 drafted tokens were accepted in 200 steps (1.0%" in said) is is_said
    assert bool(said) is is_said


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


def test_down_takes_the_half_replaced_one_along(
    host: DockerHost, make_spec: SpecMaker, deployment: str
) -> None:
    old = start_serving(host, make_spec())
    host.rename(old, f"sparkdeploy-{deployment}-replaced")
    start_serving(host, make_spec())

    assert row_of(host, deployment).state == "half replaced"
    assert len(down(host, deployment)) == 2
    assert find_deployment(host, deployment) is None


def test_down_ends_a_server_that_ignores_the_stop_signal(
    host: DockerHost, make_spec: SpecMaker, deployment: str
) -> None:
    start_serving(host, make_spec(ignore_sigterm=True))
    started_s = time.monotonic()

    down(host, deployment, timeout_s=1)

    assert time.monotonic() - started_s < patiently(10)
    assert find_deployment(host, deployment) is None


def test_a_foreign_container_is_neither_listed_nor_removed(
    host: DockerHost, foreign_container: str, make_spec: SpecMaker, deployment: str
) -> None:
    start_serving(host, make_spec())

    listed = [fact.container_id for item in list_deployments(host) for fact in item.containers]
    assert foreign_container not in listed
    down(host, deployment)
    with pytest.raises(NodeError, match="was not made by sparkdeploy"):
        host.remove(foreign_container)
    fact = host.find_container(foreign_container)
    assert fact is not None
    assert fact.is_running


def test_the_log_is_followed_until_the_container_ends(
    host: DockerHost, make_spec: SpecMaker, deployment: str
) -> None:
    host.start(host.create(make_spec(log="cpu-0.32-mtp", die_after_s=1.5)))

    current = require_deployment(host, deployment).current
    text = b"".join(host.logs(current.container_id, follow=True)).decode()

    assert "Application startup complete" in text


def test_the_port_of_a_deployment_is_named_after_it(
    host: DockerHost, make_spec: SpecMaker, deployment: str
) -> None:
    spec = make_spec()
    start_serving(host, spec)

    owner = port_owner(port_of(spec), host.own_containers())
    assert owner.deployment == deployment


@pytest.mark.usefixtures("foreign_container")
def test_what_runs_beside_ours_is_a_neighbour(
    host: DockerHost, make_spec: SpecMaker, mark: str, stand_in_image: str
) -> None:
    spec = make_spec()
    host.start(host.create(spec))

    found = {item.name: item.image for item in host.neighbours()}

    assert found[f"foreign-{mark}"] == stand_in_image
    assert spec.name not in found
