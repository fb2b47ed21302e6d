"""What all tests share."""

import gc
import os

import pytest
from hypothesis import settings

from tests.examples import DEFAULT_EXAMPLES, QUICK_PART, THOROUGH_EXAMPLES

# pytest-xdist exports it to its workers: what they start would think of a terminal of that width.
os.environ.pop("COLUMNS", None)

# A busy machine stretches single examples; the suite's own time limit is enough. In CI the same
# examples are taken each time, so that what fails there is the change's own doing.
settings.register_profile(
    "swift", deadline=None, max_examples=DEFAULT_EXAMPLES, derandomize="CI" in os.environ
)
# `--hypothesis-profile` takes the others: tests/run asks for quick with --unit, and for thorough
# with --slow. A property that wants a count of its own takes it from tests/examples.py.
settings.register_profile(
    "quick", settings.get_profile("swift"), max_examples=DEFAULT_EXAMPLES // QUICK_PART
)
settings.register_profile("thorough", deadline=None, max_examples=THOROUGH_EXAMPLES)
settings.load_profile("swift")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let golden files be written anew."""
    parser.addoption("--update-golden", action="store_true", help="Write the golden files anew.")


def pytest_collection_finish() -> None:
    """Let the collector pass over what lives to the end: hundreds of modules and all tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Blame a connection that was left open on its own test, not on a later one."""
    if {"engine", "cluster"} & {*item.path.parts}:
        gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what tests left out because the machine lacks what they need."""
    left_out = {
        f"{report.nodeid}: {value}"
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "left out"
    }
    if left_out:
        terminalreporter.section("left out on this machine")
        for line in sorted(left_out):
            terminalreporter.line(line)
