"""Builds that end in the middle: a full disk; a killed container, program or Docker Engine.

Each time: exit 5 with the reason, no tag, nothing left over, and the next run goes on from the
stage below. All of it happens in a Docker Engine of the tests' own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from sparkdeploy.errors import BuildError
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.stages import LEFTOVER_LABEL, Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import Settings
from tests.engine.conftest import DEADLINE_S, until
from tests.engine.lab_stages import build, make_stage, rootfs
from tests.engine.other_engines import usr_of
from tests.engine.small_engine import (
    DISK_MIB,
    OWN_PROGRAM,
    EngineProgram,
    SmallEngine,
    small_engine,
)

MIB = 2**20
HELD = (
    "trap 'exit 9' TERM; while [ ! -e /go ]; do sleep 0.05; done && head -c 1000 /dev/zero > /made"
)
"""Runs until `Bench.release`: a kill meets it however long the machine takes."""
KILLED_PROGRAM = """
import pickle, sys
from pathlib import Path
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import load_settings
from tests.engine.lab_stages import build
with DockerHost(sys.argv[1]) as host:
    build(host, pickle.loads(Path(sys.argv[2]).read_bytes()), load_settings())
"""


@pytest.fixture(
    scope="module",
    params=["own", pytest.param("sid", marks=pytest.mark.slow)],
    ids=["own-classic", "sid-containerd"],
)
def engine(request: pytest.FixtureRequest) -> Iterator[SmallEngine]:
    """The engine that fills up and dies; the machine's own keeps its network."""
    bridge = Path("/sys/class/net/docker0")
    had_bridge = bridge.exists()
    # containerd keeps each layer twice, packed and unpacked.
    disk_mib, program = DISK_MIB, OWN_PROGRAM
    if request.param != "own":
        disk_mib, program = 3 * DISK_MIB, EngineProgram(usr_of(request.param), "containerd")
    with small_engine(disk_mib, program) as started:
        yield started
    assert bridge.exists() == had_bridge


@dataclass
class Bench:
    """A good lower stage, a connection, and what the engine holds beside the upper stage."""

    engine: SmallEngine
    host: DockerHost
    settings: Settings
    lower: Stage
    image: ImageFact
    ids_before: set[str]

    def upper(self, command: str, *files: ContextFile, at_the_end: str = "") -> Stage:
        """Return a stage in halves, like an engine's, that runs a command in the first one."""
        dockerfile = (
            f"FROM {self.lower.tag} AS environment\nLABEL {LEFTOVER_LABEL}\n"
            f"COPY content/ /\nRUN {command}\nFROM {self.lower.tag}\n"
            f"COPY --from=environment /made /made\n{at_the_end}"
        )
        content = (ContextFile("content/hello", b"hello"), *files)
        return make_stage("plugin", dockerfile, self.lower, context=content)

    def held(self) -> set[str]:
        """Return the ids of all images, those between two instructions too."""
        with contextlib.closing(docker.DockerClient(base_url=self.engine.address)) as client:
            return {item["Id"] for item in client.api.images(all=True)}

    def containers(self) -> dict[str, str]:
        """Return the states of all containers by their ids."""
        return {item["Id"]: item["State"] for item in self._listed()}

    def held_builds(self) -> list[str]:
        """Return the ids of the containers in which a held command runs at this moment."""
        items = self._listed()
        return [
            item["Id"] for item in items if item["State"] == "running" and "/go" in item["Command"]
        ]

    def _listed(self) -> list[dict[str, str]]:
        with contextlib.closing(docker.DockerClient(base_url=self.engine.address)) as client:
            # The SDK's other list asks once more for each, and one may have gone meanwhile.
            return list(client.api.containers(all=True))

    def kill_build(self) -> None:
        """Kill the container of the running build, as the machine does when memory is short."""
        with contextlib.closing(docker.DockerClient(base_url=self.engine.address)) as client:
            (running,) = self.held_builds()
            client.api.kill(running)

    def release(self) -> None:
        """Let the held command of the running build go on."""
        with contextlib.closing(docker.DockerClient(base_url=self.engine.address)) as client:
            (running,) = self.held_builds()
            made = client.api.exec_create(running, ["sh", "-c", "> /go"])
            client.api.exec_start(made["Id"])

    def assert_nothing_half(self, stage: Stage) -> None:
        """Hold what is there against what was there before the build."""
        assert self.host.find_image(stage.tag) is None
        assert self.held() == self.ids_before

    def assert_resumes(self, stage: Stage, *, is_held: bool = True) -> None:
        """Build again: the upper stage appears, on the very same lower one, and nothing else."""
        assert build(self.host, self.lower, self.settings) == self.image
        with building(self, stage) as future:
            if is_held:
                self.release()
            assert future.result(timeout=DEADLINE_S).tags == (stage.tag,)
        assert self.containers() == {}
        self.host.remove_image(stage.tag)
        assert self.held() == self.ids_before


