"""One HTML page with the picture and the tables; it loads nothing from anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from sparkdeploy.terminal import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;"
    "background:#fff;color:#1b1f24}"
    "svg{max-width:100%;height:auto}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}"
    "pre{font:13px/1.45 ui-monospace,monospace;overflow-x:auto;padding:1rem;border-radius:6px;"
    "background:#f4f5f7}"
    "@media (prefers-color-scheme:dark){body{background:#14171b;color:#e6e9ee}"
    "pre{background:#1e2227}}"
)


def page(*, title: str, picture: str, sections: Mapping[str, Sequence[str]]) -> str:
    """Return the page; `picture` is SVG, sections are lines of text by heading."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        picture.rstrip(),
    ]
    for heading, lines in sections.items():
        text = escape("\n".join(lines))
        parts.append(f"<h2>{escape(heading)}</h2>\n<pre>{text}</pre>")
    return visible("\n".join([*parts, "</body></html>", ""]))
