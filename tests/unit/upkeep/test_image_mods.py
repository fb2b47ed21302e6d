"""`image show` of an image with mods."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import pytest

from sparkdeploy import labels
from sparkdeploy.errors import UsageError
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep import images as image_shelf


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