@pytest.fixture
def bench(engine: SmallEngine, settings: Settings) -> Iterator[Bench]:
    """An empty engine but for a lower stage: a shell and two programs of this machine."""
    lower = make_stage("engine", "FROM scratch\nCOPY rootfs/ /\n", context=tuple(rootfs()))
    with DockerHost(engine.address) as host:
        image = build(host, lower, settings)
        made = Bench(engine, host, settings, lower, image, set())
        made.ids_before = made.held()
        yield made
        engine.free()
        host.remove_image(lower.tag)


@contextlib.contextmanager
def building(bench: Bench, stage: Stage) -> Iterator[Future[ImageFact]]:
    """Build in another thread; enter when its held command runs, or the build is over."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(build, bench.host, stage, bench.settings)
        until(lambda: future.done() or bool(bench.held_builds()))
        yield future


@pytest.mark.parametrize(
    ("where", "left_mib"),
    [
        ("a layer", 25),
        pytest.param("the upload", 5, marks=pytest.mark.slow),
        pytest.param("a program", 20, marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_ends_a_build_and_the_next_one_resumes(
    bench: Bench, where: str, left_mib: int
) -> None:
    if where == "a program":
        stage = bench.upper("head -c 31457280 /dev/zero > /made")
    else:
        stage = bench.upper("true", ContextFile("content/made", os.urandom(15 * MIB)))
    bench.engine.fill(leave_bytes=left_mib * MIB)
    with pytest.raises(BuildError, match="did not build") as caught:
        build(bench.host, stage, bench.settings)
    assert caught.value.exit_code == 5
    assert "o space left on device" in (caught.value.detail or "")
    assert "free space under Docker's data root" in (caught.value.hint or "")
    bench.assert_nothing_half(stage)
    bench.engine.free()
    bench.assert_resumes(stage, is_held=False)


def test_a_killed_container_ends_a_build_and_the_next_one_resumes(bench: Bench) -> None:
    stage = bench.upper(HELD)
    with building(bench, stage) as future:
        bench.kill_build()
        with pytest.raises(BuildError, match="failed at step 4/8") as caught:
            future.result(timeout=DEADLINE_S)
    assert "ran out of memory" in (caught.value.hint or "")
    bench.assert_nothing_half(stage)
    bench.assert_resumes(stage)


def test_an_engine_that_dies_ends_a_build_and_the_next_one_resumes(bench: Bench) -> None:
    stage = bench.upper(HELD)
    with building(bench, stage) as future:
        bench.engine.kill()
        with pytest.raises(BuildError, match="failed at step 4/8") as caught:
            future.result(timeout=DEADLINE_S)
    assert caught.value.exit_code == 5
    assert caught.value.hint
    bench.engine.start()
    assert bench.host.find_image(stage.tag) is None
    bench.assert_resumes(stage)


def test_a_killed_program_leaves_no_tag_and_the_next_one_resumes(
    bench: Bench, tmp_path: Path
) -> None:
    stage = bench.upper(HELD)
    pickled = tmp_path / "stage.pickle"
    pickled.write_bytes(pickle.dumps(stage))
    argv = [sys.executable, "-c", KILLED_PROGRAM, bench.engine.address, str(pickled)]
    with subprocess.Popen(argv, cwd=Path(__file__).parents[3]) as program:
        until(lambda: program.poll() is not None or bool(bench.held_builds()))
        program.kill()
    until(lambda: not bench.held_builds())
    assert bench.host.find_image(stage.tag) is None
    bench.assert_resumes(stage)
