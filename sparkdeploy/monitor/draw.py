"""The watch's screen: a snapshot as lines of so many columns, at most so many of them.

A field is whole or is not there, so that no figure is cut; `-` stands for what is not known.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from sparkdeploy.monitor.snapshot import (
    GIB,
    DeploymentState,
    NodeSample,
    Percentiles,
    WatchedDeployment,
    WatchSnapshot,
)
from sparkdeploy.terminal.style import (
    Line,
    Piece,
    Style,
    clipped,
    line_cells,
    line_of,
    plain_text,
)
from sparkdeploy.units import format_seconds, in_seconds

TITLE = "sparkdeploy status --watch"
KEYS = "q leaves"
NAME_COLUMNS = 20
UNKNOWN = "-"
BETWEEN = "   "
BLOCKS = "▁▂▃▄▅▆▇█"
FULL = 0.9
"""Of the KV cache: beyond it requests are soon preempted."""
CLOSE_BYTES = GIB
"""So near to the floor a machine is in danger."""
_INKS = {
    DeploymentState.SERVING: Style.GOOD,
    DeploymentState.STARTING: Style.CAUTION,
    DeploymentState.WORKER: Style.PLAIN,
    DeploymentState.STOPPED: Style.QUIET,
}


def screen_of(snapshot: WatchSnapshot, columns: int, rows: int) -> tuple[Line, ...]:
    """Return the lines of a screen: as much as fits, each figure whole."""
    head = _head(snapshot, columns)
    body: tuple[Line, ...] = ()
    looks = tuple(line for node in snapshot.nodes for line in _node(node, snapshot.at, columns))
    nodes = ((), *looks) if looks else ()
    blocks = (_block(item, snapshot.at, columns) for item in snapshot.deployments)
    whole = tuple(line for block in blocks for line in ((), *block))
    for body in (whole, tuple(_row(item, snapshot.at, columns) for item in snapshot.deployments)):
        if len(lines := (*head, *body, *nodes)) <= rows:
            return lines
    room = max(rows - len(head) - 1, 0)
    rest = (*body, *nodes)
    left = f"and {len(rest) - room} more lines: a higher terminal shows them"
    return (*head, *rest[:room], line_of(Piece(left, Style.CAUTION)))[:rows]


def _head(snapshot: WatchSnapshot, columns: int) -> tuple[Line, ...]:
    right = f"{clock(snapshot.at)}   {KEYS}"
    blanks = " " * max(columns - len(TITLE) - len(right), 1)
    lines = [line_of(Piece(TITLE, Style.STRONG), blanks, Piece(right, Style.QUIET))]
    if snapshot.problem:
        lines += _wrapped(snapshot.problem, columns, Style.BAD, most_lines=1)
    if not snapshot.deployments:
        lines.append(line_of("nothing is deployed; what `sparkdeploy up` starts appears here"))
    return tuple(lines)


def _block(item: WatchedDeployment, now: datetime, columns: int) -> tuple[Line, ...]:
    lines = [fitted(_title(item, now), columns), *_wrapped(item.note, columns, Style.BAD)]
    if item.life is not DeploymentState.WORKER and item.life is not DeploymentState.STOPPED:
        lines.append(_speed_line(item, columns))
        lines += flow(_figures(item), columns)
    error = f"last error: {item.last_error}" if item.last_error else ""
    return (*lines, *_wrapped(error, columns, Style.CAUTION))


def _wrapped(text: str, columns: int, ink: Style, most_lines: int = 2) -> Iterator[Line]:
    rows = textwrap.wrap(text, max(columns - 2, 1), max_lines=most_lines, placeholder="...")
    yield from (line_of("  ", Piece(row, ink)) for row in rows)


def _title(item: WatchedDeployment, now: datetime) -> tuple[Line, ...]:
    up = f"up {ago(item.up_since, now)}" if item.up_since is not None else ""
    return (
        line_of(Piece(clipped(item.name, NAME_COLUMNS), Style.STRONG)),
        line_of(_state(item, now)),
        line_of(up),
        line_of("" if item.life.is_gone else item.url),
        line_of(item.recipe),
        line_of(Piece(item.model, Style.QUIET)),
    )


def _state(item: WatchedDeployment, now: datetime) -> Piece:
    if not item.life.is_gone:
        return Piece(item.state, _INKS[item.life])
    since = (
        f" since {clock(item.gone_since)} ({ago(item.gone_since, now)})" if item.gone_since else ""
    )
    return Piece(f"gone: {item.state}{since}", _INKS.get(item.life, Style.BAD))


def _speed_line(item: WatchedDeployment, columns: int) -> Line:
    figures = item.figures
    now = _now(item)
    peak = f"  peak {rate(max(figures.rates))}" if figures.rates else ""
    start = f"  {now:>7} tokens/s  "
    curve = sparkline(figures.rates, columns - len(start) - len(peak))
    return line_of(Piece(start, Style.STRONG), Piece(curve, Style.GOOD), Piece(peak, Style.QUIET))


def _now(item: WatchedDeployment) -> str:
    """Return the rate of now: of what is gone nothing comes."""
    return UNKNOWN if item.life.is_gone else rate(item.figures.tokens_per_s)


def _figures(item: WatchedDeployment) -> tuple[Line, ...]:
    """Return the figures, the main ones first."""
    figures = item.figures
    lately, restarts = figures.preempted_lately, item.restarts
    newly = f", {number(lately)} in the last minute" if lately else ""
    a_minute, usage = figures.requests_a_minute, figures.kv_usage
    is_full = usage is not None and usage > FULL
    written, read = number(figures.generated_tokens), number(figures.prompt_tokens)
    return (
        field("requests", f"{number(figures.running)} running, {number(figures.waiting)} waiting"),
        field("", "" if a_minute is None else f"{a_minute:,.0f} a minute"),
        field("first token", pair(figures.first_token)),
        field("gap", pair(figures.gap)),
        field("drafts accepted", percents(figures.accepted)) if figures.accepted else (),
        field("prefix hits", percent(figures.prefix_hits)),
        field("KV cache", Piece(percent(usage), Style.CAUTION if is_full else Style.PLAIN)),
        field("preemptions", number(figures.preemptions) + newly),
        field("served", f"{written} tokens written, {read} read"),
        field("restarts", Piece(str(restarts), Style.CAUTION if restarts else Style.PLAIN)),
    )


def _with_speed(item: WatchedDeployment) -> tuple[Line, ...]:
    return (line_of(Piece(f"{_now(item)} tokens/s", Style.STRONG)), *_figures(item))


def _row(item: WatchedDeployment, now: datetime, columns: int) -> Line:
    name = line_of(Piece(f"{clipped(item.name, NAME_COLUMNS):<{NAME_COLUMNS}}", Style.STRONG))
    if item.life is not DeploymentState.SERVING:
        return fitted((name, line_of(_state(item, now))), columns)
    return fitted((name, *_with_speed(item)), columns)


def _node(node: NodeSample, now: datetime, columns: int) -> tuple[Line, ...]:
    name = line_of(Piece(clipped(node.name, NAME_COLUMNS), Style.STRONG))
    if node.gone_since is not None:
        since = f"gone since {clock(node.gone_since)} ({ago(node.gone_since, now)})"
        head = fitted((name, line_of(Piece(since, Style.BAD))), columns)
        room = columns - len(plain_text(head)) - 2
        why = clipped(node.problem, room) if room > 10 else ""
        return ((*head, Piece(f"  {why}", Style.QUIET)),)
    return flow((name, *_machine(node)), columns, "")


def _machine(node: NodeSample) -> tuple[Line, ...]:
    available, total = gib(node.available_bytes), gib(node.total_bytes)
    floor = "" if node.floor_bytes is None else f", floor {gib(node.floor_bytes)}"
    memory = Piece(f"{available} of {total} GiB available{floor}", _memory_ink(node))
    gpu = node.gpu
    if gpu is None:
        return (line_of(memory),)
    return (
        line_of(memory),
        line_of("" if gpu.power_w is None else f"{gpu.power_w:.0f} W"),
        line_of("" if gpu.sm_clock_mhz is None else f"{gpu.sm_clock_mhz:.0f} MHz"),
        line_of("" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"),
    )


def _memory_ink(node: NodeSample) -> Style:
    if node.available_bytes is None or node.floor_bytes is None:
        return Style.PLAIN
    if node.available_bytes < node.floor_bytes:
        return Style.BAD
    is_close = node.available_bytes < node.floor_bytes + CLOSE_BYTES
    return Style.CAUTION if is_close else Style.PLAIN


def snapshot_lines(snapshot: WatchSnapshot) -> Iterator[str]:
    """Yield a line a deployment and a line a node, each with the time, where there is no screen."""
    at = clock(snapshot.at)
    if snapshot.problem:
        yield f"{at} {snapshot.problem}"
    for item in snapshot.deployments:
        facts = (line_of(item.last_error),) if item.life.is_gone else _with_speed(item)
        fields = map(plain_text, (line_of(_state(item, snapshot.at)), *facts))
        yield f"{at} {item.name}: {', '.join(filter(None, fields))}"
    for node in snapshot.nodes:
        gone = node.gone_since
        since = f"gone since {clock(gone)}: {node.problem}" if gone is not None else ""
        yield f"{at} {node.name}: {since or plain_text(_machine(node)[0])}"


def number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Return a rate with as many digits as mean something: `51.3`, `1,204`."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share * 100:.0f} %"


def percents(shares: tuple[float, ...]) -> str:
    """Return several under one sign: `88 71 %`."""
    if not shares:
        return UNKNOWN
    return " ".join(f"{share * 100:.0f}" for share in shares) + " %"


def duration(value_s: float | None) -> str:
    if value_s is None:
        return UNKNOWN
    if value_s < 1:
        milliseconds = value_s * 1000
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    return f"{value_s:.2f} s" if value_s < 100 else format_seconds(value_s)


def pair(both: Percentiles) -> str:
    return f"p50 {duration(both.p50_s)}, p95 {duration(both.p95_s)}"


def gib(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else f"{size_bytes / GIB:.1f}"


def clock(moment: datetime) -> str:
    """Return the time of day here."""
    return moment.astimezone().strftime("%H:%M:%S")


def ago(moment: datetime, now: datetime) -> str:
    """Return a duration that does not change more than once a second: `34s`, `12m03s`, `3d04h`."""
    passed_s = max((now - moment).total_seconds(), 0.0)
    days, seconds = divmod(int(passed_s), 86400)
    return f"{days}d{seconds // 3600:02d}h" if days else in_seconds(passed_s)


def field(label: str, *values: Piece | str) -> Line:
    """Return a figure with what it is; nothing but the value where the label is empty."""
    pieces = [Piece(it) if isinstance(it, str) else it for it in values]
    return (Piece(f"{label} ", Style.QUIET), *pieces) if label else tuple(pieces)


def flow(fields: Iterable[Line], columns: int, indent: str = "  ") -> tuple[Line, ...]:
    """Put fields one after the other, on as many lines as they take."""
    lines: list[list[Piece]] = []
    width = columns + 1
    for item in filter(plain_text, fields):
        needed = len(BETWEEN) + line_cells(item)
        if width + needed > columns:
            lines.append([Piece(indent)])
            width = len(indent) + line_cells(item)
        else:
            lines[-1].append(Piece(BETWEEN))
            width += needed
        lines[-1] += item
    return tuple(map(tuple, lines))


def fitted(fields: Sequence[Line], columns: int, indent: str = "") -> Line:
    """Put on one line as many of the fields as fit, the first ones first."""
    lines = flow(fields, columns, indent)
    return lines[0] if lines else ()


def sparkline(values: Sequence[float], columns: int) -> str:
    """Draw the last values, the highest of them as high as a line is."""
    shown = values[-columns:] if columns > 0 else ()
    highest = max(shown, default=0.0)
    steps = len(BLOCKS) - 1
    return "".join(BLOCKS[round(value / highest * steps) if highest else 0] for value in shown)
