"""The report in a real browser: nothing overflows, nothing is refused, every chart is seen."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdeploy.bench.report.page import read_published, report_page
from sparkdeploy.settings import resources
from tests.engine.bench.browser import Browser, Screen
from tests.fakes.bench_runs import judged, loaded_run, sample_run

WITHOUT_BROWSER = "SPARKDEPLOY_TESTS_WITHOUT_BROWSER"
LONG = "a-recipe-whose-name-goes-on-and-on-and-on-until-nobody-wants-to-read-it-any-further"
SCREENS = (
    Screen(360, 800),
    Screen(1440, 900),
    *(
        pytest.param(screen, marks=pytest.mark.slow)
        for screen in (Screen(768, 1024), Screen(360, 800, "dark"))
    ),
)
MOST_PAGES = 6
LEAST_LETTERS_PX = 11
PAGE = re.compile(rb"/Type\s*/Page\b(?!s)")
CHARTS = 4
LOAD_CHARTS = 4
VISIBLE_CHARTS = """
return [...document.querySelectorAll(".plot")].filter(chart => {
  const box = chart.getBoundingClientRect();
  return box.width > 0 && box.height > 100 && chart.querySelector(".mark");
}).length
"""
OUTSIDE = """
const width = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")].filter(item =>
  !item.closest(".scroll") && item.getBoundingClientRect().right > width + 1
).map(item => item.outerHTML.slice(0, 120))
"""
WORDS_OUTSIDE = """
return [...document.querySelectorAll(".plot span")].filter(words => {
  const chart = words.closest("figure").getBoundingClientRect();
  const box = words.getBoundingClientRect();
  return box.width > 0 && (box.left < chart.left - 1 || box.right > chart.right + 1);
}).map(words => words.textContent)
"""
SCROLLS = "const root = document.documentElement; return root.scrollWidth > root.clientWidth"
SMALL_WORDS = """
return [...document.querySelectorAll("body *")].filter(item =>
  item.checkVisibility() && [...item.childNodes].some(node => node.nodeType === 3) &&
  item.tagName !== "title" && item.textContent.trim() &&
  parseFloat(getComputedStyle(item).fontSize) < arguments[0]
).map(item => item.outerHTML.slice(0, 120))
""".replace("arguments[0]", str(LEAST_LETTERS_PX))
OVERLAPS = """
const found = [];
for (const chart of document.querySelectorAll(".plot")) {
  const texts = [...chart.querySelectorAll("span")];
  const words = texts.map(item => [item, item.getBoundingClientRect()]);
  words.forEach(([one, a], at) => words.slice(at + 1).forEach(([other, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (a.width && b.width && across > 1 && down > 3)
      found.push(one.textContent + " | " + other.textContent);
  }));
}
return found
"""
WITHOUT_CUE = """
return [...document.querySelectorAll(".scroll")].filter(item =>
  item.scrollWidth > item.clientWidth + 1 && innerWidth < 720 &&
  !(item.previousElementSibling?.matches(".cue") && item.previousElementSibling.checkVisibility())
).map(item => item.ariaLabel)
"""
WITHOUT_SCOPE = "return document.querySelectorAll('th:not([scope])').length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if shutil.which("chromedriver") is None:
        if os.environ.get(WITHOUT_BROWSER):
            pytest.skip(f"{WITHOUT_BROWSER} is set")
        pytest.fail(f"chromedriver is not there (set {WITHOUT_BROWSER}=1 to go without)")
    with Browser() as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of five runs, one with a name that is far too long."""
    runs = [
        sample_run("baseline", speed=28.1),
        sample_run("v2", speed=51.4),
        sample_run("dflash", speed=63.0),
        sample_run(LONG, speed=44.0),
        sample_run("v2-tq", speed=39.0),
    ]
    field = read_published(resources() / "recipes" / "facts" / "published.yaml")
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_page(runs, field, made_at="2026-11-21 09:00 UTC", version="0"))
    return path.as_uri()


