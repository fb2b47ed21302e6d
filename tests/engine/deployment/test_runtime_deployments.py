"""Status, logs and down in real Docker, by label alone."""

import time

import pytest

from sparkdeploy.deploy.deployments import find_deployment, remove_containers, require_deployment
from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import SpecMaker, patiently, start_serving

pytestmark = pytest.mark.docker


def down(host: DockerHost, name: str) -> tuple[str, ...]:
    found = find_deployment(host, name)
    return remove_containers(host, found.containers if found is not None else ())


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
