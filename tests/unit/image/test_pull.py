"""The image of others below an engine: pulled in a step of its own, or why it cannot be had."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest

from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image.build import _refuse_volumes
from sparkdeploy.image.pins import pull_below
from sparkdeploy.image.stages import stages_of
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.reports import BuildEvent
from sparkdeploy.settings import load_settings, resources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.host import DockerHost

    from .conftest import LoadEngine

DIGEST = "lab.example/vllm@sha256:" + "0" * 64


@dataclass
class _Host:
    events: tuple[BuildEvent, ...] = ()
    breaks_with: NodeError | None = None
    images: dict[str, ImageFact] = field(default_factory=dict)
    pulled: list[str] = field(default_factory=list)

    def find_image(self, reference: str) -> ImageFact | None:
        return self.images.get(reference)

    def pull(self, reference: str) -> Iterator[BuildEvent]:
        self.pulled.append(reference)
        if self.breaks_with is not None:
            raise self.breaks_with
        yield from self.events


@pytest.fixture
def stage(load: LoadEngine) -> Stage:
    engine = load("image").model_copy(update={"image": DIGEST})
    return stages_of(engine, base_source="registry", architecture="aarch64", resources=resources())[
        0
    ]


def pull(host: _Host, stage: Stage) -> None:
    pull_below(cast("DockerHost", host), stage, load_settings())


@pytest.mark.parametrize(
    "host",
    [
        _Host(breaks_with=NodeError("pull: not found", detail="manifest unknown")),
        _Host((BuildEvent("", error="manifest unknown"),)),
    ],
    ids=["refused", "ended"],
)
def test_a_digest_that_is_gone_has_hints(host: _Host, stage: Stage) -> None:
    with pytest.raises(BuildError, match="could not be pulled") as caught:
        pull(host, replace(stage, pinned_tag="lab.example/vllm:v1"))
    assert caught.value.detail == "manifest unknown"
    for words in ("docker login lab.example`", "--update-image` asks what lab.example/vllm:v1"):
        assert words in (caught.value.hint or "")
    with pytest.raises(BuildError) as caught:
        pull(host, stage)
    assert "--update-image" not in (caught.value.hint or "")


def test_what_is_here_is_not_pulled(stage: Stage) -> None:
    image = ImageFact("sha256:1", (), {}, 1)
    host = _Host(images={DIGEST: image})
    pull(host, stage)
    pull(_Host(), replace(stage, name="base"))
    pull(host, replace(stage, platform="linux/amd64"))
    assert host.pulled == []
    host.images.clear()
    pull(host, stage)
    assert host.pulled == [DIGEST]


@pytest.mark.parametrize("volume", ["/", "/opt", "/opt/venv", "/opt/venv/lib", "/opt/sparkdeploy/"])
def test_an_image_that_would_lose_what_is_added_is_refused(stage: Stage, volume: str) -> None:
    host = _Host(images={DIGEST: ImageFact("sha256:1", (), {}, 1, volumes=("/data", volume))})
    with pytest.raises(BuildError, match=f"it stands on: {volume} is a volume of that image"):
        _refuse_volumes(cast("DockerHost", host), stage, load_settings())
    host = _Host(images={DIGEST: ImageFact("sha256:1", (), {}, 1, volumes=("/data", "/opt/x"))})
    _refuse_volumes(cast("DockerHost", host), stage, load_settings())
