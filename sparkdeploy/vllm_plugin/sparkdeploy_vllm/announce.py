"""The plugin's logger: below vLLM's own name, so that vLLM's handlers and level apply."""

from functools import cache

from vllm.logger import init_logger

logger = init_logger("vllm.sparkdeploy")


def announce(line: str) -> None:
    """Write one INFO line in vLLM's log format."""
    logger.info("%s", line)


@cache
def announce_once(line: str) -> None:
    """Write one INFO line; the same line again in this process is not written."""
    announce(line)


@cache
def warn_once(line: str) -> None:
    """Write one WARNING line; the same line again in this process is not written."""
    logger.warning("%s", line)
