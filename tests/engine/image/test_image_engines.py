"""The same way through builds, deployments and archives on every Docker Engine that runs here.

The machine's own engine, and Debian's newer ones, with Docker's classic store of images and with
containerd's. Every test leaves the engine as it was.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from sparkdeploy.deploy import prepare
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.inside.prove import MARK
from sparkdeploy.image.stages import LEFTOVER_LABEL, Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.node import Node
from sparkdeploy.settings import Settings
from tests.engine.conftest import free_port
from tests.engine.ground import Ground, ground_on
from tests.engine.lab_stages import build, make_stage, rootfs
from tests.engine.other_engines import usr_of
from tests.engine.small_engine import EngineProgram, SmallEngine, small_engine
from tests.engine.small_python import small_python
from tests.engine.stand_in.engine import build_image, copy_image

pytestmark = [
    pytest.mark.docker,
    # The same faults meet the machine's own engine in other files of this folder.
    pytest.mark.slow,
    pytest.mark.runs("clean", "down", "image", "rollback", "status", "up"),
]
DISK_MIB = 1536
PROOF = {"versions": {"vllm": "0.0"}}
# Docker 28 loses the words of 3 in 100 programs that end at once on a loaded machine, and of none
# that lives for a tenth of a second, as every Python does.
PYTHON = f"#!/bin/sh\necho '{MARK}{json.dumps(PROOF)}'\nsleep 0.1\n".encode()


@dataclass(frozen=True)
class Variant:
    """An engine to run."""

    suite: str
    """Debian's; `own` for the machine's engine."""
    store: Literal["classic", "containerd"]

    def program(self) -> EngineProgram:
        """Return it; a suite's is unpacked at first use."""
        return EngineProgram(None if self.suite == "own" else usr_of(self.suite), self.store)


OTHERS = (
    Variant("sid", "containerd"),
    Variant("sid", "classic"),
    Variant("trixie", "containerd"),
    Variant("trixie", "classic"),
)
OWN = Variant("own", "classic")


def name_of(variant: Variant) -> str:
    return f"{variant.suite}-{variant.store}"


@pytest.fixture(scope="module", params=(*OTHERS, OWN), ids=name_of)
def place(
    request: pytest.FixtureRequest,
    host: DockerHost,
    python_base_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ground]:
    """A user with the stand-in on one of the engines."""
    base = small_python(host, python_base_image)
    root = tmp_path_factory.mktemp("engines")
    with small_engine(DISK_MIB, request.param.program()) as engine:
        with DockerHost(engine.address) as own:
            assert own.info().has_containerd_store is (request.param.store == "containerd")
            copy_image(host, own, base)
            build_image(own, base)
        with ground_on(engine, root, free_port()) as made:
            yield made


@contextlib.contextmanager
def unchanged(host: DockerHost) -> Iterator[None]:
    """Hold that no image stays that was not there before, named or not, and no container."""
    before = held(host)
    yield
    assert held(host) == before


def held(host: DockerHost) -> tuple[set[str], set[str]]:
    """Return the ids of all images, and of all containers."""
    images = {str(item["Id"]) for item in host._api.images(all=True)}
    return images, {str(item["Id"]) for item in host._api.containers(all=True)}


def import_base(host: DockerHost) -> Stage:
    """Make a base of a root file system's tar, without Debian."""
    stage = make_stage("engine", "# no Dockerfile makes it")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for file in rootfs():
            tar.add(str(file.content), file.path.removeprefix("rootfs/"))
    archive.seek(0)
    changes = [f'LABEL "{name}"="{value}"' for name, value in stage.labels().items()]
    changes += ["ENV PATH=/bin", 'CMD ["/bin/sh"]']
    repository, _, tag = stage.tag.rpartition(":")
    host._api.import_image_from_data(archive, repository=repository, tag=tag, changes=changes)
    return stage


def engine_stage(base: Stage, command: str = "true") -> Stage:
    """Return a stage in halves with a proof, like an engine's."""
    dockerfile = (
        f"FROM {base.tag} AS environment\nLABEL {LEFTOVER_LABEL}\nCOPY venv/ /opt/venv/\n"
        f"RUN head -c 3000000 /dev/urandom > /made && {command}\n"
        f"FROM {base.tag}\nCOPY --from=environment /opt/venv /opt/venv\n"
        "COPY --from=environment /made /made\n"
    )
    context = (ContextFile("venv/bin/python", PYTHON, 0o755),)
    return make_stage("engine", dockerfile, base, context=context, runs_on="cpu")


@contextlib.contextmanager
def built(host: DockerHost, settings: Settings) -> Iterator[tuple[Stage, Stage, Stage]]:
    """Build a base, an engine and a plugin stage; remove what is left of them."""
    base = import_base(host)
    engine = engine_stage(base)
    plugin = make_stage("plugin", f"FROM {engine.tag}\nCOPY hello /hello\n", engine)
    try:
        for stage in (engine, plugin):
            build(host, stage, settings)
        yield base, engine, plugin
    finally:
        for stage in (plugin, engine, base):
            host.remove_image(stage.tag)


