"""The format of an engine's file: where vLLM comes from, and what its image stands on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparkdeploy.recipe.fields import (
    NAME_PATTERN,
    ImageReference,
    PositiveInt,
    Printable,
    Strict,
    VllmRelease,
)


class DebianBase(Strict):
    """The base stage made from Debian packages where no registry answers."""

    suite: Annotated[str, Field(pattern=r"^[a-z]+$")]


class Base(Strict):
    """The lowest image stage: a registry image, and the distribution packages added to it."""

    image: Annotated[str, Field(pattern=r"^[\w][\w./:@-]*$")]
    packages: list[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]]
    debian: DebianBase | None = None
    python: Annotated[str, Field(pattern=r"^3\.\d+$")]


class SourceBuild(Strict):
    """vLLM compiled rather than installed: from what, and what the machine must have for it."""

    sdist_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    ref: Annotated[str, Field(pattern=r"^\w+([./-]\w+)*$")] | None = None
    """A git ref of vLLM's repository that takes the place of the sdist."""
    disk_gb: PositiveInt
    memory_gib: PositiveInt


class Engine(Strict):
    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    title: Printable
    kind: Literal["wheel", "source", "image", "cpu"]
    vllm: VllmRelease
    torch: Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")] | None = None
    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    base: Base | None = None
    lock: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """The engine whose lock this one uses; its own when left out."""
    image: ImageReference | None = None
    """For kind `image`: an existing one, by digest, local id or tag."""
    device: Literal["cuda", "cpu"] | None = None
    """What an existing image runs on; a CPU build of torch is refused for `cuda`, the default."""
    torch_arch_list: Annotated[str, Field(pattern=r"^[0-9a-z.; +]+$")] | None = None
    source: SourceBuild | None = None
    """For kind `source`."""
    build_bytes: Annotated[int, Field(ge=0)] | None = None
    """What all stages take on Docker's disk at the height of a build, as measured."""
    note: Printable | None = None

    @property
    def runs_on(self) -> Literal["cuda", "cpu"]:
        return self.device or ("cpu" if self.kind == "cpu" else "cuda")
