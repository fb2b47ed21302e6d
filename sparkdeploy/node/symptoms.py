"""What tells of a machine that gets slowly worse: one look of about a second, and its reading."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from sparkdeploy.node.facts import Machine, output_or_none

SCRIPT = Path(__file__).with_name("symptoms.sh").read_text(encoding="utf-8")
TIMEOUT_S = 2.0
_SECTION = re.compile(r"^== ([a-z]+)\n", re.MULTILINE)
_FULL_STALL = re.compile(r"^full avg10=([0-9]+(?:\.[0-9]+)?) ", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """How hard the first GPU works at one moment; None means that the driver did not say."""

    name: str
    utilization_percent: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    power_w: float | None = None
    slowdown_bits: int = 0
    """Why its clock is held down: NVML's bits of clocks_event_reasons."""


@dataclass(frozen=True, slots=True)
class HealthSample:
    at_s: float
    """Since the machine started."""
    swapped_in_pages: int | None = None
    swapped_out_pages: int | None = None
    gpu: GpuSample | None = None


@dataclass(frozen=True, slots=True)
class SymptomFact:
    """What one look told; None or nothing where it could not be read."""

    samples: tuple[HealthSample, ...] = ()
    page_bytes: int | None = None
    free_blocks: tuple[int, ...] = ()
    """How many blocks of 1, 2, 4, ... pages are free, of all zones together."""
    stalled_percent: float | None = None
    """Of the last ten seconds, in which every program waited for memory."""
    kernel: str | None = None
    kernel_options: frozenset[str] = frozenset()
    firmware: Mapping[str, str] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()
    """Names of what runs, of 15 letters at most."""
    gpu_links: int | None = None
    """How many of NVIDIA's devices have a link in /dev/char."""
    driver_log: tuple[str, ...] | None = None
    """The GPU driver's lines in the kernel's log since the start; None: it may not be read."""


def look_for_symptoms(machine: Machine) -> SymptomFact:
    """Look once; a machine without a shell or one that is too slow tells nothing."""
    output = output_or_none(machine, ("sh", "-c", SCRIPT), timeout_s=TIMEOUT_S)
    return read_symptoms(output or "")


def read_symptoms(text: str) -> SymptomFact:
    """Read the script's answer; what has another shape is left out, and nothing raises."""
    _, *parts = _SECTION.split(text)
    sections = list(zip(parts[::2], parts[1::2], strict=False))
    parts_by_name = dict(sections)
    kernel, _, options = parts_by_name.get("kernel", "").partition("\n")
    stalled = _FULL_STALL.search(parts_by_name.get("pressure", ""))
    return SymptomFact(
        samples=tuple(_health_samples(body for name, body in sections if name == "look")),
        page_bytes=_number(parts_by_name.get("page", "").strip()),
        free_blocks=read_free_blocks(parts_by_name.get("blocks", "")),
        stalled_percent=float(stalled[1]) if stalled else None,
        kernel=kernel.strip() or None,
        kernel_options=frozenset(options.split()),
        firmware=_pairs(parts_by_name.get("firmware", "")),
        programs=frozenset(
            filter(None, map(str.strip, parts_by_name.get("programs", "").splitlines()))
        ),
        gpu_links=_number(parts_by_name.get("links", "").strip()),
        driver_log=tuple(parts_by_name["log"].splitlines()) if "log" in parts_by_name else None,
    )


def read_free_blocks(text: str) -> tuple[int, ...]:
    """Read a /proc/buddyinfo: `Node 0, zone Normal 5 3 ...`, a column for each size of block."""
    zones = re.findall(r"^.*?zone[ \t]+\S+((?:[ \t]+[0-9]+)+)[ \t]*$", text, re.MULTILINE)
    # A zone without any page of the larger sizes has its columns all the same.
    columns = zip_longest(*(map(int, zone.split()) for zone in zones), fillvalue=0)
    return tuple(map(sum, columns))


def _health_samples(bodies: Iterator[str]) -> Iterator[HealthSample]:
    for body in bodies:
        uptime, _, rest = body.partition("\n")
        at_s = _measure(uptime.partition(" ")[0])
        parts_by_name = _pairs(rest)
        if at_s is not None:
            yield HealthSample(
                at_s,
                _number(parts_by_name.get("pswpin", "")),
                _number(parts_by_name.get("pswpout", "")),
                _gpu_sample(parts_by_name.get("gpu", "").split(",")),
            )


def _gpu_sample(fields: Sequence[str]) -> GpuSample | None:
    if len(fields) != 6:
        return None
    name, bits = fields[0].strip(), fields[5].strip()
    utilization, clock, max_clock, power = map(_measure, fields[1:5])
    is_hex = re.fullmatch(r"0x[0-9a-fA-F]{1,16}", bits) is not None
    return GpuSample(name, utilization, clock, max_clock, power, int(bits, 16) if is_hex else 0)


def _pairs(text: str) -> dict[str, str]:
    pairs = (line.strip().partition(" ") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs if value.strip()}


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _measure(text: str) -> float | None:
    plain = text.strip()
    return float(plain) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", plain, re.ASCII) else None
