"""`image build`: which stages are built, for which platform, and what is refused before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy import prepare
from sparkdeploy.errors import BuildError, NodeError, UsageError
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.lock import node_lock
from sparkdeploy.node.node import Node
from sparkdeploy.node.reports import RegistryImage
from sparkdeploy.node.ssh import SshLink
from sparkdeploy.recipe.image_pins import ImageContents, ImageLock
from sparkdeploy.recipe.load import Library, Resolved, load_engine
from sparkdeploy.settings import Settings, load_settings
from sparkdeploy.upkeep import image_build as module
from sparkdeploy.upkeep import images as image_shelf
from tests.fakes.containers import FakeContainers
from tests.fakes.fabric import spark
from tests.fakes.plans import DOCKER, built, made_stages


class _Engine(FakeContainers):
    """A Docker Engine of a laptop, which makes an image of whatever stage it is given."""

    def __init__(self) -> None:
        super().__init__(engine=replace(DOCKER, architecture="x86_64"))
        self.asked: list[Stage] = []


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> _Engine:
    """A laptop's engine, on a laptop that emulates everything."""
    made = _Engine()

    def build_stage(_host: object, stage: Stage, *_: object) -> ImageFact:
        made.asked.append(stage)
        fact = built(stage)
        made.images += (fact,)
        return fact

    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(module, "connect", lambda _settings: made)
    monkeypatch.setattr(module, "refuse_without_emulation", lambda _wanted: None)
    monkeypatch.setattr("sparkdeploy.deploy.prepare.build_stage", build_stage)
    return made


def stages(shipped: Library, name: str, architecture: Any, source: Any) -> tuple[Stage, ...]:
    return made_stages(load_engine(shipped, name), source, architecture)


@pytest.mark.parametrize(("name", "by"), [("cuda-0.25", "engine"), ("v2", "recipe")])
def test_every_stage_is_built_for_the_docker_engines_own_platform(
    shipped: Library, engine: _Engine, name: str, by: str
) -> None:
    meant = module.what_is_meant(name, (), load_settings())
    wanted = meant.engine.name if isinstance(meant, Resolved) else meant.name
    images = module.build_engine(name, (), None, load_settings())
    assert engine.asked == list(stages(shipped, wanted, "x86_64", "registry")), by
    assert [image.platform for image in images] == ["linux/amd64"] * 3
    assert all(image.was_built for image in images)
    again = module.build_engine(name, (), None, load_settings())
    assert [image.tag for image in again] == [image.tag for image in images]
    assert not any(image.was_built for image in again)


@pytest.mark.parametrize(("digest", "source"), [("sha256:0", "registry"), (None, "debian")])
def test_what_is_built_for_a_spark_is_what_a_spark_would_look_for(
    shipped: Library, engine: _Engine, digest: str | None, source: str
) -> None:
    engine.digest = digest
    images = module.build_engine("cuda-0.25", (), "linux/arm64", load_settings())
    there = stages(shipped, "cuda-0.25", "aarch64", source)
    assert [(it.tag, it.fingerprint) for it in images] == [(it.tag, it.fingerprint) for it in there]
    assert [stage.platform for stage in engine.asked] == ["linux/arm64"] * 3
    assert [stage.labels() for stage in engine.asked] == [stage.labels() for stage in there]


def test_what_cannot_be_emulated_or_known_is_refused(
    engine: _Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BuildError, match=r"cuda-0\.19 compiles vLLM"):
        module.build_engine("cuda-0.19", (), "linux/arm64", load_settings())
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(NodeError, match="the Docker Engine is for x86_64 and this machine is"):
        module.build_engine("cuda-0.25", (), "linux/arm64", load_settings())
    assert engine.asked == []


