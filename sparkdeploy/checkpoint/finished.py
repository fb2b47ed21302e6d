"""A finished hybrid on the hub: whether it is one, before its 72 GB are fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.contents import model_sizes
from sparkdeploy.checkpoint.fp8 import find_fp8
from sparkdeploy.checkpoint.ranges import index_of, read_config
from sparkdeploy.checkpoint.treatment import check_mtp

if TYPE_CHECKING:
    from sparkdeploy.checkpoint.ranges import RangeSource
    from sparkdeploy.checkpoint.treatment import Treatment


def check_remote(source: RangeSource, treatment: Treatment) -> None:
    """Read configuration, index and headers, some megabytes, and hold them against one another.

    Raises CheckpointError naming every shared expert that is not FP8 with scales, and what is
    missing of the draft layer when the treatment needs that.
    """
    sizes = model_sizes(read_config(source))
    indexed = index_of(source)
    find_fp8(source, sizes, indexed)
    if treatment.mtp == "required":
        check_mtp(source.name, sizes, indexed)
