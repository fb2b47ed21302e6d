"""The twin: a few megabytes with the names, kinds and configuration of the real checkpoint."""

from sparkdeploy.checkpoint.twin.build import build_twin, expected_reply, is_twin_of
from sparkdeploy.checkpoint.twin.shape import ExpertFormat, TwinShape

__all__ = ["ExpertFormat", "TwinShape", "build_twin", "expected_reply", "is_twin_of"]
