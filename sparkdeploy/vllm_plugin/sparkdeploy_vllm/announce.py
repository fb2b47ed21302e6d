"""The plugin's logger, below vLLM's own name, so that its handlers, level and format apply."""

from functools import cache

from vllm.logger import init_logger

logger = init_logger("vllm.sparkdeploy")


def announce(line: str) -> None:
    logger.info("%s", line)


announce_once = cache(announce)


@cache
def warn_once(line: str) -> None:
    logger.warning("%s", line)
