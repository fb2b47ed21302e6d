"""Images listed, removed and carried elsewhere; a build from a wheelhouse without a network."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy import labels
from sparkdeploy.image.lock import PackagePin
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import BuildNetwork, Settings
from sparkdeploy.upkeep import images as image_shelf
from tests.engine.image.wheels import fetch_wheels
from tests.engine.lab_stages import build, make_stage
from tests.unit.conftest import REPOSITORY

IDNA = PackagePin("idna", "3.11")
SHA256 = "771a87f49d9defaf64091e6e6fe9c18d4833f140bd19464795bc32d966ca37ea"


@pytest.fixture
def pair(host: DockerHost, settings: Settings) -> Iterator[tuple[Stage, Stage]]:
    """Two small images of ours, one on the other."""
    lower = make_stage("engine", "FROM scratch\nCOPY hello /lower\n")
    upper = make_stage("plugin", f"FROM {lower.tag}\nCOPY hello /upper\n", lower)
    for stage in (lower, upper):
        build(host, stage, settings)
    yield lower, upper
    for stage in (upper, lower):
        host.remove_image(stage.tag)


def test_the_docs_lines_carry_an_image_with_those_it_stands_on(
    host: DockerHost, pair: tuple[Stage, Stage], settings: Settings, tmp_path: Path
) -> None:
    lower, upper = pair
    before = [host.find_image(stage.tag) for stage in pair]
    page = (REPOSITORY / "docs" / "engines.md").read_text()
    lines = re.findall(r"^(?:docker (?:save|load)|sha256sum) [^#\n]+", page, re.MULTILINE)
    assert [line.split()[:2] for line in lines] == [
        ["docker", "save"], ["sha256sum", "spark.tar"], ["sha256sum", "-c"], ["docker", "load"]
    ]  # fmt: skip
    program = shlex.join([sys.executable, "-P", "-m", "sparkdeploy"])
    save, *rest = (
        line.replace("cuda-0.25", upper.tag).replace("$(sparkdeploy ", f"$({program} ")
        for line in lines
    )
    subprocess.run(["sh", "-e", "-c", save], check=True, cwd=tmp_path)
    image_shelf.remove_images([lower.tag, upper.tag], settings)
    subprocess.run(["sh", "-e", "-c", "\n".join(rest)], check=True, cwd=tmp_path)
    assert [host.find_image(stage.tag) for stage in pair] == before


def test_a_whole_wheelhouse_builds_without_a_network(
    host: DockerHost, python_base_image: str, settings: Settings, tmp_path: Path
) -> None:
    lock = tmp_path / "packages.txt"
    lock.write_text(f"{IDNA.name}=={IDNA.version} --hash=sha256:{SHA256}\n")
    fetch_wheels(tmp_path, [lock], settings.build, architecture="x86_64")
    dockerfile = (
        f"FROM {python_base_image} AS environment\n"
        f"LABEL {labels.KIND}=leftover\n"
        "COPY network/ /network/\n"
        "RUN . /network/environment && python3 -m venv /v"
        ' && test -z "$(ls /sys/class/net | grep -v lo)"'
        f" && /v/bin/pip install --no-cache-dir --no-deps {IDNA.name}=={IDNA.version}\n"
        f"FROM {python_base_image}\nCOPY --from=environment /v /v\n"
    )
    stage = make_stage("engine", dockerfile)
    stage = replace(
        stage, context=(), needs_network=True, pins=(IDNA,), python="3.11", architecture="x86_64"
    )
    offline = replace(settings, build=BuildNetwork(find_links=(tmp_path,)))
    try:
        image = build(host, stage, offline)
        code, output = host.run_once(
            image.image_id, ["-c", "import idna; print(idna.__version__)"],
            entrypoint=["/v/bin/python"],
        )  # fmt: skip
        assert (code, output.strip()) == (0, IDNA.version)
    finally:
        host.remove_image(stage.tag)
