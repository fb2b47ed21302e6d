"""What two clients said of the same load, turn by turn, and the table of both."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from sparkdeploy.bench.figures import quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.bench.record import Cell

    Served = Sequence[Mapping[str, float]]

TOLD = "vllm:time_to_first_token_seconds"
OURS, THEIRS = "ours", "vllm"
JUDGED = ("throughput", "goodput", "TTFT", "TPOT", "gap", "end to end", "connecting and TTFT")
"""How the names of the figures begin that both should tell alike."""


@dataclass(frozen=True, slots=True)
class Turn:
    client: str
    figures: dict[str, float]
    """In the unit that the name ends with."""
    ttft_s: list[float] = field(default_factory=list)
    """Of each request, in the order of their moments."""


def our_turn(cell: Cell, moments_s: Sequence[float], served: Served) -> Turn:
    load, gaps = cell.load, cell.latency.gap_s
    assert load is not None
    assert gaps is not None
    samples = cell.samples
    began_s = [item.sent_s - item.connect_s for item in samples]
    ttft_s = [item.ttft_s or 0.0 for item in samples]
    with_connecting_s = [wait + item.connect_s for wait, item in zip(ttft_s, samples, strict=True)]
    figures = {
        "completed": float(load.requests - load.failures),
        "duration, s": load.window_s,
        "throughput, requests/s": load.completed_per_s,
        "throughput, tokens/s": load.completion_tok_s,
        "goodput, requests/s": load.goodput_per_s or 0.0,
        **spread("TTFT", ttft_s, (50, 90, 99)),
        **spread("TPOT", (item.tpot_s or 0.0 for item in samples), (50,)),
        "gap mean, ms": gaps.mean * 1000,
        "gap p50, ms": gaps.p50 * 1000,
        "gap p99, ms": gaps.p99 * 1000,
        **spread("end to end", (item.duration_s for item in samples), (50, 90, 99)),
        **lateness(began_s, moments_s),
        "connecting mean, ms": statistics.fmean(item.connect_s for item in samples) * 1000,
        **spread("connecting and TTFT", with_connecting_s, (50,)),
        **against_server(ttft_s, served),
    }
    return Turn(OURS, figures, ttft_s)


def their_turn(report: Mapping[str, Any], moments_s: Sequence[float], served: Served) -> Turn:
    ttft_s: list[float] = report["ttfts"]
    told = (
        ("TTFT", "ttft", (50, 90, 99)),
        ("TPOT", "tpot", (50,)),
        ("gap", "itl", (50, 99)),
        ("end to end", "e2el", (50, 90, 99)),
    )
    figures = {
        "completed": float(report["completed"]),
        "duration, s": report["duration"],
        "throughput, requests/s": report["request_throughput"],
        "throughput, tokens/s": report["output_throughput"],
        "goodput, requests/s": report["request_goodput"],
    }
    for name, theirs, percents in told:
        figures[f"{name} mean, ms"] = report[f"mean_{theirs}_ms"]
        for percent in percents:
            figures[f"{name} p{percent}, ms"] = report[f"p{percent}_{theirs}_ms"]
    figures |= spread("connecting and TTFT", ttft_s, (50,))
    figures |= lateness(report["start_times"], moments_s) | against_server(ttft_s, served)
    return Turn(THEIRS, figures, ttft_s)


def told_waits(url: str) -> tuple[float, float] | None:
    """Return vLLM's own sum of times to the first token, in seconds, and their count."""
    try:
        with urlopen(f"{url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    both = [
        sum(
            float(value)
            for value in re.findall(rf"^{TOLD}_{part}(?:{{[^}}]*}})? (\S+)", text, re.M)
        )
        for part in ("sum", "count")
    ]
    return (both[0], both[1]) if both[1] else None


def over_server(
    turn: Turn, before: tuple[float, float] | None, after: tuple[float, float] | None
) -> dict[str, float]:
    """Return vLLM's mean between the two, and how far the client's is over it.

    Our client's turn has one request more, asked before the others.
    """
    if before is None or after is None or after[1] == before[1]:
        return {}
    mean_ms = 1000 * (after[0] - before[0]) / (after[1] - before[1])
    return {
        "TTFT by the server's own clock, mean, ms": mean_ms,
        "TTFT over the server's mean, ms": turn.figures["TTFT mean, ms"] - mean_ms,
    }


