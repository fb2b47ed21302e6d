"""Whole engines for a Spark's processor, on an x86-64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.image.emulation import refuse_without_emulation
from sparkdeploy.node import facts
from sparkdeploy.settings import Settings
from sparkdeploy.upkeep.image_build import StageImage, build_engine
from sparkdeploy.upkeep.images import remove_images

Built = tuple[StageImage, ...]
CPUINFO = "".join(
    f"""\
processor	: {number}
BogoMIPS	: 100.00
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc \
dcpop asimddp
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x3
CPU part	: 0xd0c
CPU revision	: 1

"""
    for number in range(2)
)
"""Two cores of ARM's Neoverse N1. qemu 7.2 shows programs the /proc/cpuinfo of the machine that it
runs on, and torch 2.13 and 2.14 end with a segmentation fault over that of an x86-64."""


def skip_where_nothing_is_emulated() -> None:
    if facts.architecture() != "x86_64":
        pytest.skip("this machine is of a Spark's kind: nothing is emulated")
    try:
        refuse_without_emulation("aarch64")
    except NodeError as error:
        pytest.skip(f"{error.message}; {error.hint}")


@contextlib.contextmanager
def emulated_engine(name: str, settings: Settings) -> Iterator[Built]:
    """Every stage of an engine, or of a recipe's; what was not here before goes again."""
    made = build_engine(name, (), "linux/arm64", settings)
    for stage in made:
        print(stage.stage, stage.tag, f"{stage.size_bytes / 1e9:.2f} GB")
    try:
        yield made
    finally:
        remove_images([stage.tag for stage in reversed(made) if stage.was_built], settings)
