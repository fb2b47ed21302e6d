"""What made a run: recipe, images, checkpoint, engine, machine, client. All of it is optional.

An endpoint known by its URL alone tells little; a deployment of ours tells everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# No `from __future__ import annotations` and no TYPE_CHECKING here: pydantic reads the types.


@dataclass(frozen=True, slots=True)
class RecipeOrigin:
    """The recipe that was deployed, with everything it inherits filled in."""

    name: str
    fingerprint: str
    """sha256 of `values` as sorted JSON: two runs with equal ones had the same recipe."""
    title: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    floor_tok_s: float | None = None
    """What `--gate` holds `decode`'s figure against; the recipe's `expect.decode_tok_s`."""
    floor_source: str = ""


@dataclass(frozen=True, slots=True)
class ImageOrigin:
    """The image the container runs."""

    reference: str
    image_id: str
    fingerprint: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What was found in it at build: vllm, torch, cuda, the plugin..."""


@dataclass(frozen=True, slots=True)
class CheckpointOrigin:
    """The weights that were mounted."""

    source: str
    """A repository on the hub, or a folder."""
    revision: str | None = None
    manifest_fingerprint: str | None = None
    """The fingerprint in the prepared checkpoint's sparkdeploy.json; None for stock weights."""
    treatment: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineOrigin:
    """The server as its own log and answers describe it."""

    version: str | None = None
    flags: str = ""
    """`non-default args` of the live log, in the engine's own words."""
    attention_backend: str | None = None
    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    fp8_layers: int | None = None
    lm_head: str | None = None


@dataclass(frozen=True, slots=True)
class MachineOrigin:
    """The machine that served. For a bare URL nothing is known of it."""

    product: str = ""
    """As the firmware names it: `NVIDIA DGX Spark`."""
    architecture: str = ""
    kernel: str = ""
    cpu_count: int | None = None
    memory_bytes: int | None = None
    gpu: str | None = None
    driver: str | None = None
    docker: str | None = None


@dataclass(frozen=True, slots=True)
class ClientOrigin:
    """What asked and counted."""

    sparkdeploy: str
    python: str
    machine: str = ""
    """`here` when it ran on the machine that served, otherwise how the server was reached."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Everything that made a run."""

    url: str
    model: str
    """The served name."""
    client: ClientOrigin
    deployment: str | None = None
    """The deployment's name; None for a bare URL."""
    recipe: RecipeOrigin | None = None
    images: tuple[ImageOrigin, ...] = ()
    checkpoint: CheckpointOrigin | None = None
    engine: EngineOrigin | None = None
    machine: MachineOrigin | None = None
