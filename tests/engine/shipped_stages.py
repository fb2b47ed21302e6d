"""The stages of an engine that ships, for this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.image.stages import stages_of
from sparkdeploy.node.facts import architecture
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from sparkdeploy.image.stages import Stage

REHEARSAL = "cpu-0.32"


def shipped_stages(engine: str = REHEARSAL) -> tuple[Stage, ...]:
    """Return them from the base up, as on a machine that reaches no registry."""
    return stages_of(
        load_engine(Library((resources() / "recipes",)), engine),
        base_source="debian",
        architecture=architecture(),
        resources=resources(),
    )
