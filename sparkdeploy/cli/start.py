"""The program's entry, which hears Ctrl-C from its first moment on."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERRUPTED_EXIT_CODE = 130
JUST_NOW_S = 2.0
AGAIN_S = 0.01
OBJECTS_BEFORE_A_LOOK = 200_000
"""All that an `up` with nothing to do makes, and half as much: by far most of it stays."""


class Interruption:
    """When a signal came last; an import or a library may have made another error of it."""

    at_s = -math.inf
    is_loading = False

    @classmethod
    @contextlib.contextmanager
    def loading(cls) -> Iterator[None]:
        """Raise behind the block what comes meanwhile: an import swallows it, or breaks."""
        cls.is_loading, before_s = True, cls.at_s
        try:
            yield
        finally:
            cls.is_loading = False
        # However long the import took after it.
        if cls.at_s > before_s:
            raise KeyboardInterrupt

    @classmethod
    def was_just_now(cls) -> bool:
        return time.monotonic() - cls.at_s < JUST_NOW_S

    @classmethod
    def hear(cls) -> None:
        """Let a terminal that goes away, or a `kill`, interrupt as Ctrl-C does."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup a signal is ignored, and stays so.
            if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
                signal.signal(number, cls._interrupt)
        sys.unraisablehook = cls._interrupt_again

    @classmethod
    def _interrupt(cls, _number: int, _frame: object) -> None:
        cls.at_s = time.monotonic()
        if not cls.is_loading:
            raise KeyboardInterrupt

    @classmethod
    def _interrupt_again(cls, lost: sys.UnraisableHookArgs) -> None:
        """Interrupt once more: what compiled code calls back cannot raise through it."""
        if lost.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(lost)
            return
        # A signal to itself would interrupt this function, which cannot raise either.
        again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()


def main() -> None:
    # Looking through what was imported, again and again, takes a tenth of a short command.
    gc.set_threshold(OBJECTS_BEFORE_A_LOOK)
    # Else pydantic reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        Interruption.hear()
        with Interruption.loading():
            from sparkdeploy.cli.main import main as run
    except BaseException:
        # Of all that has run here, an import alone: whatever it made of the signal, that is why.
        if Interruption.at_s == -math.inf:
            raise
        sys.stderr.write("error: interrupted\n")
        sys.exit(INTERRUPTED_EXIT_CODE)
    run()
