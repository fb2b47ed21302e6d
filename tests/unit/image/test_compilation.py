"""Compiling vLLM: what is refused before it starts, what the compiler gets, when it is left out."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from sparkdeploy import labels
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image import compilation, network
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.recipe.engine import SourceBuild
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.step import Step
from tests.fakes.builds import ScriptedHost, build
from tests.fakes.plans import DOCKER

from .conftest import MakeStages

GIB, GB = 2**30, 10**9


@pytest.fixture
def stage(make_stages: MakeStages) -> Stage:
    """The engine stage of the engine that is compiled."""
    return make_stages("cuda-0.19")[1]


@pytest.fixture
def source(stage: Stage) -> SourceBuild:
    assert stage.source is not None
    return stage.source


def text_of(stage: Stage, path: str) -> str:
    (file,) = (file for file in stage.context if file.path == path)
    with file.open() as stream:
        return stream.read().decode()


def test_a_machine_without_room_is_refused_with_all_that_it_lacks_before_anything_is_fetched(
    stage: Stage, source: SourceBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = {labels.FINGERPRINT: stage.inputs["below"]}
    host = ScriptedHost([], {stage.below or "": ImageFact("sha256:x", (), marks, 1)})
    host.info = lambda: DOCKER  # type: ignore[attr-defined]
    disk, memory = {Path(DOCKER.root_dir): source.disk_gb * GB - 1}, {"MemAvailable": 15 * GIB}
    monkeypatch.setattr("sparkdeploy.node.facts.free_bytes", disk.get)
    monkeypatch.setattr("sparkdeploy.node.facts.read_meminfo", lambda: memory)
    monkeypatch.setattr("sparkdeploy.image.network.refusal", lambda *_: OSError("no route"))
    with pytest.raises(NodeError, match="cannot be compiled on this machine") as caught:
        build(host, stage)
    lacks = [line.split(":")[0] for line in (caught.value.detail or "").splitlines()]
    assert (lacks, caught.value.exit_code) == (["disk", "memory"], 4)
    for room in (disk, memory):
        room.clear()
    with pytest.raises(BuildError, match="which does not answer"):
        build(host, stage)
    disk[Path(DOCKER.root_dir)] = source.disk_gb * GB
    memory["MemAvailable"] = source.memory_gib * GIB
    with pytest.raises(BuildError, match="which does not answer"):
        build(host, stage)


def test_sources_out_of_reach_are_refused_by_name(settings: Settings) -> None:
    gone = replace(settings, hosts=replace(settings.hosts, source_forge="http://127.0.0.1:9"))
    with pytest.raises(
        BuildError, match=r"CUTLASS.*127\.0\.0\.1:9, which does not answer"
    ) as caught:
        compilation.refuse_unreachable("cuda-0.19", gone)
    assert "cuda-0.25" in (caught.value.hint or "")
    assert caught.value.exit_code == 5


def test_the_compiler_gets_the_pinned_sources_and_the_sparks_architecture(stage: Stage) -> None:
    said = text_of(stage, "compile/source").splitlines()
    assert "export VLLM_VERSION=0.19.1" in said
    assert "export TORCH_CUDA_ARCH_LIST=12.1a" in said
    assert "export VLLM_REF=''" in said
    assert "export VLLM_TARGET_DEVICE=cuda" in said
    assert any(line.startswith("export SDIST_SHA256=9fb88ce6") for line in said)
    assert "torch==2.10.0+cu130" in text_of(stage, "lock/torch.txt")
    pinned = {pin.name: pin.version for pin in stage.pins}
    assert "vllm" not in pinned
    assert pinned["openai"].startswith("2.")
    assert pinned["starlette"].startswith("0.")


@dataclass
class Compiler:
    """An engine whose one container ends as told, and leaves no wheel."""

    exit_code: int
    removed: list[str] = field(default_factory=list)

    def create(self, _spec: object) -> str:
        return "id"

    def start(self, _container: str) -> None:
        pass

    def find_container(self, _container: str) -> "Compiler":
        return self

    @property
    def is_running(self) -> bool:
        return False

    def logs(self, _container: str, tail: int) -> list[bytes]:
        return [b"ninja: build stopped\n"]

    def remove(self, container: str) -> None:
        self.removed.append(container)


def test_a_compiler_that_fails_shows_its_end_and_leaves_no_container(
    stage: Stage, settings: Settings
) -> None:
    compiler = Compiler(exit_code=1)
    with pytest.raises(BuildError, match="did not compile") as caught:
        compilation.compile_wheel(cast("DockerHost", compiler), stage, settings, cast("Step", None))
    assert caught.value.detail == "ninja: build stopped"
    # One that a killed command left under its name, and its own.
    assert compiler.removed == [f"sparkdeploy-compile-{stage.fingerprint[:12]}", "id"]
    assert not list(settings.cache_dir.glob("compile-*"))
    done = cast("DockerHost", Compiler(exit_code=0))
    with pytest.raises(BuildError, match="ended well and left no wheel"):
        compilation.compile_wheel(done, stage, settings, cast("Step", None))


def test_a_wheel_that_is_kept_is_taken_and_nothing_is_asked(
    stage: Stage, settings: Settings
) -> None:
    folder = compilation.wheel_folder(stage, settings)
    folder.mkdir(parents=True)
    (folder / ".vllm-0.19.1.whl.part").write_bytes(b"half")
    assert compilation.find_wheel(stage, settings) is None
    wheel = folder / "vllm-0.19.1-cp312-cp312-linux_aarch64.whl"
    wheel.write_bytes(b"")
    nobody = cast("DockerHost", None)
    compilation.refuse_start(stage, nobody, settings)
    assert compilation.compile_wheel(nobody, stage, settings, cast("Step", None)) == wheel
    sent = network.files(replace(stage, compiled=wheel), settings)
    assert ContextFile(f"network/compiled/{wheel.name}", wheel) in sent


def test_a_wheel_is_another_one_for_each_thing_that_it_is_compiled_from(
    stage: Stage, settings: Settings
) -> None:

    def changed(name: str) -> bool:
        other = replace(stage, inputs={**stage.inputs, name: "another"})
        folders = {compilation.wheel_folder(it, settings) for it in (stage, other)}
        return len(folders) == 2

    assert {name for name in stage.inputs if changed(name)} == {
        *("below", "architecture"),
        *("compile/compile.sh", "compile/source", "lock/torch.txt"),
    }
