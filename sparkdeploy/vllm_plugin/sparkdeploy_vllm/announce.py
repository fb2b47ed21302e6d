"""The plugin's logger, below vLLM's own name, so that its handlers, level and format apply."""

from functools import cache
from typing import Any

from vllm.logger import init_logger

logger = init_logger("vllm.sparkdeploy")


def announce(line: str) -> None:
    logger.info("%s", line)


announce_once = cache(announce)


@cache
def warn_once(line: str) -> None:
    logger.warning("%s", line)


def announce_choice(choice: Any) -> None:
    """Say which tiles run, and why tuned ones do not, each once."""
    if choice.ignored:
        warn_once(f"sparkdeploy: {choice.ignored}")
    announce_once(choice.line)
