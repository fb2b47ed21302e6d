"""What all tests share."""

import gc

import pytest


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Blame a connection that was left open on its own test, not on a later one."""
    if "unit" not in item.path.parts:
        gc.collect()
