"""What `clean` and `checkpoint rm` remove in a real Docker Engine, and what they leave alone."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import CompletedProcess

import docker
import pytest
from docker.models.containers import Container

from sparkdeploy import labels
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.container import ContainerSpec, Mount
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import Settings, load_settings
from tests.engine.lab_stages import build, make_stage, rootfs
from tests.engine.program import Program
from tests.engine.small_engine import small_engine

pytestmark = [pytest.mark.docker, pytest.mark.runs("checkpoint", "clean")]

FOR_EVER = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done")
NOTHING = ("sh", "-c", ":")


@dataclass
class Place:
    """An engine of its own with one engine stage that has programs in it, and a user."""

    host: DockerHost
    client: docker.DockerClient
    settings: Settings
    program: Program
    ground: Stage

    def old_image(self, base: Stage | None = None) -> str:
        """Build an image of ours that this version has no use for; return its tag."""
        below = base or self.ground
        stage = make_stage("plugin", f"FROM {below.tag}\nCOPY hello /hello\n", below)
        build(self.host, stage, self.settings)
        return stage.tag

    def engine_stage(self) -> Stage:
        """Build an old engine stage of ours, to stand on."""
        stage = make_stage("engine", f"FROM {self.ground.tag}\nCOPY hello /engine\n")
        build(self.host, stage, self.settings)
        return stage

    def foreign_image(self, tag: str) -> str:
        """Build an image that is not ours, whatever its name says."""
        context = io.BytesIO(b"FROM scratch\nCOPY Dockerfile /x\n")
        self.client.images.build(fileobj=context, tag=tag)
        return tag

    def foreign_container(self, image: str, command: tuple[str, ...]) -> Container:
        """Run a container that is not ours."""
        return self.client.containers.run(
            image, list(command), detach=True, network_mode="none", labels={labels.KIND: ""}
        )

    def deploy(self, image: str, name: str, *mounts: Mount) -> str:
        """Start a container as a deployment's; return its id."""
        container_id = self.host.create(spec_of(image, name, mounts))
        self.host.start(container_id)
        return container_id

    def tags(self) -> set[str]:
        """Return the tags of all images."""
        return {tag for image in self.client.images.list() for tag in image.tags}


def spec_of(image: str, name: str, mounts: tuple[Mount, ...]) -> ContainerSpec:
    return ContainerSpec(
        name=f"sparkdeploy-{name}",
        image=image,
        entrypoint=FOR_EVER,
        command=(),
        env={},
        mounts=mounts,
        user="65532:65532",
        gpus="none",
        tmpfs={},
        shm_size_bytes=1 << 20,
        labels={labels.KIND: "container", labels.DEPLOYMENT: name},
    )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with small_engine() as engine:
        program = Program(tmp_path, {"DOCKER_HOST": engine.address})
        settings = load_settings(program.env)
        ground = make_stage("engine", "FROM scratch\nCOPY rootfs/ /\n", context=tuple(rootfs()))
        with (
            DockerHost(engine.address) as host,
            contextlib.closing(docker.DockerClient(base_url=engine.address)) as client,
        ):
            build(host, ground, settings)
            yield Place(host, client, settings, program, ground)


def test_clean_removes_what_is_ours_and_unused_and_nothing_else(place: Place) -> None:
    unused_engine = place.engine_stage()
    unused = {unused_engine.tag, place.old_image(unused_engine)}
    used_engine = place.engine_stage()
    used = {used_engine.tag, place.old_image(used_engine)}
    deployed = place.deploy(max(used - {used_engine.tag}), "main")
    borrowed = place.old_image()
    foreign = {place.foreign_image("someone/else:1"), place.foreign_image("sparkdeploy/engine:own")}
    ended = place.foreign_container(borrowed, NOTHING)
    running = place.foreign_container(borrowed, FOR_EVER)
    ended.wait()
    volume = place.client.volumes.create("foreign")
    before = place.tags()
    shown = place.program.answer("clean", "--dry-run")
    assert {item["name"] for item in shown} == unused
    assert place.tags() == before
    removed = place.program.answer("clean", "--yes")
    assert removed == shown
    assert place.tags() == before - unused
    assert place.tags() >= used | foreign | {borrowed, place.ground.tag}
    assert {item.id for item in place.client.containers.list()} == {deployed, running.id}
    assert {item.id for item in place.client.containers.list(all=True)} == {
        deployed, running.id, ended.id,
    }  # fmt: skip
    assert [item.name for item in place.client.volumes.list()] == [volume.name]
    assert place.program.answer("clean", "--yes") == []


