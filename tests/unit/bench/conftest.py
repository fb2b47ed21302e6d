"""What the tests of `bench` share: a server that answers at once, and the program."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

import pytest

from tests.unit.bench.fake_engine import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.program import Done, Run


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def bench(run: Run) -> Callable[..., Done]:
    """The program in this process: `bench("ls")`."""
    return functools.partial(run, "bench")
