"""The pages for people: links, lengths, and that commands print what the pages show."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sparkdeploy.monitor.draw import screen_of
from sparkdeploy.terminal.style import plain_text
from tests.unit.program import Run
from tools import pictures

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
README = REPOSITORY / "README.md"
INDEX = DOCS / "README.md"
MADE = DOCS / "commands.md"
ALL = [README, REPOSITORY / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
PAGES = [README, *sorted(set(DOCS.glob("*.md")) - {MADE})]
"""What somebody wrote for owners: not the list of commands, not the figures."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
FILE = re.compile(
    r"(?<![\w/.~-])(?:sparkdeploy|tests|tools|dockerfiles)/[\w/.-]+\.(?:py|sh|yaml|json)\b"
)
EARLIER = re.compile(r"\bat [0-9a-f]{7,}\b|\bof commit\b")
"""A line that says at which commit what it names lay."""
COLUMNS = 98
MAX_LINE = 100
FIRST_SCREENS = 130
"""Lines of README.md: what a stranger reads before they type anything."""
MAX_WORDS, MAX_PAGE_WORDS = 28_000, 3_000
SOURCES = ("sparkdeploy", "recipes", "dockerfiles", "tools", "tests", "install.sh", ".github")
NAMED_PAGE = re.compile(r"\bdocs/[a-z-]+\.md\b")
MAX_PICTURE_BYTES = 150_000
LEFT_OUT = "..."
"""A line of an output that stands for any others."""


def anchors(page: Path) -> set[str]:
    """The names by which a forge links to a page's headings."""
    text = BLOCK.sub("", page.read_text())
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


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", ALL, ids=name_of)
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
    assert len(README.read_text().splitlines()) <= FIRST_SCREENS


def long_lines(text: str) -> list[str]:
    """Return lines of prose that a diff or a terminal does not show whole."""
    prose = (line for line in BLOCK.sub("", text).splitlines() if not line.startswith("|"))
    return [line for line in prose if len(line) > MAX_LINE]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short_and_its_lines_too(page: Path) -> None:
    text = page.read_text()
    assert len(text.split()) <= MAX_PAGE_WORDS
    assert long_lines(text) == []
    # What is between backticks stands on one line: it is copied, and searched for.
    assert [it for it in BLOCK.sub("", text).splitlines() if it.count("`") % 2] == []


def test_all_pages_together_are_short() -> None:
    assert sum(len(page.read_text().split()) for page in PAGES) <= MAX_WORDS


def test_a_long_line_is_found() -> None:
    long = "x" * 101
    assert long_lines(f"{long}\n| {long} |\n```\n{long}\n```\n") == [long]


def test_pages_that_the_program_names_are_there() -> None:
    tops = (REPOSITORY / name for name in SOURCES)
    files = [file for top in tops for file in (top.rglob("*") if top.is_dir() else (top,))]
    files = [file for file in files if file.is_file() and file.suffix != ".pyc"]
    texts = (file.read_bytes().decode(errors="replace") for file in files)
    named = {name for text in texts for name in NAMED_PAGE.findall(text)}
    assert len(named) > 5
    assert {name for name in named if not (REPOSITORY / name).exists()} == set()


def test_the_design_names_every_package_and_dependency() -> None:
    words = set(re.findall(r"[\w-]+", (DOCS / "how-it-works.md").read_text()))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=]", it, maxsplit=1)[0] for it in project["dependencies"]}
    package = REPOSITORY / "sparkdeploy"
    folders = {it.name for it in package.iterdir() if (it / "__init__.py").exists()}
    assert names <= words
    assert folders <= words


class Typed(NamedTuple):
    command: str
    shown: list[str]


def typed_in(page: str) -> Iterator[Typed]:
    """Yield each `$ sparkdeploy ...` of the console blocks that shows what it prints."""
    for kind, text in BLOCK.findall(page):
        if kind != "console":
            continue
        for part in re.split(r"^ *\$ ", text, flags=re.MULTILINE)[1:]:
            command, *shown = part.rstrip().splitlines()
            if command.startswith("sparkdeploy ") and shown:
                yield Typed(command, shown)


def prints(shown: list[str], printed: str) -> bool:
    any_lines = r"(?:.*\n)*"
    lines = [
        any_lines if line.strip() == LEFT_OUT else f"{re.escape(line.rstrip())}\n" for line in shown
    ]
    kept = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch("".join(lines), kept) is not None


TYPED = [
    pytest.param(typed, id=f"{page.stem}: {typed.command}")
    for page in PAGES
    for typed in typed_in(page.read_text())
]


@pytest.mark.usefixtures("no_docker")
@pytest.mark.parametrize("typed", TYPED)
def test_a_command_prints_what_a_page_shows(
    typed: Typed, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.chdir(tmp_path)
    done = run(*shlex.split(typed.command, comments=True)[1:])
    answers = (done.stderr + done.stdout, done.stdout + done.stderr)
    assert any(prints(typed.shown, it) for it in answers), answers[0]


def test_what_a_command_does_not_print_is_found() -> None:
    page = "```console\n$ sparkdeploy a\nx\n...\nz\n$ cat b\nb\n$ sparkdeploy c\n```\n"
    assert [*typed_in(page)] == [Typed("sparkdeploy a", ["x", "...", "z"])]
    assert prints(["x", "...", "z"], "x \ny\nz\n")
    assert prints(["x", "..."], "x\n")
    assert not prints(["x", "...", "z"], "x\nz\ny\n")
    assert not prints(["x"], "x\ny\n")


def test_the_picture_of_a_screen_is_what_is_drawn() -> None:
    svg = (pictures.PICTURES / "status-watch.svg").read_text()
    texts = {it.replace("&#160;", " ").strip() for it in re.findall(r">([^<>]+)</text>", svg)}
    lines = screen_of(pictures.watched(), pictures.COLUMNS, pictures.ROWS)
    words = {word for line in lines for word in plain_text(line).split()}
    assert words <= {word for text in texts for word in text.split()}


def test_pictures_are_small_and_load_nothing() -> None:
    for picture in pictures.PICTURES.iterdir():
        assert picture.stat().st_size <= MAX_PICTURE_BYTES, picture
        if picture.suffix == ".svg":
            assert "url(http" not in picture.read_text()