def spread(name: str, values: Iterable[float], percents: Sequence[int]) -> dict[str, float]:
    ordered = sorted(values)
    told = {f"{name} mean, ms": statistics.fmean(ordered) * 1000}
    return told | {
        f"{name} p{percent}, ms": quantile(ordered, percent / 100) * 1000 for percent in percents
    }


def lateness(began_s: Sequence[float], moments_s: Sequence[float]) -> dict[str, float]:
    """How long after its moment each request began, counted from the one that was least late.

    Neither client tells when its clock began; its best request is taken for punctual.
    """
    late = [began - moment for began, moment in zip(began_s, moments_s, strict=True)]
    ordered = sorted(item - min(late) for item in late)
    return {
        "begun late p50, ms": quantile(ordered, 0.5) * 1000,
        "begun late at most, ms": ordered[-1] * 1000,
    }


def against_server(ttft_s: Sequence[float], served: Served) -> dict[str, float]:
    """By how much the client's waits are longer than the server's own, from reading to writing."""
    if not served:
        return {}
    own_s = [item["first_token_s"] - item["received_s"] for item in served]
    more = sorted(told - own for told, own in zip(ttft_s, own_s, strict=True))
    return {
        "TTFT the server saw, mean, ms": statistics.fmean(own_s) * 1000,
        "TTFT over the server's p50, ms": quantile(more, 0.5) * 1000,
        "TTFT over the server's at most, ms": more[-1] * 1000,
        "new connections": sum(item["is_new_connection"] for item in served),
    }


def table(turns: Sequence[Turn], *, within: float) -> str:
    """Return both clients' medians and ranges; `within` is a share that differences are held to."""
    mine, other = ([turn for turn in turns if turn.client == client] for client in (OURS, THEIRS))
    if not mine or not other:
        return "There was no time for a turn of each client."
    lines = [
        "| | ours: median (range) | vllm: median (range) | apart | range of ours | of vllm's |",
        "|---|---|---|---|---|---|",
    ]
    over = []
    for name in mine[0].figures | other[0].figures:
        one, two = ([turn.figures.get(name) for turn in side] for side in (mine, other))
        is_judged = name.startswith(JUDGED) and "server" not in name
        apart = _apart(one, two) if is_judged else None
        lines.append(f"| {name} | {' | '.join(_cells(one, two, apart))} |")
        if apart is not None and abs(apart) > within:
            over.append(f"{name} {apart:+.1%}{_overlap(one, two)}")
    words = ", ".join(over) or "none"
    lines += ["", f"Medians apart by more than {within:.0%}: {words}.", *_one_by_one(mine, other)]
    return "\n".join(lines)


def _overlap(one: list[float | None], two: list[float | None]) -> str:
    """Say so where a turn of one client lies among the other's: that difference may be chance."""
    mine, other = _known(one), _known(two)
    is_shared = max(min(mine), min(other)) <= min(max(mine), max(other))
    return " (their ranges overlap)" if is_shared else ""


def _cells(one: list[float | None], two: list[float | None], apart: float | None) -> Iterator[str]:
    yield from (_range(side) for side in (one, two))
    yield "-" if apart is None else f"{apart:+.2%}"
    yield from (_spread(side) for side in (one, two))


def _apart(one: list[float | None], two: list[float | None]) -> float | None:
    mine, other = _known(one), _known(two)
    if not mine or not other or not statistics.median(other):
        return None
    return statistics.median(mine) / statistics.median(other) - 1


def _range(side: list[float | None]) -> str:
    known = _known(side)
    if not known:
        return "-"
    return f"{statistics.median(known):.2f} ({min(known):.2f} to {max(known):.2f})"


def _spread(side: list[float | None]) -> str:
    """From the least to the most of one client's turns, of their median."""
    known = _known(side)
    middle = statistics.median(known) if known else 0.0
    return f"{(max(known) - min(known)) / middle:.2%}" if middle else "-"


def _known(side: list[float | None]) -> list[float]:
    return [value for value in side if value is not None]


def _one_by_one(mine: Sequence[Turn], other: Sequence[Turn]) -> Iterator[str]:
    apart = sorted(
        abs(a - b) * 1000
        for one, two in zip(mine, other, strict=False)
        for a, b in zip(one.ttft_s, two.ttft_s, strict=True)
    )
    yield ""
    yield (
        f"TTFT of the same request, turn by turn: {quantile(apart, 0.5):.2f} ms apart at the "
        f"median, {quantile(apart, 0.9):.2f} at the 90th percentile, {apart[-1]:.2f} at most."
    )
