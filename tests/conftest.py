"""What all tests share."""

import gc
import os

import pytest
from hypothesis import settings

# A busy machine stretches single examples; the suite's own time limit is enough. In CI the same
# examples are taken each time, so that what fails there is the change's own doing.
settings.register_profile("swift", deadline=None, max_examples=30, derandomize="CI" in os.environ)
# `--hypothesis-profile thorough` takes it; tests/run --slow does.
settings.register_profile("thorough", deadline=None, max_examples=2500)
settings.load_profile("swift")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Blame a connection that was left open on its own test, not on a later one."""
    if "unit" not in item.path.parts:
        gc.collect()
