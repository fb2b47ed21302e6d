"""What all charts are drawn with: axes and their marks, elements of SVG, colours.

The colours stay apart for every kind of colour vision, after Okabe and Ito, "Color Universal
Design" (2008); the lighter ones are darkened on white and the darker ones lightened on black until
each has 3:1 against its ground (WCAG 2.1, 1.4.11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SERIES: tuple[tuple[str, str], ...] = (
    ("#0072b2", "#4aa3df"),
    ("#d55e00", "#f08a3c"),
    ("#009e73", "#22c197"),
    ("#b8609a", "#dd94c0"),
    ("#3a3a3a", "#e4e4e4"),
    ("#a07000", "#e6b020"),
    ("#4d8fbb", "#8fd0f5"),
    ("#7d6b00", "#f0e442"),
)
"""Of each run on light and on dark ground; a ninth run begins again."""
LIGHT_GROUND, DARK_GROUND = "#ffffff", "#14171b"
LEAST = 1e-9
"""What is smaller counts as nothing: no figure of a benchmark is."""
CHARACTER_WIDTH = 0.62
"""Of the font's size; a little more than the mean of the usual system fonts."""
BOLD = 1.16
"""Of the width of plain letters."""
FONT, SMALL = 13.0, 12.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LOGARITHMIC_STEPS = (1.0, 2.0, 5.0)
_MOST_MARKS = 7


@dataclass(frozen=True, slots=True)
class Linear:
    """An axis from zero to `top`, over places `start` to `end` (which may run backwards)."""

    top: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """What lies beyond the axis stands at its end."""
        return self.start + (self.end - self.start) * min(max(value / self.top, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """An axis from `low` to `high`, both positive; equal ratios are equal distances."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        if self.high <= self.low:
            return (self.start + self.end) / 2
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)


def series_class(index: int) -> str:
    return f"series-{index % len(SERIES)}"


def ticks(largest: float, about: int) -> tuple[float, ...]:
    """Return round numbers from 0 to the first one not below `largest`, roughly `about` of them."""
    if largest < LEAST:
        return (0.0, 1.0)
    raw = largest / about
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(unit for unit in _STEPS if unit * magnitude >= raw * (1 - 1e-9)) * magnitude
    count = math.ceil(largest / step - 1e-9)
    return tuple(step * index for index in range(count + 1))


def logarithmic_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return 1, 2 and 5 of each decade, or decades alone over many, around both ends.

    `low` is positive and below `high`.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = _LOGARITHMIC_STEPS if last - first <= 3 else (1.0,)
    every = max(math.ceil((last - first) / _MOST_MARKS), 1)
    marks = [step * 10.0**power for power in range(first, last + 1, every) for step in steps]
    if marks[-1] < high:
        marks.append(10.0 ** (last + every))
    begin = max(index for index, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
    end = min(index for index, mark in enumerate(marks) if mark >= high * (1 - 1e-9))
    return tuple(marks[begin : end + 1])


def thin(places: Iterable[float], apart: float) -> list[int]:
    """Return the indices of ascending places that keep `apart` from the one kept before."""
    kept: list[int] = []
    last = -math.inf
    for index, place in enumerate(places):
        if place - last >= apart:
            kept.append(index)
            last = place
    return kept


def element(name: str, content: str = "", **attributes: object) -> str:
    """`content` is SVG already; attributes are escaped, `font_size=12` becomes `font-size="12"`."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_plain(value))}"
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def words(text: str, x: float, y: float, **attributes: object) -> str:
    return element("text", escape(printable(text)), x=x, y=y, **attributes)


def hint(text: str) -> str:
    """Return what a pointer over the element shows, and a screen reader says."""
    return element("title", escape(printable(text)))


def fitted(text: str, width: float, size: float) -> str:
    room = max(int(width / (size * CHARACTER_WIDTH)), 1)
    clean = printable(text)
    return clean if len(clean) <= room else clean[: max(room - 1, 0)].rstrip() + "…"


def width_of(text: str, size: float) -> float:
    return len(text) * size * CHARACTER_WIDTH


def printable(text: str) -> str:
    """Return the text without control characters and lone surrogates, which XML forbids."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return printable(str(value))


def picture(title: str, values: str, parts: Sequence[str], width: float, height: float) -> str:
    return element(
        "svg",
        hint(title) + "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=f"{title}: {values}",
        class_="chart",
    )
