"""Time every cut of TurboQuant's decode kernel side by side, in one run on one card.

`python tests/gpu/kernels/turboquant_rivals.py [--rounds N] [--shape 122B|35B|both]
[--cuts "NAME;NAME"]` prints a Markdown table for each shape: the floor by the read bandwidth of the
same run, and each cut's microseconds a layer and share of the floor's speed. Cuts are
those of `turboquant_tiles.CUTS`; a name with `, not cooperative` behind it starts blocks that wait
for each other by an ordinary launch. Graphs of all cuts take turns, so that a card that slows down
slows all. A cut that fails is named, and the others go on. vLLM is not needed.
"""

# mypy: disable-error-code="import-not-found"

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from turboquant_bench import BARS, CASES, LAYERS, Case, questions, read_bandwidth, say
from turboquant_cache import (
    BIG,
    FORMATS,
    SMALL,
    AttentionLayer,
    Requests,
    Shape,
    attention_of,
    cuda_timing,
    decode_attention,
    new_scratch,
)

# isort: split
from sparkdeploy_vllm.kernels import turboquant_decode
from sparkdeploy_vllm.kernels.turboquant_tiles import (
    CUTS,
    ROWS,
    SHIPPED,
    AttentionTile,
    fitting,
)

ORDINARY = ", not cooperative"
ALL = (*CUTS, f"one launch{ORDINARY}", f"shared, one launch{ORDINARY}")
SHAPES = {"122B": (BIG,), "35B": (SMALL,), "both": (BIG, SMALL)}
SHORTEST = 64
"""Tokens of a context that is nearly none: what a call costs that reads nothing."""
ORDER = (CASES[1], CASES[2], (1, SHORTEST), CASES[0], *CASES[3:])
"""What matters most first."""
SAME = 2e-2
"""Relative distance of two cuts' results, both in BF16; a wrong one is further off."""


def main() -> int:
    """Print the tables; 1 when a cut failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="replays per figure (median)")
    parser.add_argument("--shape", choices=SHAPES, default="both")
    parser.add_argument("--cuts", default=";".join(ALL), help="names with ; between them")
    parser.add_argument("--limit-s", type=float, default=140, help="no case begins after that")
    options = parser.parse_args()
    until = time.monotonic() + options.limit_s
    cuts = tuple(name.strip() for name in options.cuts.split(";"))
    read_bytes_s = read_bandwidth(options.rounds)
    say(f"card: {torch.cuda.get_device_name()}; torch {torch.__version__}")
    say(f"it reads {read_bytes_s / 1e12:.2f} TB/s")
    faults: list[str] = []
    for shape in SHAPES[options.shape]:
        faults += compare_shape(shape, cuts, read_bytes_s, options.rounds, until)
    say("\n" + ("all cuts ran" if not faults else "\n".join(faults)))
    return 1 if faults else 0


def compare_shape(
    shape: Shape, cuts: tuple[str, ...], read_bytes_s: float, rounds: int, until: float
) -> list[str]:
    """Print the table of a shape; return what failed, or found no time."""
    say(f"\n{shape}, microseconds a layer (share of the floor's speed)\n")
    say(f"| format | requests x tokens | floor | wanted | {' | '.join(cuts)} |")
    say("|---" * (4 + len(cuts)) + "|")
    faults = []
    for requests, length in ORDER:
        for name in FORMATS:
            if time.monotonic() > until:
                faults.append(f"{shape.name} {name} {requests} x {length}: no time left")
            else:
                case = Case(shape, requests, length)
                faults += compare(case, name, cuts, read_bytes_s, rounds)
    return faults


def compare(
    case: Case, name: str, cuts: tuple[str, ...], read_bytes_s: float, rounds: int
) -> list[str]:
    """Print a row; return what failed."""
    attention = attention_of(case.shape, name)
    floor_us = case.cells * attention.slot.slot_bytes / read_bytes_s * 1e6
    what, asked = f"{case.shape.name} {name} {case.length}", questions(case, attention)
    graphs, results, faults = {}, {}, []
    for cut in cuts:
        try:
            graphs[cut], results[cut] = graph_of(cut, attention, *asked)
        except Exception as fault:  # noqa: BLE001 - the other cuts are still timed
            faults.append(f"{what}: {cut}: {fault}")
    times_ms = cuda_timing.median_ms(list(graphs.values()), rounds)
    found = {cut: ms / LAYERS * 1e3 for cut, ms in zip(graphs, times_ms, strict=True)}
    cells = [
        f"{found[cut]:.1f} ({floor_us / found[cut]:.2f})" if cut in found else "-" for cut in cuts
    ]
    label = f"{case.requests} x {case.length:,} | {floor_us:.1f} | {BARS[name]}"
    say(f"| {name} | {label} | {' | '.join(cells)} |")
    return faults + unlike(results, what)


def unlike(results: dict[str, torch.Tensor], what: str) -> list[str]:
    """Cuts whose result is not that of most: the median, number by number."""
    if not results:
        return []
    middle = torch.stack(list(results.values())).median(0).values
    far = {cut: float((one - middle).norm() / middle.norm()) for cut, one in results.items()}
    return [f"WRONG: {what}: {cut} is {by:.2g} off" for cut, by in far.items() if not by < SAME]


def graph_of(
    cut: str,
    attention: AttentionLayer,
    pages: list[torch.Tensor],
    query: torch.Tensor,
    requests: Requests,
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A launch for each layer's pages, and what the last of them gave, FP32."""
    tile = tile_of(cut, attention)
    out, scratch = torch.empty_like(query), new_scratch(attention, query, requests)

    def launch(turn: int) -> None:
        decode_attention(attention, query, pages[turn], requests, out, scratch, tile)

    with started(cut):
        graph = cuda_timing.captured(launch, len(pages))
    torch.cuda.synchronize()
    return graph, out.float()


def tile_of(cut: str, attention: AttentionLayer) -> AttentionTile:
    major = torch.cuda.get_device_capability()[0]
    tiles = CUTS[cut.removesuffix(ORDINARY)]
    rows = min(ROWS, attention.group)
    tile = fitting(tiles, SHIPPED[major].shared_bytes, attention.slot, attention.kv_heads, rows)
    if tile is None:
        raise ValueError("no tile fits")
    return tile


@contextmanager
def started(cut: str) -> Iterator[None]:
    """Launches in here are cooperative or not, as the cut's name says."""
    before = turboquant_decode.IS_COOPERATIVE
    turboquant_decode.IS_COOPERATIVE = not cut.endswith(ORDINARY)
    try:
        yield
    finally:
        turboquant_decode.IS_COOPERATIVE = before


if __name__ == "__main__":
    raise SystemExit(main())
