"""The screen of a snapshot: whole figures at every width, as much as the height has room for."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.monitor.draw import flow, screen_of, sparkline
from sparkdeploy.monitor.run import lines_without_repeats, nothing_beside
from sparkdeploy.monitor.snapshot import DeploymentState, WatchSnapshot
from sparkdeploy.terminal.console import Console
from sparkdeploy.terminal.style import Style, line_of, plain_text
from tests.unit.monitor.snapshots import EXPECTED, NODE, NOW, deployment, node, snapshot

SIZES = ((80, 24), (120, 40), (200, 50))


def texts(shown: WatchSnapshot, columns: int, rows: int) -> list[str]:
    return [plain_text(line) for line in screen_of(shown, columns, rows)]


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_no_figure_is_cut(columns: int, rows: int) -> None:
    lines = texts(snapshot(nodes=2), columns, rows)
    assert max(map(len, lines)) <= columns
    assert len(lines) <= rows
    text = "\n".join(lines)
    assert [figure for figure in (*EXPECTED, NODE) if figure not in text] == []
    assert text.count(NODE) == 2
    # The curve reaches from the rate to the end of its line.
    assert any(len(line) == columns and "█" in line for line in lines)


@pytest.mark.parametrize("columns", [80, 120, 200])
@pytest.mark.parametrize("deployments", [3, 6, 15])
def test_more_of_them_have_shorter_blocks_and_each_is_there(columns: int, deployments: int) -> None:
    lines = texts(snapshot(deployments, 2), columns, 24)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= columns
    for number in range(deployments):
        found = [line for line in lines if f"deployment-{number} " in f"{line} "]
        assert len(found) == 1
    assert sum("256 running, 1,024 waiting" in line for line in lines) == deployments
    assert sum("1,234 tokens/s" in line for line in lines) == deployments
    assert sum(NODE in line for line in lines) == 2


def test_what_no_screen_has_room_for_is_told() -> None:
    lines = texts(snapshot(40, 1), 80, 24)
    assert len(lines) == 24
    assert lines[-1] == "and 20 more lines: a higher terminal shows them"
    assert len(texts(snapshot(), 80, 2)) == 2


@pytest.mark.parametrize(
    ("life", "told"),
    [
        (DeploymentState.SILENT, "does not answer"),
        (DeploymentState.EXITED, "exited (137)"),
        (DeploymentState.REMOVED, "removed"),
        (DeploymentState.BROKEN, "broken"),
    ],
)
def test_what_went_away_stays_with_since_when(life: DeploymentState, told: str) -> None:
    gone = deployment("main", life, told, last_error="the kernel killed it: " + "words " * 40)
    shown = WatchSnapshot(NOW, (gone,), (node("spark-2", is_gone=True),))
    for columns, rows in (*SIZES, (80, 8)):
        text = "\n".join(texts(shown, columns, rows))
        since = NOW.astimezone().strftime("%H:%M")
        assert f"gone: {told} since " in text
        assert "(34s)" in text
        assert since[:2] in text
        assert "spark-2   gone since " in text
        assert "(2m00s)  ssh to 192.168.177.12: it did" in text
        assert "1,234 tokens/s" not in text, "nothing comes of it now"
    whole = "\n".join(texts(shown, 80, 24))
    assert "last error: the kernel killed it" in whole
    inks = {
        piece.style for line in screen_of(shown, 80, 24) for piece in line if "gone" in piece.text
    }
    assert inks == {Style.BAD}


@given(st.lists(st.text("ab ", max_size=30), max_size=12), st.integers(20, 60))
def test_flow_keeps_each_field_whole_and_in_order(words: list[str], columns: int) -> None:
    fields = [line_of(word) for word in words]
    lines = [plain_text(line) for line in flow(fields, columns)]
    shown = [word for word in words if word]
    assert "".join("".join(lines).split()) == "".join("".join(shown).split())
    assert all(len(line) <= max(columns, 2 + max(map(len, shown), default=0)) for line in lines)
    for word in shown:
        assert any(word in line for line in lines)


@given(st.lists(st.floats(0, 1e6), max_size=50), st.integers(-3, 40))
def test_a_sparkline_has_a_sign_for_each_of_the_last_values(
    values: list[float], columns: int
) -> None:
    drawn = sparkline(values, columns)
    assert len(drawn) == min(len(values), max(columns, 0))
    shown = values[-columns:] if columns > 0 else []
    if any(shown):
        assert drawn[shown.index(max(shown))] == "█"


class GlassOfErrors(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "said"), [(GlassOfErrors(), ""), (io.StringIO(), "  ssh vm\n")])
def test_what_is_said_beside_the_screen_does_not_spoil_it(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, said: str
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with nothing_beside():
        Console(verbose=True).detail("ssh vm")
    assert stream.getvalue() == said
    assert sys.stderr is stream


def test_a_pipe_reads_once_that_a_deployment_was_removed() -> None:
    lines_of = lines_without_repeats()
    removed = WatchSnapshot(NOW, (deployment("old", DeploymentState.REMOVED), deployment()), ())
    assert [" old: " in "\n".join(lines_of(removed)) for _ in range(3)] == [True, False, False]
    back = WatchSnapshot(NOW, (deployment("old"), deployment()), ())
    assert [" old: " in "\n".join(lines_of(it)) for it in (back, removed)] == [True, True]