def uninstall(program: Program, *words: str) -> CompletedProcess[str]:
    """Run what install.sh's --uninstall --purge runs."""
    module = replace(program, command=(sys.executable, "-I", "-m", "sparkdeploy.uninstall"))
    return module.run(*words)


def test_the_removal_of_all_leaves_what_is_somebody_elses(place: Place, tmp_path: Path) -> None:
    homes = {"XDG_DATA_HOME": "share", "XDG_CACHE_HOME": "cached", "XDG_STATE_HOME": "states"}
    env = {name: str(tmp_path / folder) for name, folder in homes.items()}
    # Without our own variables the folders are the default ones.
    env |= {f"SPARKDEPLOY_{kind}_DIR": "" for kind in ("STATE", "DATA", "CACHE")}
    program = Program(tmp_path, {**place.program.more_env, **env})
    kept = tmp_path / "share" / "sparkdeploy" / "venv" / "bin"
    overlay = tmp_path / "share" / "sparkdeploy" / "m" / "ck"
    for folder in (kept, overlay, tmp_path / "cached" / "sparkdeploy" / "engines"):
        folder.mkdir(parents=True)
    engine = place.engine_stage()
    place.deploy(place.old_image(engine), "main")
    # A step that a build of ours made and did not finish, and a stranger with our label.
    place.client.images.build(
        fileobj=io.BytesIO(f"FROM {engine.tag}\nCOPY Dockerfile /y\n".encode())
    )
    foreign = place.foreign_image("someone/else:1")
    stranger = place.client.containers.create(foreign, ["/x"], labels={labels.KIND: ""})
    shown = uninstall(program)
    assert shown.stderr.splitlines()[-1] == "nothing was removed"
    assert {"image", "container", "folder"} == {
        line.split()[0] for line in shown.stderr.splitlines()[:-1]
    }
    assert place.tags() > {engine.tag, foreign}
    assert uninstall(program, "--yes").returncode == 0
    assert place.tags() == {foreign}
    assert [item.id for item in place.client.containers.list(all=True)] == [stranger.id]
    assert kept.is_dir()
    assert not overlay.exists()
    assert not (tmp_path / "cached" / "sparkdeploy").exists()


def test_clean_removes_what_looked_into_an_image_for_a_command_that_was_killed(
    place: Place,
) -> None:
    marks = {labels.KIND: "container", labels.ROLE: "check"}
    made = [
        place.client.containers.create(place.ground.tag, list(command), labels=marks)
        for command in (NOTHING, NOTHING, FOR_EVER)
    ]
    ended, _created, looking = made
    for container in (ended, looking):
        container.start()
    ended.wait()
    shown = place.program.answer("clean", "--yes")
    assert {(item["kind"], item["name"]) for item in shown} == {
        ("container", container.short_id) for container in made[:2]
    }
    assert [item.id for item in place.client.containers.list(all=True)] == [looking.id]


def test_a_model_that_a_deployment_runs_from_stays(place: Place, tmp_path: Path) -> None:
    model = tmp_path / "hub" / "models--lab--twin"
    other = tmp_path / "hub" / "models--lab--other"
    for folder in (model, other):
        (folder / "snapshots" / "1").mkdir(parents=True)
        (folder / "snapshots" / "1" / "config.json").write_text("{}")
    mount = Mount(str(model), "/m/hub/models--lab--twin")
    first = place.deploy(place.ground.tag, "first", mount)
    second = place.deploy(place.ground.tag, "second", mount)
    refused = place.program.run("checkpoint", "rm", "lab/twin", "--yes")
    assert refused.returncode == 4
    assert "lab/twin is in use by deployment first, second" in refused.stderr
    assert "sparkdeploy down first && sparkdeploy down second" in refused.stderr
    assert place.program.run("checkpoint", "rm", "lab/other", "--yes").returncode == 0
    place.host.remove(first)
    refused = place.program.run("checkpoint", "rm", "lab/twin", "--yes")
    assert refused.returncode == 4
    assert "deployment second" in refused.stderr
    assert (model / "snapshots" / "1" / "config.json").is_file()
    place.host.stop(second)
    done = place.program.run("checkpoint", "rm", "lab/twin", "--yes")
    assert done.returncode == 0, done.stderr
    assert "second is stopped and will not start without lab/twin" in done.stderr
    assert not model.exists()
    assert not other.exists()
