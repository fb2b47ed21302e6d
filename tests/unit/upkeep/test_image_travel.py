"""Whose Docker Engine failed while an image went from the head to another node."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy import prepare
from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.node import Node
from tests.fakes.fabric import spark
from tests.fakes.plans import DOCKER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.ssh import SshLink
    from sparkdeploy.settings import Settings

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
