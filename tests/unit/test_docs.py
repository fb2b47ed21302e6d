"""The pages for people: every link leads somewhere, and every page is found from the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
INDEX = DOCS / "README.md"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
FILE = re.compile(
    r"(?<![\w/.~-])(?:sparkdeploy|tests|tools|dockerfiles)/[\w/.-]+\.(?:py|sh|yaml|json)\b"
)
EARLIER = re.compile(r"\bat [0-9a-f]{7,}\b|\bof commit\b")
"""A line that says at which commit what it names lay."""
FIRST_SCREENS = 100
"""Lines of README.md: what a stranger reads before they type anything."""


def anchors(page: Path) -> set[str]:
    """The names by which a forge links to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in kept}


def broken(page: Path) -> list[str]:
    found = []
    for link in LINK.findall(CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", [REPOSITORY / "README.md", *PAGES], ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A head\n[x](gone.md) [y](#a-head) [z](#gone) `[w](no.md)`\n")
    assert broken(page) == ["gone.md", "#gone"]


@pytest.mark.parametrize("page", [*DOCS.glob("*.md")], ids=lambda page: page.stem)
def test_every_file_of_the_repository_that_a_page_names_is_there(page: Path) -> None:
    lines = [line for line in page.read_text().splitlines() if not EARLIER.search(line)]
    named = {name for line in lines for name in FILE.findall(line)}
    assert {name for name in named if not (REPOSITORY / name).exists()} == set()


def test_the_index_names_every_page() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(INDEX.read_text())}
    pages = {page.name for page in DOCS.glob("*.md")} - {INDEX.name}
    assert pages <= linked


def test_the_first_page_stays_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= FIRST_SCREENS
