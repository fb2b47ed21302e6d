"""The watch's screen: a scene as lines of so many columns, at most so many of them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from sparkdeploy.monitor import words
from sparkdeploy.monitor.scene import GIB, Standing
from sparkdeploy.monitor.words import BLOCKS, field, fitted, flow, sparkline
from sparkdeploy.terminal.style import Line, Piece, Style, clipped, line_of, plain_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sparkdeploy.monitor.scene import NodeLook, Scene, WatchedDeployment

TITLE = "sparkdeploy status --watch"
KEYS = "q leaves"
NAME_COLUMNS = 20
CLOSE_BYTES = GIB
"""So near to the floor a machine is in danger."""
_INKS = {
    Standing.SERVING: Style.GOOD,
    Standing.STARTING: Style.CAUTION,
    Standing.WORKER: Style.PLAIN,
    Standing.STOPPED: Style.QUIET,
}


def screen_of(scene: Scene, columns: int, rows: int, ramp: str = BLOCKS) -> tuple[Line, ...]:
    """Return the lines of a screen: as much as fits, each figure whole."""
    head, nodes = _head(scene, columns), _node_lines(scene, columns)
    body: tuple[Line, ...] = ()
    for is_whole in (True, False):
        body = _deployment_lines(scene, columns, ramp, is_whole=is_whole)
        lines = (*head, *body, *nodes)
        if len(lines) <= rows:
            return lines
    room = max(rows - len(head) - 1, 0)
    rest = (*body, *nodes)
    left = f"and {len(rest) - room} more lines: a higher terminal shows them"
    return (*head, *rest[:room], line_of(Piece(left, Style.CAUTION)))[:rows]


def _head(scene: Scene, columns: int) -> tuple[Line, ...]:
    right = f"{words.clock(scene.at)}   {KEYS}"
    blanks = " " * max(columns - len(TITLE) - len(right), 1)
    lines = [line_of(Piece(TITLE, Style.STRONG), blanks, Piece(right, Style.QUIET))]
    if scene.problem:
        lines += _wrapped(scene.problem, columns, Style.BAD, most_lines=1)
    if not scene.deployments:
        lines.append(line_of("nothing is deployed; what `sparkdeploy up` starts appears here"))
    return tuple(lines)


def _deployment_lines(scene: Scene, columns: int, ramp: str, *, is_whole: bool) -> tuple[Line, ...]:
    if not is_whole:
        return tuple(_row(item, scene.at, columns) for item in scene.deployments)
    blocks = (_block(item, scene.at, columns, ramp) for item in scene.deployments)
    return tuple(line for block in blocks for line in ((), *block))


def _block(item: WatchedDeployment, now: datetime, columns: int, ramp: str) -> tuple[Line, ...]:
    lines = [fitted(_title(item, now), columns), *_wrapped(item.note, columns, Style.BAD)]
    if item.life is not Standing.WORKER and item.life is not Standing.STOPPED:
        lines.append(_speed_line(item, columns, ramp))
        lines += flow(_figures(item), columns)
    error = f"last error: {item.last_error}" if item.last_error else ""
    return (*lines, *_wrapped(error, columns, Style.CAUTION))


def _wrapped(text: str, columns: int, ink: Style, most_lines: int = 2) -> Iterator[Line]:
    rows = textwrap.wrap(text, max(columns - 2, 1), max_lines=most_lines, placeholder="...")
    yield from (line_of("  ", Piece(row, ink)) for row in rows)


def _title(item: WatchedDeployment, now: datetime) -> tuple[Line, ...]:
    up = f"up {words.ago(item.up_since, now)}" if item.up_since is not None else ""
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
        return Piece(item.told, _INKS[item.life])
    since = f" since {words.clock(item.since)} ({words.ago(item.since, now)})" if item.since else ""
    return Piece(f"gone: {item.told}{since}", _INKS.get(item.life, Style.BAD))


def _speed_line(item: WatchedDeployment, columns: int, ramp: str) -> Line:
    figures = item.figures
    now = _now(item)
    peak = f"  peak {words.rate(max(figures.rates))}" if figures.rates else ""
    start = f"  {now:>7} tokens/s  "
    curve = sparkline(figures.rates, columns - len(start) - len(peak), ramp)
    return line_of(Piece(start, Style.STRONG), Piece(curve, Style.GOOD), Piece(peak, Style.QUIET))


def _now(item: WatchedDeployment) -> str:
    """Return the rate of now: of what is gone nothing comes."""
    return words.UNKNOWN if item.life.is_gone else words.rate(item.figures.tokens_per_s)


def _figures(item: WatchedDeployment) -> tuple[Line, ...]:
    figures = item.figures
    lately = figures.preempted_lately
    newly = f", {words.number(lately)} in the last minute" if lately else ""
    written, read = words.number(figures.generated_tokens), words.number(figures.prompt_tokens)
    return (
        _requests(item),
        field("first token", words.pair(figures.first_token)),
        field("gap", words.pair(figures.gap)),
        field("drafts accepted", words.percents(figures.accepted)) if figures.accepted else (),
        field("prefix hits", words.percent(figures.prefix_hits)),
        _kv(item),
        field("preemptions", words.number(figures.preemptions) + newly),
        field("served", f"{written} tokens written, {read} read"),
        field(
            "restarts", Piece(str(item.restarts), Style.CAUTION if item.restarts else Style.PLAIN)
        ),
    )


def _main_figures(item: WatchedDeployment) -> tuple[Line, ...]:
    first, gap = item.figures.first_token, item.figures.gap
    return (
        line_of(Piece(f"{_now(item)} tokens/s", Style.STRONG)),
        line_of(_count(item)),
        field("first", f"{words.duration(first.p50_s)}, {words.duration(first.p95_s)}"),
        field("gap", f"{words.duration(gap.p50_s)}, {words.duration(gap.p95_s)}"),
        _kv(item),
        field("drafts", words.percents(item.figures.accepted)) if item.figures.accepted else (),
        field("restarts", str(item.restarts)) if item.restarts else (),
    )


def _count(item: WatchedDeployment) -> str:
    running, waiting = words.number(item.figures.running), words.number(item.figures.waiting)
    return f"{running} running, {waiting} waiting"


def _requests(item: WatchedDeployment) -> Line:
    a_minute = item.figures.requests_a_minute
    told = "" if a_minute is None else f", {a_minute:,.0f} a minute"
    return field("requests", f"{_count(item)}{told}")


def _kv(item: WatchedDeployment) -> Line:
    usage = item.figures.kv_usage
    ink = Style.CAUTION if usage is not None and usage > 0.9 else Style.PLAIN
    return field("KV cache", Piece(words.percent(usage), ink))


def _row(item: WatchedDeployment, now: datetime, columns: int) -> Line:
    name = line_of(Piece(f"{clipped(item.name, NAME_COLUMNS):<{NAME_COLUMNS}}", Style.STRONG))
    if item.life is not Standing.SERVING:
        return fitted((name, line_of(_state(item, now))), columns)
    return fitted((name, *_main_figures(item)), columns)


def _node_lines(scene: Scene, columns: int) -> tuple[Line, ...]:
    lines: list[Line] = [()] if scene.nodes else []
    for node in scene.nodes:
        lines += _node(node, scene.at, columns)
    return tuple(lines)


def _node(node: NodeLook, now: datetime, columns: int) -> tuple[Line, ...]:
    name = line_of(Piece(clipped(node.name, NAME_COLUMNS), Style.STRONG))
    if node.gone_since is not None:
        since = f"gone since {words.clock(node.gone_since)} ({words.ago(node.gone_since, now)})"
        head = fitted((name, line_of(Piece(since, Style.BAD))), columns)
        room = columns - len(plain_text(head)) - 2
        why = clipped(node.problem, room) if room > 10 else ""
        return ((*head, Piece(f"  {why}", Style.QUIET)),)
    return flow((name, *_machine(node)), columns, "")


def _machine(node: NodeLook) -> tuple[Line, ...]:
    available, total = words.gib(node.available_bytes), words.gib(node.total_bytes)
    floor = "" if node.floor_bytes is None else f", floor {words.gib(node.floor_bytes)}"
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


def _memory_ink(node: NodeLook) -> Style:
    if node.available_bytes is None or node.floor_bytes is None:
        return Style.PLAIN
    if node.available_bytes < node.floor_bytes:
        return Style.BAD
    is_close = node.available_bytes < node.floor_bytes + CLOSE_BYTES
    return Style.CAUTION if is_close else Style.PLAIN


def scene_lines(scene: Scene) -> Iterator[str]:
    """Yield a line a deployment and a line a node, each with the time, where there is no screen."""
    at = words.clock(scene.at)
    if scene.problem:
        yield f"{at} {scene.problem}"
    for item in scene.deployments:
        fields = [plain_text(line) for line in (line_of(_state(item, scene.at)), *_facts(item))]
        yield f"{at} {item.name}: {', '.join(filter(None, fields))}"
    for node in scene.nodes:
        gone = node.gone_since
        since = f"gone since {words.clock(gone)}: {node.problem}" if gone is not None else ""
        yield f"{at} {node.name}: {since or plain_text(_machine(node)[0])}"


def _facts(item: WatchedDeployment) -> tuple[Line, ...]:
    return (line_of(item.last_error),) if item.life.is_gone else _main_figures(item)
