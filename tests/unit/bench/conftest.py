"""Servers that answer at once, and the program as a user runs it, for the tests of `bench`."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING

import pytest

from tests.unit.bench.fake_engine import FakeEngine
from tests.unit.bench.talking_engine import TalkingEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.program import Done, Run


@contextlib.contextmanager
def answering(engine: FakeEngine) -> Iterator[None]:
    with engine:
        thread = threading.Thread(target=engine.serve_forever, args=(0.01,))
        thread.start()
        yield
        engine.shutdown()
        thread.join()


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    made = FakeEngine()
    with answering(made):
        yield made


@pytest.fixture
def talking_engine() -> Iterator[TalkingEngine]:
    """It is asked about quality, needles and tools as well."""
    made = TalkingEngine()
    with answering(made):
        yield made


@pytest.fixture
def bench(run: Run) -> Callable[..., Done]:
    """The program in this process: `bench("ls")`."""
    return functools.partial(run, "bench")
