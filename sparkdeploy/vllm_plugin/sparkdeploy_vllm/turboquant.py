"""Keeps TurboQuant's attention out of CUDA graphs it cannot be captured in.

vLLM's TurboQuant builder claims full graphs for any uniform batch, but verifies speculative
tokens in a Python loop over requests whose lengths a captured graph freezes: silent garbage with
MTP (vLLM 0.20 to 0.33). The replacement claims single-token decoding only when a speculative
configuration is present; vLLM then falls back to piecewise graphs by itself.
"""

BACKEND_PATH = "sparkdeploy_vllm.turboquant_backend.SparkTurboQuantBackend"


def register() -> None:
    """Replace the TURBOQUANT back end, by path (nothing is imported until it is selected)."""
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError:
        return
    if hasattr(AttentionBackendEnum, "TURBOQUANT"):
        register_backend(AttentionBackendEnum.TURBOQUANT, BACKEND_PATH)
