"""What a GPU is doing at this moment: clock, temperature, power."""

from __future__ import annotations

from dataclasses import dataclass

LOAD_QUERY = (
    "nvidia-smi",
    "--query-gpu=clocks.sm,temperature.gpu,power.draw",
    "--format=csv,noheader,nounits",
)


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One look at the first GPU; None means that the driver did not say."""

    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


def parse_gpu_load(output: str) -> GpuLoad | None:
    """Read the first line of LOAD_QUERY's output; None for any other shape."""
    fields = [field.strip() for field in output.strip().partition("\n")[0].split(",")]
    return GpuLoad(*map(_number, fields)) if len(fields) == 3 else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
