"""The vLLM plugin of sparkdeploy; importing it imports neither vLLM nor torch."""

__version__ = "0.1.0"


def register() -> None:
    """Entry point `vllm.general_plugins`: may be called several times in one process."""
    from sparkdeploy_vllm.registration import register_all

    register_all()