@pytest.mark.parametrize("platform", ["linux/arm64", "linux/amd64"])
def test_what_an_image_holds_is_kept_for_this_machines_platform_alone(
    engine: _Engine, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    settings, tag = load_settings(), "lab.example/vllm:v1"
    told = RegistryImage("sha256:" + "a" * 64, ("arm64", "amd64"))
    contents = ImageContents("0.33.0", "2.14.0", "13.0", ["sm_121a"], {}, None)
    looked: list[str | None] = []

    def build_stage(_host: object, stage: Stage, *_: object) -> ImageFact:
        looked.append(stage.platform)
        return built(stage)

    monkeypatch.setattr(_Engine, "registry_image", lambda *_: told, raising=False)
    monkeypatch.setattr(_Engine, "pull", lambda *_: iter(()), raising=False)
    monkeypatch.setattr("sparkdeploy.image.pins.build_stage", build_stage)
    monkeypatch.setattr("sparkdeploy.image.proof.contents_of", lambda *_: contents)
    images = module.build_engine("baseline", ("engine=image", f"image={tag}"), platform, settings)
    assert [(image.stage, image.platform) for image in images] == [
        ("engine", platform),
        ("guard", platform),
    ]
    is_own = platform == "linux/amd64"
    assert looked == [None if is_own else platform]
    lock = ImageLock(settings.state_dir)
    assert (lock.pin_of(tag) is not None) is is_own
    assert (lock.contents(f"lab.example/vllm@{told.digest}") is not None) is is_own


def test_an_engine_alone_without_a_digest_is_told_what_works(engine: _Engine) -> None:
    settings = load_settings()
    with pytest.raises(BuildError, match="names no image") as caught:
        module.build_engine("image", (), None, settings)
    assert "`sparkdeploy image build RECIPE --set engine=image" in (caught.value.hint or "")
    folder = settings.config_dir / "recipes" / "engines"
    folder.mkdir(parents=True)
    text = "schema: 1\nname: mine\ntitle: t\nkind: image\nvllm: 0.33.0\nimage: a/b:c\n"
    (folder / "mine.yaml").write_text(text)
    with pytest.raises(BuildError, match="stands on the tag a/b:c") as caught:
        module.build_engine("mine", (), None, settings)
    assert "RECIPE --set engine=mine" in (caught.value.hint or "")
    assert engine.asked == []


@pytest.mark.parametrize("reference", ["sha256:guard:1", "guard:1", "sparkdeploy/guard:1", "guar"])
def test_an_image_is_named_by_its_tag_or_the_start_of_its_id(reference: str) -> None:
    assert image_shelf.find_own(of_mods(), reference).tags == ("sparkdeploy/guard:1",)


@pytest.mark.parametrize("reference", ["sha256:", "sha256:gua", "gua", "", "debian"])
def test_too_short_a_start_names_no_image(reference: str) -> None:
    with pytest.raises(UsageError, match="no image of sparkdeploy is known"):
        image_shelf.find_own(of_mods(), reference)


def test_an_image_that_a_running_up_has_named_is_not_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, tag = load_settings(), "sparkdeploy/guard:1"
    monkeypatch.setattr(image_shelf, "connect", lambda _: FakeContainers(images=(*of_mods(),)))
    name = f"{settings.node_name}-main.use"
    with (
        node_lock(settings.lock_dir, name, command="sparkdeploy up v2", uses=(tag,)),
        pytest.raises(NodeError, match="is used by `sparkdeploy up v2"),
    ):
        image_shelf.remove_images([tag], settings)


def test_each_mod_of_an_image_is_shown_with_what_it_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = of_mods()
    engine: Any = contextlib.nullcontext(Chained(chain))
    monkeypatch.setattr(image_shelf, "connect", lambda _: engine)
    told = image_shelf.show_image("sparkdeploy/guard:1", load_settings())
    assert told["proof"] == {"engine": {"vllm": "0.33.0"}}
    assert list(told["mods"].items()) == [
        ("sparkdeploy/mod:1", {"name": "mods/a", "changed": ["/a"], "count": 1}),
        ("sparkdeploy/mod:2", {"name": "mods/b", "changed": ["/b"], "count": 1}),
    ]


@dataclass
class Chained:
    """An engine with images that stand on one another."""

    images: list[ImageFact]

    def own_images(self) -> list[ImageFact]:
        return self.images

    def measured(self, image: ImageFact) -> ImageFact:
        return image

    # The real one, which asks nothing but `find_image`.
    image_chain = DockerHost.image_chain

    def find_image(self, reference: str) -> ImageFact | None:
        return next((image for image in self.images if reference in image.tags), None)


def of_mods() -> list[ImageFact]:
    """Return an engine, two mods and a guard, the uppermost first, with the labels they inherit."""
    marks: dict[str, str] = {}
    chain: list[ImageFact] = []
    for stage, tag, more in (
        ("engine", "engine:1", {labels.PROOF: '{"vllm": "0.33.0"}'}),
        ("mod", "mod:1", {labels.MOD: "mods/a", labels.PROOF: '{"changed": ["/a"], "count": 1}'}),
        ("mod", "mod:2", {labels.MOD: "mods/b", labels.PROOF: '{"changed": ["/b"], "count": 1}'}),
        ("guard", "guard:1", {}),
    ):
        below = {labels.BELOW: chain[-1].tags[0]} if chain else {}
        marks = {**marks, **below, **more, labels.STAGE: stage}
        chain.append(ImageFact(f"sha256:{tag}", (f"sparkdeploy/{tag}",), marks, 1))
    return chain[::-1]


STAGE = cast("Stage", SimpleNamespace(tag="sparkdeploy/engine:1", fingerprint="f", context=()))
BUILT = ImageFact("sha256:1", (STAGE.tag,), {labels.KIND: "image", labels.FINGERPRINT: "f"}, 10)


def broken(*_: object) -> Any:
    raise NodeError("docker: the disk of this engine is broken")


def breaks_off(*_: object) -> Iterator[bytes]:
    yield b"x"
    broken()


def head(**changes: Any) -> Node:
    made = Node("spark-1", spark(1))
    usual = {"find_image": lambda _: BUILT, "save_images": lambda _: iter((b"x",))}
    made._docker = cast("Any", SimpleNamespace(**{**usual, **changes}))
    return made


def worker(**changes: Any) -> Node:
    link = SimpleNamespace(docker_address="ssh://there", is_open=True)
    made = Node("spark-2", spark(2), cast("SshLink", link))
    usual = {"find_image": lambda _: None, "load_images": list, "info": lambda: DOCKER}
    made._docker = cast("Any", SimpleNamespace(**{**usual, **changes}))
    return made


@pytest.mark.parametrize(
    ("ours", "theirs", "whose"),
    [
        ({"find_image": broken}, {}, ""),
        ({"save_images": breaks_off}, {}, ""),
        ({}, {"find_image": broken}, "spark-2: "),
        ({}, {"load_images": broken}, "spark-2: "),
    ],
)
def test_only_the_workers_engine_is_called_the_workers(
    monkeypatch: pytest.MonkeyPatch, ours: dict[str, Any], theirs: dict[str, Any], whose: str
) -> None:
    monkeypatch.setattr(prepare, "free_bytes_on", lambda *_: None)
    with pytest.raises(NodeError) as caught:
        prepare._bring(STAGE, STAGE, head(**ours), worker(**theirs), cast("Settings", None))
    assert caught.value.message == f"{whose}docker: the disk of this engine is broken"


@pytest.mark.parametrize("different", [{"layers": ("sha256:x",)}, {"configuration": "x"}])
def test_another_image_under_the_tag_of_what_was_sent_is_named(
    monkeypatch: pytest.MonkeyPatch, different: dict[str, Any]
) -> None:
    monkeypatch.setattr(prepare, "free_bytes_on", lambda *_: None)
    other = replace(BUILT, **different)
    there = iter((None, None, None, other))
    receiver = worker(find_image=lambda _: next(there))
    with pytest.raises(NodeError, match="is another image than spark-1's after it was loaded"):
        prepare._bring(STAGE, STAGE, head(), receiver, cast("Settings", None))
