"""SVG as text: elements whose every attribute and word is escaped, and words that fit."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

CHARACTER_WIDTH = 0.6
"""Of the font's size; a little more than the mean of the usual system fonts."""


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element; `content` is SVG already. `font_size=12` becomes `font-size="12"`."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_plain(value))}"
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def words(text: str, x: float, y: float, **attributes: object) -> str:
    """Return a text element at the baseline `y`."""
    return element("text", escape(printable(text)), x=x, y=y, **attributes)


def hint(text: str) -> str:
    """Return what a pointer over the element shows, and a screen reader says."""
    return element("title", escape(printable(text)))


def fitted(text: str, width: float, size: float) -> str:
    """Return the text, cut with an ellipsis when it is wider than `width` at a font size."""
    room = max(int(width / (size * CHARACTER_WIDTH)), 1)
    clean = printable(text)
    return clean if len(clean) <= room else clean[: max(room - 1, 0)].rstrip() + "…"


def width_of(text: str, size: float) -> float:
    """Return about how wide a text is; rather too much."""
    return len(text) * size * CHARACTER_WIDTH


def printable(text: str) -> str:
    """Return the text without control characters and lone surrogates, which XML forbids."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return printable(str(value))
