"""The bytes of a decode step by part, one bar a recipe, as plain SVG; and a page around it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from sparkdeploy.estimate.decode import CONTEXT_TOKENS, StepPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.estimate.decode import DecodeStep
    from sparkdeploy.estimate.speed import SpeedEstimate

BAR_LEFT, BAR_WIDTH = 120, 560
TOP, ROW = 58, 30
MARKS = 5


def bytes_per_step(estimates: Sequence[SpeedEstimate]) -> str:
    """Return the SVG; recipes without an estimate are left out. It follows light and dark."""
    drawn = [(made, made.step) for made in estimates if made.step is not None]
    longest = max((step.total_bytes for _, step in drawn), default=1.0)
    bars = [
        {"made": made, "top": TOP + ROW * index, "pieces": tuple(_pieces(step, longest))}
        for index, (made, step) in enumerate(drawn)
    ]
    return _render(
        "picture.svg.j2",
        bars=bars,
        bottom=TOP + ROW * len(drawn),
        marks=tuple(_marks(longest)),
        context_tokens=CONTEXT_TOKENS,
        parts=tuple(StepPart),
        css_class=_css_class,
    )


def _marks(longest: float) -> Iterator[tuple[float, float]]:
    """Yield the axis' round numbers, in GB, and their places; some four of them."""
    raw = longest / MARKS
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * magnitude for unit in (1, 2, 5, 10) if unit * magnitude >= raw)
    for count in range(int(longest / step) + 1):
        yield count * step / 1e9, BAR_LEFT + BAR_WIDTH * count * step / longest


def _pieces(step: DecodeStep, longest: float) -> Iterator[tuple[StepPart, float, float, float]]:
    """Yield each part of a bar with its bytes, its left edge and its width."""
    left = float(BAR_LEFT)
    for part, size in step.parts.items():
        width = BAR_WIDTH * size / longest
        yield part, size, left, width
        left += width


def _css_class(part: StepPart) -> str:
    return "part-" + part.name.lower().replace("_", "-")


def page(
    *,
    title: str,
    picture: str,
    sections: Mapping[str, Iterable[str]],
    beside: Iterable[tuple[SpeedEstimate, Iterable[str]]] = (),
) -> str:
    """Return the page; `picture` is SVG, sections are lines of text by heading.

    `beside` has estimates for a table with published figures, and why each is off.
    """
    return _render(
        "page.html.j2",
        title=escape(title),
        picture=picture.rstrip(),
        rows=[(made, [escape(reason) for reason in reasons]) for made, reasons in beside],
        sections={escape(heading): escape("\n".join(lines)) for heading, lines in sections.items()},
    )


def _render(template: str, **values: object) -> str:
    # It imports Jinja, which no other estimate needs.
    from sparkdeploy.image.templates import render_page  # noqa: PLC0415

    return render_page(Path(__file__).parent, template, **values)
