"""Following a build: progress, the end of the log, the hint."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from sparkdeploy import labels, shell
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image import base
from sparkdeploy.image.build import _require_architecture, find_built
from sparkdeploy.image.inside.prove import MARK
from sparkdeploy.image.stages import BaseSource, DebianRecipe, Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.reports import BuildEvent
from sparkdeploy.settings import BuildNetwork, Settings
from tests.fakes.builds import ScriptedHost, build

from .conftest import MakeStages


def test_a_build_shows_its_step_its_last_line_and_the_bytes_of_a_pull(
    stages: tuple[Stage, ...],
) -> None:
    events = [
        BuildEvent("Step 1/9 : FROM x\n"),
        BuildEvent("Downloading", done_bytes=1_000_000, total_bytes=4_000_000, layer="a"),
        BuildEvent("Downloading", done_bytes=2_000_000, total_bytes=2_000_000, layer="b"),
        BuildEvent(" ---> 0123456789ab\n"),
        BuildEvent(" ---> 1123456789ab\n"),
        BuildEvent("\x1b[91mfetching idna\x1b[0m\n"),
    ]
    host = ScriptedHost(events, stage=stages[0])
    _, shown = build(host, stages[0])
    assert any("3.0 MB of 6.0 MB" in text for text in shown)
    assert any("step 1/9: fetching idna" in text for text in shown)
    # What stands on another one goes first.
    assert host.removed == ["1123456789ab", "0123456789ab"]


def test_a_failing_build_ends_with_the_last_thirty_lines(stages: tuple[Stage, ...]) -> None:
    events = [BuildEvent("Step 2/9 : RUN x\n")]
    events += [BuildEvent(f"line {number}\n") for number in range(100)]
    events.append(BuildEvent("returned a non-zero code: 1", error="returned a non-zero code: 1"))
    with pytest.raises(BuildError, match="step 2/9") as caught:
        build(ScriptedHost(events), stages[0])
    tail = (caught.value.detail or "").splitlines()
    assert len(tail) == 30
    assert tail[-2:] == ["line 99", "returned a non-zero code: 1"]
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("SSLError: certificate verify failed: self-signed certificate", "ca_bundle"),
        ("invalid peer certificate: UnknownIssuer", "ca_bundle"),
        ("dns error: failed to lookup address information", "https_proxy"),
        ("Temporary failure in name resolution", "wheelhouse"),
        ("write /opt/x: no space left on device", "data root"),
        ("Hash mismatch for `idna==3.20`", "differs from the lock"),
        ("returned a non-zero code: 137", "ran out of memory"),
        ("uv pip install $TORCH_SOURCE\ndns error", "`torch_cpu_index`"),
    ],
)
def test_a_known_cause_comes_with_its_fix(stages: tuple[Stage, ...], line: str, hint: str) -> None:
    events = [BuildEvent(f"{line}\n"), BuildEvent("failed", error="failed")]
    with pytest.raises(BuildError) as caught:
        build(ScriptedHost(events), stages[0])
    assert hint in (caught.value.hint or "")


def test_a_stage_that_is_there_is_not_built(stages: tuple[Stage, ...]) -> None:
    there = ImageFact("sha256:old", (stages[0].tag,), stages[0].labels(), 1)
    host = ScriptedHost([BuildEvent("x", error="it was built")], {stages[0].tag: there})
    assert build(host, stages[0])[0] is there


def test_a_foreign_image_under_our_tag_is_refused(stages: tuple[Stage, ...]) -> None:
    foreign = ImageFact("sha256:other", (stages[0].tag,), {}, 1)
    host = ScriptedHost([], {stages[0].tag: foreign})
    with pytest.raises(NodeError, match="was not made by sparkdeploy"):
        find_built(cast("DockerHost", host), stages[0])


def test_an_image_of_other_inputs_does_not_count_as_built(stages: tuple[Stage, ...]) -> None:
    made = {labels.KIND: "image", labels.FINGERPRINT: "0123456789abcdef"}
    image = ImageFact("sha256:x", (stages[0].tag,), made, 1)
    host = ScriptedHost([], {stages[0].tag: image})
    assert find_built(cast("DockerHost", host), stages[0]) is None


def test_an_image_for_another_processor_is_refused(stages: tuple[Stage, ...]) -> None:
    stage = replace(stages[0], architecture="aarch64")
    image = ImageFact("sha256:x", (stage.tag,), {}, 1, architecture="arm64")
    _require_architecture(stage, image)
    with pytest.raises(BuildError, match="is for aarch64, and Docker made it for amd64"):
        _require_architecture(stage, replace(image, architecture="amd64"))
    # With its tag it would be taken for a good one the next time.
    host = ScriptedHost([], stage=stage, architecture="amd64")
    with pytest.raises(BuildError, match="Docker made it for amd64"):
        build(host, stage)
    assert host.images == {}


@pytest.mark.parametrize("other", [{}, {labels.FINGERPRINT: "another"}])
def test_a_stage_without_the_one_below_is_refused(
    stages: tuple[Stage, ...], other: dict[str, str]
) -> None:
    below = ImageFact("sha256:x", (stages[0].tag,), other, 1)
    host = ScriptedHost([], {stages[0].tag: below} if other else {})
    with pytest.raises(BuildError, match="which is not there"):
        build(host, stages[1])


def test_mmdebstrap_gets_the_packages_and_leaves_no_trace_of_this_machine(
    settings: Settings, tmp_path: Path
) -> None:
    network = BuildNetwork(
        ca_bundle=Path("/my.pem"), proxies={"http_proxy": "http://u:secret@proxy.test"}
    )
    argv = base.mmdebstrap_argv(
        DebianRecipe("bookworm", ("python3", "g++")),
        "aarch64",
        replace(settings, build=network),
        tmp_path / "root.tar",
        tmp_path / "log",
    )
    paths = ("doc", "man", "locale", "info")
    traces = ("apt.conf.d/99mmdebstrap", "sources.list")
    assert argv == (
        *("mmdebstrap", "--variant=minbase", "--include=python3,g++"),
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in paths),
        "--dpkgopt=force-unsafe-io",
        *(f'--customize-hook=rm -f "$1/etc/apt/{name}"' for name in traces),
        *("--architectures=arm64", '--aptopt=Acquire::https::CAInfo "/my.pem"'),
        *(f"--logfile={tmp_path}/log", "bookworm", f"{tmp_path}/root.tar"),
        "http://debian.test/debian",
    )


def proof_of(kernels: Mapping[str, Mapping[str, int]], torch_cuda: str | None) -> str:
    return "noise\n" + MARK + json.dumps({"torch_cuda": torch_cuda, "kernels": kernels})


NO_VERBS = {"libibverbs.so.1": "libibverbs.so.1: cannot open shared object file"}
SOUND = (0, proof_of({"_C.so": {"sm_120f": 1}}, "13.0"))


@pytest.fixture
def cuda_engine(make_stages: MakeStages) -> tuple[Stage, ImageFact]:
    """The engine stage of the default engine, and the image it stands on."""
    base, engine, _ = make_stages("cuda-0.25")
    return engine, ImageFact("sha256:base", (base.tag,), base.labels(), 1)


def test_what_was_found_in_an_engine_becomes_a_label_of_the_tagged_image(
    cuda_engine: tuple[Stage, ImageFact], capsys: pytest.CaptureFixture[str]
) -> None:
    stage, below = cuda_engine
    said = proof_of({"_C.abi3.so": {"sm_120f": 33}}, "13.0")
    events = [BuildEvent("configure: gfortran: command not found\n")]
    host = ScriptedHost(events, {below.tags[0]: below}, stage=stage, said=(0, said))
    fact, _ = build(host, stage)
    assert capsys.readouterr().err == ""
    assert json.loads(fact.labels[labels.PROOF])["kernels"] == {"_C.abi3.so": {"sm_120f": 33}}
    assert fact.labels[labels.FINGERPRINT] == stage.fingerprint
    assert set(host.images) == {below.tags[0], stage.tag}
    assert host.networks == [None, "none"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ((0, proof_of({"_C.so": {"sm_120f": 1}}, None)), "a CPU build of torch"),
        ((0, proof_of({"_C.so": {"sm_90a": 1, "sm_120a": 2}}, "13.0")), "no kernel for SM121"),
        ((0, proof_of({}, "13.0")), "none at all"),
        ((1, "Traceback"), "could not be looked into"),
        (SOUND, "cannot reach RDMA adapters: libibverbs"),
    ],
)
def test_an_engine_that_could_not_serve_gets_no_tag(
    cuda_engine: tuple[Stage, ImageFact],
    said: tuple[int, str],
    words: str,
) -> None:
    stage, below = cuda_engine
    there = {below.tags[0]: below}
    host = ScriptedHost([], there, stage=stage, said=said, rdma_missing=NO_VERBS)
    with pytest.raises(BuildError, match=words):
        build(host, stage)
    assert set(host.images) == {below.tags[0]}


def test_who_brings_an_image_without_rdma_is_told(
    make_stages: MakeStages, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = make_stages("image", image="0123456789ab")[0]
    there = {"0123456789ab": ImageFact("sha256:x", (), {}, 1)}
    fact, _ = build(ScriptedHost([], there, stage=stage, said=SOUND, rdma_missing=NO_VERBS), stage)
    assert fact.proof["rdma_missing"] == NO_VERBS
    assert "serves on one machine alone, for it cannot reach RDMA" in capsys.readouterr().err


def test_the_reason_an_image_gives_for_not_fitting_is_the_message(make_stages: MakeStages) -> None:
    stage = make_stages("image", image="0123456789ab")[0]
    there = {"0123456789ab": ImageFact("sha256:x", (), {}, 1)}
    events = [BuildEvent("sparkdeploy-refused: there is no Python in it\n")]
    events += [BuildEvent("code: 1", error="code: 1")]
    with pytest.raises(BuildError, match="does not fit what it stands on: there is no Python"):
        build(ScriptedHost(events, there), stage)
    with pytest.raises(BuildError, match="not on this machine"):
        build(ScriptedHost(events), stage)


@pytest.mark.parametrize("base_source", ["registry", "debian"])
def test_an_engine_without_a_builder_is_named_before_anything_is_made(
    make_stages: MakeStages,
    monkeypatch: pytest.MonkeyPatch,
    base_source: BaseSource,
) -> None:
    monkeypatch.setattr(shell, "run", lambda *_, **__: pytest.fail("a base was made"))
    stage = make_stages("cpu-0.32", base_source=base_source)[0]
    host = ScriptedHost([], refusal="only BuildKit is supported")
    with pytest.raises(BuildError, match="no longer has the builder") as caught:
        build(host, stage)
    assert caught.value.detail == "only BuildKit is supported"
    assert "docker save and docker load" in (caught.value.hint or "")
    assert host.networks == []
