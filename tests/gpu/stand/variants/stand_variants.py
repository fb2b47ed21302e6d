"""Plugins for one proof each: what happens to TurboQuant with a part of ours left out or added.

SPARKDEPLOY_STAND_VARIANT names the back end below; each server of a plan sets its own.
"""

import os


def register() -> None:
    """Ours first, then the variant in its place."""
    from sparkdeploy_vllm import register as register_ours
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_ours()
    variant = os.environ["SPARKDEPLOY_STAND_VARIANT"]
    register_backend(AttentionBackendEnum.TURBOQUANT, f"stand_variant_backends.{variant}")
