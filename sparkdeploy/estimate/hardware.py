"""Machines a recipe may run on: memory, bandwidth, and how long a decode step takes on them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparkdeploy.errors import UsageError
from sparkdeploy.node.facts import Architecture, GpuFact
from sparkdeploy.recipe.document import read_document
from sparkdeploy.settings import resources

HERE = "here"


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """A recipe's speed on a machine of one kind, as a record has it."""

    recipe: str
    end_to_end_tok_s: float


@dataclass(frozen=True, slots=True)
class StepFit:
    """How a decode step's bytes and layers become time, fitted to figures that others published."""

    layer_us: float
    """What each layer costs beside its bytes: launches, and kernels that wait for each other."""
    bandwidth_share: float
    nvfp4_dense_share: float
    """The share that dense NVFP4 matrices reach: fitted to one figure."""
    figures: int
    """How many the first two are fitted to."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Memory in bytes, its bandwidth in bytes a second, and where both come from."""

    name: str
    title: str
    memory_bytes: int
    bandwidth_bytes_s: float
    source: str
    shares_memory: bool = True
    """Whether what vLLM takes is taken from the machine itself, which must keep its floor."""
    mxfp4_tile: tuple[int, int] = (1, 1)
    """Hidden and inner widths are padded to multiples of these in MXFP4 experts."""
    gpu: str | None = None
    """What its GPU's name contains."""
    architecture: Architecture = "x86_64"
    fit: StepFit | None = None
    """None where nobody published a measurement: speeds are then upper bounds."""


def facts_folder() -> Path:
    return resources() / "recipes" / "facts"


def read_hardware(path: Path) -> Mapping[str, Hardware]:
    table = read_document(path).content["hardware"]
    return {
        name: Hardware(
            name,
            **entry
            | {
                "mxfp4_tile": tuple(entry["mxfp4_tile"]),
                "fit": StepFit(**entry["fit"]) if "fit" in entry else None,
            },
        )
        for name, entry in table.items()
    }


def hardware_seen(
    gpu: GpuFact | None, table: Mapping[str, Hardware], *, memory_bytes: int, copy_bytes_s: float
) -> Hardware:
    """Return the machine at hand: its GPU's row with its own memory, or its measured memory.

    `copy_bytes_s` is what one core moves, read and written, where no GPU of the table is seen. A
    GPU without memory of its own, as on a Spark, has the machine's.
    """
    gpu_name, own_bytes = (gpu.name, gpu.memory_bytes) if gpu is not None else ("", None)
    for known in table.values():
        if known.gpu is not None and known.gpu in gpu_name:
            return replace(known, memory_bytes=own_bytes or memory_bytes)
    return Hardware(
        name=HERE,
        title=gpu_name or "this machine, which has no GPU",
        memory_bytes=own_bytes or memory_bytes,
        bandwidth_bytes_s=copy_bytes_s,
        source="measured now: one core copying memory, read and written bytes counted",
        shares_memory=own_bytes is None,
        gpu=gpu_name or None,
    )


def hardware_named(name: str, table: Mapping[str, Hardware]) -> Hardware:
    for known in table.values():
        if name.lower() in {known.name, (known.gpu or "").lower()}:
            return known
    raise UsageError(
        f"there is no hardware {name}", hint="known: " + ", ".join([*sorted(table), HERE])
    )
