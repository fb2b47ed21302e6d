"""Images that are pulled, and programs that run another processor's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image.build import _refuse_volumes
from sparkdeploy.image.emulation import refuse_without_emulation
from sparkdeploy.image.pins import ImageInspector, pull_below
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.reports import BuildEvent, RegistryImage
from sparkdeploy.settings import load_settings

from .conftest import MakeStages

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
def stage(make_stages: MakeStages) -> Stage:
    return make_stages("image", image=DIGEST)[0]


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


def test_an_image_for_machines_of_another_kind_is_refused_before_it_is_pulled() -> None:
    told = RegistryImage("sha256:" + "0" * 64, ("arm64/v8", "riscv64"))
    host = cast("DockerHost", SimpleNamespace(registry_image=lambda _: told))
    with pytest.raises(BuildError, match="is for arm64/v8, riscv64, and this machine is x86_64"):
        ImageInspector(host, "x86_64", load_settings()).ask_registry("lab/vllm:v1")
    pin = ImageInspector(host, "aarch64", load_settings()).ask_registry("lab/vllm:v1")
    assert pin.image == f"lab/vllm@{told.digest}"


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


# As Debian's qemu-user-static 7.2 shows it in /proc/sys/fs/binfmt_misc/qemu-aarch64.
AARCH64 = """\
enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: POCF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""
PYTHON = "enabled\ninterpreter /usr/bin/python3.11\nflags: \noffset 0\nmagic a70d0d0a\n"


def registered(folder: Path, text: str, name: str = "qemu-aarch64") -> Path:
    (folder / "register").mkdir()  # cannot be read, like the real one
    (folder / "status").write_text("enabled\n")
    (folder / "python3.11").write_text(PYTHON)
    (folder / name).write_text(text)
    return folder


def test_an_interpreter_that_containers_find_is_enough(tmp_path: Path) -> None:
    # Another name, as other installers give it, says the same.
    folder = registered(tmp_path, AARCH64, "aarch64-by-hand")
    refuse_without_emulation("aarch64", folder)
    with pytest.raises(NodeError, match="cannot run programs for linux/amd64"):
        refuse_without_emulation("x86_64", folder)
    (folder / "qemu-x86_64").write_text(AARCH64.replace("00b700", "003e00"))
    refuse_without_emulation("x86_64", folder)


@pytest.mark.parametrize(
    "text", [AARCH64.replace("POCF", "PO"), AARCH64.replace("enabled", "disabled")]
)
def test_one_that_containers_do_not_find_is_refused_with_its_name(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(NodeError, match="qemu-aarch64 is registered without the flag F") as caught:
        refuse_without_emulation("aarch64", registered(tmp_path, text))
    assert "an F among its flags" in (caught.value.hint or "")


def test_nothing_registered_is_refused_with_what_to_install(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "not-mounted"):
        with pytest.raises(NodeError, match="cannot run programs for linux/arm64") as caught:
            refuse_without_emulation("aarch64", folder)
        assert "apt-get install qemu-user-static binfmt-support" in (caught.value.hint or "")
