"""What tests with the real vLLM share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.turns import vllm_turn


@pytest.fixture(scope="module", autouse=True)
def turn() -> Iterator[None]:
    """A file keeps its turn from its first test to its last: what one starts, the next may use."""
    with vllm_turn():
        yield
