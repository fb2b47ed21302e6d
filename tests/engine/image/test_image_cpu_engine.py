"""The CPU engine, built through the product and looked into; reused when it is there."""

import contextlib
import json
import time

import docker
import pytest

from sparkdeploy.image.stages import Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import Settings, load_settings
from tests.engine.shipped_stages import build_all, shipped_stages

Built = list[tuple[Stage, ImageFact]]

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def settings() -> Settings:
    """This machine's own settings: its certificates, proxies and wheels."""
    return load_settings()


@pytest.fixture(scope="module")
def built(host: DockerHost) -> Built:
    """Every stage of the CPU engine with its image, lowest first."""
    return build_all(host, shipped_stages())


def output_of(host: DockerHost, image: ImageFact, *command: str) -> str:
    code, output = host.run_once(image.image_id, command[1:], entrypoint=command[:1])
    assert code == 0, output
    return output


def test_the_plugin_is_an_installed_distribution(host: DockerHost, built: Built) -> None:
    program = (
        "from importlib.metadata import entry_points as e;"
        "print([x.value for x in e(group='vllm.general_plugins')])"
    )
    found = output_of(host, built[-1][1], "/opt/venv/bin/python", "-c", program)
    assert "sparkdeploy_vllm:register" in found
    output_of(host, built[-1][1], "/opt/venv/bin/sparkdeploy-guard", "--help")


def test_nothing_of_the_network_is_in_the_image(
    host: DockerHost, built: Built, settings: Settings
) -> None:
    searched = ["-path", "/network*", "-o", "-name", "*.whl", "-o", "-name", "99mmdebstrap"]
    if settings.build.ca_bundle is not None:
        searched += ["-o", "-size", f"{settings.build.ca_bundle.stat().st_size}c"]
    image = built[-1][1]
    found = output_of(host, image, "/usr/bin/find", "/", "-xdev", "-type", "f", "(", *searched, ")")
    allowed = ("/etc/dpkg/dpkg.cfg.d/99mmdebstrap", "/usr/share/python-wheels/", "ensurepip")
    assert [path for path in found.split() if not any(part in path for part in allowed)] == []


def test_nothing_of_the_network_is_in_the_history(built: Built, settings: Settings) -> None:
    network = settings.build
    hidden = ["/network", "cert", "proxy=", *network.proxies.values(), *network.extra_index_urls]
    hidden += [network.index_url] if network.index_url else []
    with contextlib.closing(docker.from_env()) as client:
        steps = [
            step["CreatedBy"]
            for _, image in built
            for step in client.images.get(image.image_id).history()
            if "LABEL" not in step["CreatedBy"]
        ]
    history = json.dumps(steps)
    assert [value for value in hidden if value in history] == []


def test_a_second_build_does_nothing_in_under_three_seconds(
    host: DockerHost, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes long is not even begun; the rest is held to its own computing."""
    monkeypatch.delattr(DockerHost, "build")
    started_s = time.process_time()
    again = build_all(host, (stage for stage, _ in built))
    assert time.process_time() - started_s < 3
    assert again == built
