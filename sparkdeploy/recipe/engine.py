"""The format of an engine's file: where vLLM comes from, and what its image stands on."""

from typing import Annotated, Literal

from pydantic import Field

from sparkdeploy.about import about
from sparkdeploy.recipe.fields import (
    NAME_PATTERN,
    FormatVersion,
    ImageReference,
    PositiveInt,
    Printable,
    Strict,
    VllmRelease,
)


class DebianBase(Strict):
    """The base stage made from Debian packages where no registry answers."""

    suite: Annotated[
        str, Field(pattern=r"^[a-z]+$"), about("Debian's name of the release.", "bookworm")
    ]


class Base(Strict):
    """The lowest image stage: a registry image, and the distribution packages added to it."""

    image: Annotated[
        str, Field(pattern=r"^[\w][\w./:@-]*$"), about("What it is FROM.", "debian:bookworm-slim")
    ]
    packages: Annotated[
        list[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]],
        about("Distribution packages that are added.", ["python3", "gcc"]),
    ]
    debian: DebianBase | None = None
    python: Annotated[
        str, Field(pattern=r"^3\.\d+$"), about("The Python that it has, in quotes.", "3.11")
    ]


class SourceBuild(Strict):
    """vLLM compiled rather than installed: from what, and what the machine must have for it."""

    sdist_sha256: Annotated[
        str, Field(pattern=r"^[0-9a-f]{64}$"), about("Of the release's sdist.", "0" * 64)
    ]
    ref: Annotated[
        Annotated[str, Field(pattern=r"^\w+([./-]\w+)*$")] | None,
        about(
            "A git ref of vLLM's repository that takes the place of the sdist.",
            "v0.19.1",
            unset="the sdist",
        ),
    ] = None
    disk_gb: Annotated[PositiveInt, about("What the build needs free.", 60, unit="GB")]
    memory_gib: Annotated[PositiveInt, about("What the build needs.", 64, unit="GiB")]


class Engine(Strict):
    """Where vLLM comes from, and what its image stands on."""

    schema_version: FormatVersion
    name: Annotated[
        str,
        Field(pattern=NAME_PATTERN),
        about("What recipes call it; the file is called so too.", "cuda-0.33"),
    ]
    title: Annotated[Printable, about("One line for people.", "vLLM 0.33.0 from wheels")]
    kind: Annotated[
        Literal["wheel", "source", "image", "cpu"],
        about(
            "`wheel`: installed. `source`: compiled. `image`: one of others. `cpu`: the CPU build, "
            "for rehearsals.",
            "wheel",
        ),
    ]
    vllm: Annotated[VllmRelease, about("Its release of vLLM.", "0.33.0")]
    torch: Annotated[
        Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")] | None,
        about("The release of torch beside it.", "2.14.0", unset="what the image holds"),
    ] = None
    cuda: Annotated[
        Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None,
        about("The CUDA of these wheels, in quotes.", "13.0", unset="none, or the image's"),
    ] = None
    base: Base | None = None
    lock: Annotated[
        Annotated[str, Field(pattern=NAME_PATTERN)] | None,
        about("The engine whose lock this one uses.", "cuda-0.33", unset="its own"),
    ] = None
    image: Annotated[
        ImageReference | None,
        about(
            "For kind `image`: an existing one, by digest, local id or tag.",
            "vllm/vllm-openai:v0.33.0",
            unset="the recipe names one",
        ),
    ] = None
    device: Annotated[
        Literal["cuda", "cpu"] | None,
        about(
            "What an existing image runs on; a CPU build of torch is refused for `cuda`.",
            "cpu",
            unset="`cuda`; `cpu` for kind `cpu`",
        ),
    ] = None
    torch_arch_list: Annotated[
        Annotated[str, Field(pattern=r"^[0-9a-z.; +]+$")] | None,
        about(
            "For kind `source`: which GPUs are compiled for.", "12.1a", unset="needed for `source`"
        ),
    ] = None
    source: SourceBuild | None = None
    build_bytes: Annotated[
        Annotated[int, Field(ge=0)] | None,
        about(
            "What all stages take on Docker's disk at the height of a build, as measured.",
            24_000_000_000,
            unit="bytes",
            unset="not known",
        ),
    ] = None
    note: Annotated[
        Printable | None, about("A remark for readers.", "Never compiled here.", unset="none")
    ] = None

    @property
    def runs_on(self) -> Literal["cuda", "cpu"]:
        return self.device or ("cpu" if self.kind == "cpu" else "cuda")
