"""Images by their names, what mods changed in them, and how they travel."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy import prepare
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.node import Node
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep import images as image_shelf
from tests.fakes.fabric import spark
from tests.fakes.plans import DOCKER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.ssh import SshLink
    from sparkdeploy.settings import Settings


@pytest.mark.parametrize("reference", ["sha256:guard:1", "guard:1", "sparkdeploy/guard:1", "guar"])
def test_an_image_is_named_by_its_tag_or_the_start_of_its_id(reference: str) -> None:
    assert image_shelf.find_own(of_mods(), reference).tags == ("sparkdeploy/guard:1",)


@pytest.mark.parametrize("reference", ["sha256:", "sha256:gua", "gua", "", "debian"])
def test_too_short_a_start_names_no_image(reference: str) -> None:
    with pytest.raises(UsageError, match="no image of sparkdeploy is known"):
        image_shelf.find_own(of_mods(), reference)


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


@pytest.mark.parametrize("changes", [{"find_image": broken}, {"save_images": breaks_off}])
def test_the_heads_own_engine_is_not_called_the_workers(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(prepare, "free_bytes_on", lambda *_: None)
    with pytest.raises(NodeError) as caught:
        prepare._bring(STAGE, STAGE, head(**changes), worker(), cast("Settings", None))
    assert caught.value.message == "docker: the disk of this engine is broken"


@pytest.mark.parametrize("changes", [{"find_image": broken}, {"load_images": broken}])
def test_the_workers_engine_is_named(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(prepare, "free_bytes_on", lambda *_: None)
    with pytest.raises(NodeError) as caught:
        prepare._bring(STAGE, STAGE, head(), worker(**changes), cast("Settings", None))
    assert caught.value.message == "spark-2: docker: the disk of this engine is broken"


def test_another_image_under_the_tag_of_what_was_sent_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prepare, "free_bytes_on", lambda *_: None)
    other = replace(BUILT, layers=("sha256:other",))
    there = iter((None, None, None, other))
    receiver = worker(find_image=lambda _: next(there))
    with pytest.raises(NodeError, match="is another image than spark-1's after it was loaded"):
        prepare._bring(STAGE, STAGE, head(), receiver, cast("Settings", None))
