"""Signals that come in the middle of something short."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy.lock import defer_signals

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def python_hears_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interruption_is_heard_when_the_block_is_over() -> None:
    done = []

    def work() -> None:
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()

    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_inside_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="inside"), defer_signals():
        raise ValueError("inside")

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with defer_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_holds_nothing() -> None:
    done = []

    def work() -> None:
        with defer_signals():
            done.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert done == [True]
