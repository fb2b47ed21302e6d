"""Eight colours that stay apart for every kind of colour vision, on light and on dark ground.

After Okabe and Ito, "Color Universal Design" (2008); the lighter ones are darkened on white and
the darker ones lightened on black until each has 3:1 against its ground (WCAG 2.1, 1.4.11).
"""

from __future__ import annotations

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
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "4 2", "12 3", "1 2", "6 2 1 2")
MARKERS = ("circle", "square", "diamond", "triangle")
"""Colour is never the only difference: lines differ in dashes and marks too."""


def series_class(index: int) -> str:
    """Return the class of the run that stands at `index`."""
    return f"series-{index % len(SERIES)}"


def style(ground: int) -> str:
    """Return the custom properties of one ground: 0 is light, 1 is dark."""
    return "".join(f"--series-{i}:{pair[ground]};" for i, pair in enumerate(SERIES))


def series_rules() -> str:
    """Return the rules that give each series its colour and its dashes."""
    return "".join(
        f".series-{i}{{--own:var(--series-{i})}}.line.series-{i}{{stroke-dasharray:{DASHES[i]}}}"
        for i in range(len(SERIES))
    )
