"""A Docker Engine as the rest of the house sees it."""

from __future__ import annotations

from sparkdeploy.node.containers import Containers
from sparkdeploy.node.images import Images


class DockerHost(Images, Containers):
    """One Docker Engine with its images and containers; a context manager.

    Opening raises NodeError when nobody answers, and so does every call that the engine refuses.
    """
