"""Servers that answer at once, and the program as a user runs it, for the tests of `bench`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.http_server import serving
from tests.fakes.vllm_server import FakeEngine, TalkingEngine
from tests.unit.program import Done, Run


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with serving(FakeEngine()) as made:
        yield made


@pytest.fixture
def talking_engine() -> Iterator[TalkingEngine]:
    """It is asked about quality, needles and tools as well."""
    with serving(TalkingEngine()) as made:
        yield made


@pytest.fixture
def bench(run: Run) -> Callable[..., Done]:
    """The program in this process: `bench("ls")`."""
    return functools.partial(run, "bench")
