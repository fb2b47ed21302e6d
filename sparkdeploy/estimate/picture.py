"""The bytes of a decode step by part, one bar a recipe, as plain SVG; and a page around it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from sparkdeploy.estimate.speed import StepPart
from sparkdeploy.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.estimate.speed import DecodeStep, SpeedEstimate

WIDTH, BAR_LEFT, BAR_WIDTH = 960, 120, 560
BYTES_RIGHT, SPEED_RIGHT, PUBLISHED_RIGHT = 760, 868, 944
TOP, ROW, BAR = 58, 30, 20
LEGEND_COLUMNS, LEGEND_ROW = 4, 22

PAGE_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;"
    "background:#fff;color:#1b1f24}"
    "svg{max-width:100%;height:auto}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}"
    "pre{font:13px/1.45 ui-monospace,monospace;overflow-x:auto;padding:1rem;border-radius:6px;"
    "background:#f4f5f7}"
    "@media (prefers-color-scheme:dark){body{background:#14171b;color:#e6e9ee}"
    "pre{background:#1e2227}}"
)

COLOURS: dict[StepPart, tuple[str, str]] = {
    StepPart.EXPERTS: ("#3b6fb6", "#6c9fe0"),
    StepPart.GDN: ("#2f8f83", "#56bfb1"),
    StepPart.STATE: ("#8cc7bf", "#2c6e66"),
    StepPart.SHARED: ("#d9822b", "#f0a458"),
    StepPart.ATTENTION: ("#7a5aa6", "#a98ad6"),
    StepPart.CACHE: ("#c3aee0", "#5c4483"),
    StepPart.SMALL: ("#8a8f98", "#9aa0aa"),
    StepPart.HEAD: ("#b8433f", "#e27a76"),
    StepPart.DRAFT_LAYER: ("#c9a227", "#e3c659"),
    StepPart.DRAFT_HEAD: ("#e39c99", "#8c3431"),
}
"""Of each part on a light and on a dark ground; a part's lighter brother is of the same family."""


def bytes_per_step(estimates: Sequence[SpeedEstimate]) -> str:
    """Return the SVG; recipes without an estimate are left out. It follows light and dark."""
    drawn = [(made, made.step) for made in estimates if made.step is not None]
    longest = max((step.total_bytes for _, step in drawn), default=1.0)
    rows = -(-len(StepPart) // LEGEND_COLUMNS)
    height = TOP + ROW * len(drawn) + 14 + LEGEND_ROW * rows + 8
    title = "Bytes moved in a decode step of one request, by recipe"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        f"<style>{_style()}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="16" y="26">{title}</text>',
        _figure(BYTES_RIGHT, 46, "GB a step", "figure quiet"),
        _figure(SPEED_RIGHT, 46, "tok/s, estimate", "figure quiet"),
        _figure(PUBLISHED_RIGHT, 46, "published", "figure quiet"),
    ]
    for index, (made, step) in enumerate(drawn):
        lines += _bar(made, step, TOP + ROW * index, longest)
    lines += _legend(TOP + ROW * len(drawn) + 14)
    return "\n".join([*lines, "</svg>", ""])


def _bar(made: SpeedEstimate, step: DecodeStep, top: int, longest: float) -> Iterator[str]:
    middle = top + BAR - 6
    yield f'<text class="name" x="{BAR_LEFT - 8}" y="{middle}">{escape(made.name)}</text>'
    left = float(BAR_LEFT)
    for part, size in step.parts.items():
        width = BAR_WIDTH * size / longest
        yield (
            f'<rect class="{_class(part)}" x="{left:.1f}" y="{top}" width="{width:.1f}" '
            f'height="{BAR}"><title>{escape(made.name)}, {part.value}: {size / 1e9:.2f} GB</title>'
            "</rect>"
        )
        left += width
    yield _figure(BYTES_RIGHT, middle, f"{step.total_bytes / 1e9:.2f}", "figure")
    yield _figure(SPEED_RIGHT, middle, f"{made.tok_s or 0:.1f}", "figure strong")
    published = f"{made.published_tok_s:g}" if made.published_tok_s is not None else "-"
    yield _figure(PUBLISHED_RIGHT, middle, published, "figure quiet")


def _figure(right: int, y: int, text: str, style: str) -> str:
    return f'<text class="{style}" x="{right}" y="{y}">{text}</text>'


def _legend(top: int) -> Iterator[str]:
    for index, part in enumerate(StepPart):
        row, column = divmod(index, LEGEND_COLUMNS)
        left = 16 + column * (WIDTH - 32) // LEGEND_COLUMNS
        y = top + LEGEND_ROW * row
        yield f'<rect class="{_class(part)}" x="{left}" y="{y}" width="14" height="14"/>'
        yield f'<text x="{left + 20}" y="{y + 12}">{part.value}</text>'


def _class(part: StepPart) -> str:
    return "part-" + part.name.lower().replace("_", "-")


def _style() -> str:
    light = "".join(f".{_class(part)}{{fill:{pair[0]}}}" for part, pair in COLOURS.items())
    dark = "".join(f".{_class(part)}{{fill:{pair[1]}}}" for part, pair in COLOURS.items())
    return (
        "text{font:13px system-ui,sans-serif;fill:#1b1f24}.title{font-size:16px;font-weight:600}"
        ".name,.figure{text-anchor:end}.strong{font-weight:600}.quiet{fill:#5b636e}.ground{fill:#ffffff}"
        f"{light}@media (prefers-color-scheme:dark){{text{{fill:#e6e9ee}}.quiet{{fill:#9aa3ae}}"
        f".ground{{fill:#14171b}}{dark}}}"
    )


def page(*, title: str, picture: str, sections: Mapping[str, Sequence[str]]) -> str:
    """Return the page; `picture` is SVG, sections are lines of text by heading."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{PAGE_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        picture.rstrip(),
    ]
    for heading, lines in sections.items():
        text = escape("\n".join(lines))
        parts.append(f"<h2>{escape(heading)}</h2>\n<pre>{text}</pre>")
    return visible("\n".join([*parts, "</body></html>", ""]))
