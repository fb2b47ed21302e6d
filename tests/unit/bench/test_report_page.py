"""The page of a report: what stands in it, its plots, and the command that writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sparkdeploy.bench.compare import sides_of
from sparkdeploy.bench.files import record_text, write_record
from sparkdeploy.bench.record import Run
from sparkdeploy.bench.report.page import Field, read_published, report_page
from sparkdeploy.bench.report.shown import Line, Plot
from sparkdeploy.bench.tables import change
from tests.fakes.bench_runs import origin, sample_run
from tests.unit.conftest import REPOSITORY
from tests.unit.program import Done

ATTACK = """"><script>alert(1)</script><img src=x onerror=alert(1)>' onload='x"""
VOID = {"meta", "br", "img", "link", "input"}
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "nav", "a", "h1", "h2", "h3"),
    *("p", "ul", "li", "div", "article", "dl", "dt", "dd", "section", "figure", "figcaption"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "footer", "span"),
    *("svg", "path", "polyline"),
}


@pytest.fixture(scope="module")
def field() -> Field:
    return read_published(REPOSITORY / "recipes" / "facts" / "published.yaml")


class Page(HTMLParser):
    """The page's elements and words; fails on an element that is not closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(*runs: Run, field: Field) -> Page:
    return Page(report_page(runs, field, made_at="2026-11-21 09:00 UTC", version="0"))


def changed(run: Run, change: Any) -> Run:
    """Return a record after `change` has been at its JSON, read as a file would be."""
    return TypeAdapter(Run).validate_python(change(json.loads(record_text(run))))


def replaced(value: Any, old: type, new: Any) -> Any:
    """Put `new` in the place of every leaf of a type, and leave what a record cannot do without."""
    if isinstance(value, dict):
        return {key: replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, old, new) for item in value]
    return new if type(value) is old else value


def test_every_chart_is_there_with_its_table(field: Field) -> None:
    page = page_of(sample_run("baseline", speed=28.0), sample_run("v2"), field=field)
    assert page.count("svg") == 4
    # Of the summary too; what made the runs is no table.
    assert page.count("section") - 1 == page.count("table") == page.count("caption") == 7
    scopes = [attributes["scope"] for tag, attributes in page.elements if tag == "th"]
    assert set(scopes) == {"col", "row", "rowgroup"}
    for heading in (
        *("Speed by prompt class, end to end", "Decode speed by kind of text"),
        *("Latency over concurrency", "Throughput over context", "Accepted drafts by position"),
        "Beside published figures",
    ):
        assert page.text.count(heading) >= 2  # in the list of contents and above the section


def test_figures_stand_beside_published_ones_with_source(field: Field) -> None:
    page = page_of(sample_run("v2"), field=field)
    assert "v2, end to end (albond v2.4)" in page.text
    # The mean of the sample's five classes over the published 51.6.
    assert "49.4 51.6 -4%" in page.text
    assert "release v2.4 of 2026-05-09" in page.text
    assert "albond v1" not in page.text  # no baseline here
    assert "Not taken on a DGX Spark" not in page.text


def test_failures_interruptions_and_other_prompts_are_said_first(field: Field) -> None:
    other = changed(sample_run("mine", run_id="x"), _other_prompts)
    page = page_of(sample_run("v2"), other, field=field)
    assert "v2, mine: the suite sweep was interrupted" in page.text
    assert "v2, mine: 5 of 198 requests of sweep failed" in page.text
    assert "The prompts of five are not the same in all runs" in page.text


def _other_prompts(record: dict[str, Any]) -> dict[str, Any]:
    record["suites"][0]["prompts"] = "other"
    return record


def test_nothing_in_a_record_becomes_markup(field: Field) -> None:
    evil = changed(sample_run("v2"), lambda record: {**_attacked(record), "label": ATTACK})
    page = page_of(evil, sample_run("v2"), field=field)
    assert {tag for tag, _ in page.elements} == ALLOWED - {"img", "link"} | {"title"}
    attributes = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in attributes if name.startswith("on")}
    assert "alert(1)" in page.text  # it is shown, as words


def _attacked(record: dict[str, Any]) -> dict[str, Any]:
    """Every free text of the record says the worst it can."""
    origin = replaced(record["origin"], str, ATTACK)
    suites = record["suites"]
    for suite in suites:
        suite["notes"] = [ATTACK]
        for number, cell in enumerate(suite["cells"]):
            cell["prompt"] = f"{ATTACK}{number}"
    return {**record, "origin": origin, "suites": suites, "started_at": ATTACK, "run_id": ATTACK}


def test_the_page_loads_nothing_and_runs_nothing(field: Field) -> None:
    text = report_page([sample_run("v2")], field, made_at="", version="")
    page = Page(text)
    links = [value for _, found in page.elements for key, value in found.items() if key == "href"]
    assert links
    assert all(link is not None and link.startswith("#") for link in links)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert not re.search(r"url\(|@import|javascript:|src=", text)
    assert "default-src 'none'" in text
    assert len(text.encode()) < 400_000


def runs_of(recipe: str, speeds: Sequence[float]) -> list[Run]:
    """Return runs of the very same server."""
    return [
        replace(
            sample_run(recipe, speed=speed, run_id=f"2026112{number}T090000Z-{recipe}"),
            origin=origin(recipe, 50.0),
        )
        for number, speed in enumerate(speeds)
    ]


def test_the_first_screen_judges_by_all_runs_of_a_label(field: Field) -> None:
    slow, fast = runs_of("baseline", (28.0, 28.2, 28.1)), runs_of("v2", (51.0, 51.4, 51.2))
    known = sides_of([*slow, *fast])
    shown = [slow[-1], fast[-1]]
    page = Page(report_page(shown, field, made_at="", version="0", known=known))
    first = page.text.partition("Speed by prompt class")[0]
    assert (
        "One user: five prompt classes, tok/s end to end 27.2 49.5: +82% (+81% to +84%), " in first
    )
    assert "Agents: an agent's turns, tok/s decoding" in first
    assert "61.4: +82%" in first
    assert "Several users: 32 at once with 1K each" in first
    assert "Long context: 32K, one request" in first
    # The scripted wait is the same for both.
    assert "0% (0% to 0%), no difference shown" in first
    assert "Runs of each: baseline 3, v2 3." in first
    assert "Least free memory, GiB 11.0 11.0" in first


points = st.lists(
    st.tuples(st.integers(1, 2**20).map(float), st.just(0.0) | st.floats(1e-60, 1e12)),
    min_size=1,
    max_size=6,
    unique_by=lambda item: item[0],
).map(sorted)
plots = st.lists(st.builds(Line, st.text(max_size=40), st.integers(0, 7), points), min_size=1)


@given(plots.map(lambda lines: Plot("t", "streams", "tok/s", lines)))
@example(Plot("t", "streams", "s", [Line("a", 0, [(1.0, 0.0)])]))
@example(Plot("t", "streams", "s", [Line("a", 0, [(1.0, 1.0), (2.0, 10.0)])]))
def test_lines_and_marks_stay_in_their_picture(plot: Plot) -> None:
    places = [place for line in plot.lines for x, y, _ in plot.marks(line) for place in (x, y)]
    places += [mark.place for mark in (*plot.x_marks, *plot.y_marks)]
    assert all(-0.01 <= place <= 100.01 for place in places)
    assert len(plot.y_marks) >= 2


def test_twice_the_figure_is_twice_as_high() -> None:
    plot = Plot("t", "streams", "tok/s", [Line("a", 0, [(1, 25.0), (2, 50.0)])])
    (_, low, hint), (_, high, _) = plot.marks(plot.lines[0])
    assert 100 - high == pytest.approx(2 * (100 - low), abs=0.02)
    assert hint == "a: 25 tok/s at 1 streams"


def test_decades_get_a_logarithmic_axis() -> None:
    plot = Plot("t", "context", "s", [Line("a", 0, [(1024, 0.1), (2048, 10.0)])])
    assert [mark.text for mark in plot.y_marks] == ["0.1", "1", "10"]
    assert [mark.text for mark in plot.x_marks] == ["1K", "2K"]


@pytest.mark.parametrize(
    ("share", "digits", "said"),
    [
        (-0.004, 0, "0%"),
        (0.004, 0, "0%"),
        (-0.04, 0, "-4%"),
        (0.1, 0, "+10%"),
        (-0.0004, 1, "0.0%"),
    ],
)
def test_a_change_that_rounds_to_nothing_has_no_sign(share: float, digits: int, said: str) -> None:
    assert change(share, digits) == said


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Two runs of v2 and one of baseline, where `bench` keeps them."""
    folder = tmp_path / "state" / "bench"
    for moment, recipe in (("080000", "v2"), ("090000", "baseline"), ("100000", "v2")):
        run_id = f"20261121T{moment}Z-{recipe}"
        write_record(sample_run(recipe, run_id=run_id), folder / f"{run_id}.json")
    return folder


def test_the_newest_run_of_each_label_is_shown(
    kept: Path, tmp_path: Path, bench: Callable[..., Done]
) -> None:
    page = tmp_path / "page.html"
    (kept / "broken.json").write_text("{")
    done = bench("report", "-o", str(page))
    assert done.returncode == 0
    assert f"wrote {page}: 2 runs" in done.stdout
    assert "broken.json is not a record of a run" in done.stderr
    text = page.read_text()
    assert "20261121T100000Z-v2" in text
    assert "20261121T090000Z-baseline" in text
    assert "20261121T080000Z-v2" not in text


def test_runs_are_named_by_id_label_or_file(
    kept: Path, tmp_path: Path, bench: Callable[..., Done]
) -> None:
    page = tmp_path / "page.html"
    asked = ("baseline", "20261121T100000Z-v2", str(kept / "20261121T080000Z-v2.json"))
    assert bench("report", *asked, "-o", str(page)).returncode == 0
    assert page.read_text().count('class="run series-') == 3