@pytest.fixture(scope="module")
def full_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of five runs that have loads and quality, too."""
    speeds = {"v2": 51.4, "v3": 61.0, "v3-fast": 63.0, LONG: 44.0, "v2-tq": 39.0}
    runs = [loaded_run(name, speed=speed) for name, speed in speeds.items()]
    failures = ("the most likely token is the same in 40.0 % of positions, 95 % are wanted",)
    quality = [None, judged(runs[0], runs[1]), judged(runs[0], runs[2], failures=failures)]
    field = read_published(resources() / "recipes" / "facts" / "published.yaml")
    path = tmp_path_factory.mktemp("report") / "report.html"
    told = [*quality, judged(runs[0], runs[3]), None]
    path.write_text(report_page(runs, field, made_at="now", version="0", quality=told))
    return path.as_uri()


@pytest.mark.parametrize("screen", SCREENS, ids=str)
def test_it_fits_the_screen(browser: Browser, page: str, screen: Screen) -> None:
    hold(browser, page, screen, charts=CHARTS)


@pytest.mark.parametrize("screen", SCREENS, ids=str)
def test_it_fits_with_loads_and_quality(browser: Browser, full_page: str, screen: Screen) -> None:
    hold(browser, full_page, screen, charts=CHARTS + LOAD_CHARTS)


def hold(browser: Browser, page: str, screen: Screen, *, charts: int) -> None:
    browser.show(page, screen)
    assert browser.evaluate("return innerWidth") == screen.width
    assert browser.evaluate(VISIBLE_CHARTS) == charts
    assert browser.evaluate(OUTSIDE) == []
    assert browser.evaluate(WORDS_OUTSIDE) == []
    assert browser.evaluate(SCROLLS) is False
    assert browser.evaluate(SMALL_WORDS) == []
    assert browser.evaluate(OVERLAPS) == []
    assert browser.evaluate(WITHOUT_CUE) == []
    assert browser.evaluate(WITHOUT_SCOPE) == 0
    assert browser.messages() == []


@pytest.mark.slow
def test_five_runs_with_loads_print_on_few_pages(browser: Browser, full_page: str) -> None:
    browser.show(full_page, Screen(768, 1024))
    assert 1 <= len(PAGE.findall(browser.print_out())) <= MOST_PAGES
    browser.devtools("Emulation.setEmulatedMedia", {"media": "print"})
    for look in (OVERLAPS, WORDS_OUTSIDE, OUTSIDE):
        assert browser.evaluate(look) == [], look


def test_it_follows_light_and_dark(browser: Browser, page: str) -> None:
    grounds = set()
    for scheme in ("light", "dark"):
        browser.show(page, Screen(768, 1024, scheme))
        grounds.add(browser.evaluate("return getComputedStyle(document.body).backgroundColor"))
    assert grounds == {"rgb(255, 255, 255)", "rgb(20, 23, 27)"}


def test_it_prints(browser: Browser, page: str) -> None:
    """In print every chart is light and whole, and no table is cut off by a scroller."""
    browser.show(page, Screen(768, 1024, "dark"))
    printed = browser.print_out()
    assert printed.startswith(b"%PDF-")
    assert 1 <= len(PAGE.findall(printed)) <= MOST_PAGES
    browser.devtools("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.evaluate(VISIBLE_CHARTS) == CHARTS
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert browser.evaluate(ground) == "rgb(255, 255, 255)"
    scroller = "return getComputedStyle(document.querySelector('.scroll')).overflowX"
    assert browser.evaluate(scroller) == "visible"


def test_the_browser_test_would_notice(browser: Browser, tmp_path: Path) -> None:
    """What the tests above look for is found where it is."""
    path = tmp_path / "bad.html"
    path.write_text(
        '<img src="http://127.0.0.1:9/x.png"><p style="width:900px">wide</p>'
        '<p style="font-size:9px">small</p><div class="scroll" style="overflow:auto">'
        '<p style="width:900px">far</p></div><table><th>x</th></table>'
        '<div class="plot"><span style="position:fixed;top:300px">one</span>'
        '<span style="position:fixed;top:302px">two</span></div>'
    )
    browser.show(path.as_uri(), Screen(360, 800))
    for look in (OUTSIDE, SMALL_WORDS, OVERLAPS, WITHOUT_CUE):
        assert browser.evaluate(look) != [], look
    assert browser.evaluate(WITHOUT_SCOPE) == 1
    assert any("x.png" in message for message in browser.messages())
