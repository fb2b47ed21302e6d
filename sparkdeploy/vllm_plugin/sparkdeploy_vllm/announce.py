"""The plugin's logger: below vLLM's own name, so that vLLM's handlers and level apply."""

from vllm.logger import init_logger

logger = init_logger("vllm.sparkdeploy")


def announce(line: str) -> None:
    """Write one INFO line in vLLM's log format."""
    logger.info("%s", line)