def test_stages_are_built_proven_and_found_again(place: Ground, settings: Settings) -> None:
    with place.host() as host, unchanged(host), built(host, settings) as stages:
        found = [host.find_image(stage.tag) for stage in stages]
        images = [image for image in found if image is not None]
        assert [image.fingerprint for image in images] == [stage.fingerprint for stage in stages]
        assert images[1].proof == PROOF
        assert images[0].size_bytes < 10e6 < images[0].size_bytes + 30e6
        assert 3e6 <= images[1].size_bytes - images[0].size_bytes < 3.1e6
        assert {image.tags[0]: image for image in images}.items() <= listed(host).items()
        path = host.run_once(images[0].image_id, ["sh", "-c", "echo $PATH; sleep 0.1"])
        assert path == (0, "/bin\n")
        with unchanged(host):
            for stage, image in zip(stages, images, strict=True):
                assert build(host, stage, settings) == image
        assert not host._api.images(filters={"dangling": True})


def listed(host: DockerHost) -> dict[str, ImageFact]:
    """What an inspection says of each image of ours that the list has."""
    tags = [image.tags[0] for image in host.own_images() if image.tags]
    return {tag: image for tag in tags if (image := host.find_image(tag)) is not None}


def test_a_deployment_starts_is_replaced_comes_back_and_goes(place: Ground) -> None:
    with place.host() as host, unchanged(host):
        old = import_base(host)
        for text in ("old", "new"):
            code, output = place.up(text)
            assert code == 0, output
            assert place.text() == text
        assert "nothing to do" in place.up("new")[1]
        listed = place.cli.run("image", "ls")[1].splitlines()
        assert sum(line.endswith(" main") for line in listed) == 1
        said(place, "rollback", "--yes")
        place.check_whole("old")
        found = answer(place, "clean", "--yes")
        assert [item["name"] for item in found if item["kind"] == "image"] == [old.tag]
        place.check_whole("old")
        said(place, "down", "--yes")


def test_images_are_shown_saved_removed_and_loaded(
    place: Ground, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "images.tar"
    with place.host() as host, unchanged(host), built(host, settings) as (base, engine, plugin):
        before = listed(host)
        shown = answer(place, "image", "show", plugin.tag)
        assert shown["stands_on"] == [engine.tag, base.tag]
        assert shown["proof"]["engine"] == PROOF
        rows = {row["tag"]: row["size_bytes"] for row in answer(place, "image", "ls")}
        assert rows[plugin.tag] == shown["size_bytes"] == before[plugin.tag].size_bytes
        with file.open("wb") as out:
            out.writelines(host.save_images([plugin.tag, engine.tag, base.tag]))
        code, refused = place.cli.run("image", "rm", base.tag)
        assert code == 4, refused
        said(place, "image", "rm", plugin.tag, engine.tag, base.tag)
        assert not {base.tag, engine.tag, plugin.tag} & listed(host).keys()
        with file.open("rb") as archive:
            host.load_images(archive)
        assert same_content(listed(host), before)
        assert build(host, plugin, settings).fingerprint == plugin.fingerprint


def same_content(some: dict[str, ImageFact], others: dict[str, ImageFact]) -> bool:
    """Compare without ids: what is loaded into containerd's store has a manifest of its own."""
    return {tag: (it.labels, it.size_bytes) for tag, it in some.items()} == {
        tag: (it.labels, it.size_bytes) for tag, it in others.items()
    }


def said(place: Ground, *argv: str) -> str:
    code, text = place.cli.run(*argv)
    assert code == 0, text
    return text


def answer(place: Ground, *argv: str) -> Any:
    """Return the JSON at the end of what a command said."""
    text = said(place, *argv, "--json")
    begin = re.search(r"^[\[{]", text, re.MULTILINE)
    assert begin is not None, text
    return json.loads(text[begin.start() :])


@pytest.fixture(scope="module", params=OTHERS, ids=name_of)
def other(request: pytest.FixtureRequest) -> Iterator[SmallEngine]:
    """An engine beside the machine's own kind."""
    with small_engine(256, request.param.program()) as engine:
        yield engine


@pytest.fixture(scope="module")
def own(host: DockerHost) -> Iterator[SmallEngine]:
    with small_engine(256) as engine:
        yield engine


def test_images_travel_between_nodes_with_different_engines(
    own: SmallEngine, other: SmallEngine, settings: Settings
) -> None:
    one, two = (Node(f"node-{at[-20:]}", docker_host=at) for at in (other.address, own.address))
    with (
        one,
        two,
        unchanged(one.docker),
        unchanged(two.docker),
        built(one.docker, settings) as (_, engine, plugin),
    ):
        before = listed(one.docker)
        for head, worker in ((one, two), (two, one)):
            sent = prepare._bring(engine, plugin, head, worker, settings)
            assert sent > 0
            again = prepare._bring(engine, plugin, head, worker, settings)
            assert again == 0
            for stage in (plugin, engine):
                arrived = listed(worker.docker)[stage.tag]
                assert arrived.labels == before[stage.tag].labels
                assert arrived.size_bytes == pytest.approx(before[stage.tag].size_bytes, rel=0.02)
                head.docker.remove_image(stage.tag)
