"""What making a recipe's checkpoint takes, said before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.contents import ModelSizes, model_sizes
from sparkdeploy.checkpoint.fp8 import expected_bytes
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.prebuilt import fp8_bytes
from sparkdeploy.checkpoint.ranges import HubRanges, read_config
from sparkdeploy.commands.drafting import Request, resolve
from sparkdeploy.console import format_bytes
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate.model_facts import read_shipped_facts
from sparkdeploy.node import facts
from sparkdeploy.plan.make import OVERLAY_WRITE_BYTES
from sparkdeploy.plan.observe import locate_model
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.recipe.schema import Model, Recipe
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Takes:
    """What making a recipe's checkpoint takes; None where nobody could say."""

    model: str
    is_here: bool
    known_from: str
    """Who states the sizes: files, the hub, or facts that were shipped and derived."""
    fetch_bytes: int | None
    write_bytes: int | None
    free_bytes: int | None
    hub_free_bytes: int | None
    standalone_bytes: int | None
    """What `--standalone` would write."""

    def lines(self) -> list[str]:
        """The answer for a person."""
        place = "is here" if self.is_here else "is not here"
        return [
            f"model {self.model} {place} (sizes: {self.known_from})",
            f"to fetch {_shown(self.fetch_bytes)}, free in the hub's cache "
            f"{_shown(self.hub_free_bytes)}",
            f"to write {_shown(self.write_bytes)}, free {_shown(self.free_bytes)}",
            f"--standalone would write {_shown(self.standalone_bytes)}",
        ]


@dataclass(frozen=True, slots=True)
class _Absent:
    """A model that is not here: bytes of its repository and of the FP8 tensors it would take."""

    known_from: str
    size_bytes: int | None
    fp8_bytes: int | None


def checkpoint_takes(recipe: str, assignments: Sequence[str], settings: Settings) -> Takes:
    """State bytes to fetch, bytes to write and free space; nothing is changed, not even a pin.

    The hub is asked about a model that is neither here nor pinned; where it does not answer, the
    shipped facts do.
    """
    resolved = resolve(Request(recipe, tuple(assignments)), settings).recipe
    located = locate_model(resolved, settings)
    fact = located.fact
    if not isinstance(fact, ModelFact) or located.source is None:
        return _takes_of_absent(resolved, _absent(resolved, settings), settings)
    to_fetch = fp8_bytes(resolved.checkpoint, located.source, settings)
    overlay = 0 if fact.overlay is None or fact.overlay.is_complete else OVERLAY_WRITE_BYTES
    return Takes(
        model=resolved.model.path or resolved.model.repo,
        is_here=True,
        known_from="the files",
        fetch_bytes=to_fetch,
        write_bytes=to_fetch + overlay,
        free_bytes=facts.free_bytes(settings.data_dir),
        hub_free_bytes=facts.free_bytes(settings.hub_cache),
        standalone_bytes=fact.size_bytes,
    )


def _takes_of_absent(recipe: Recipe, absent: _Absent, settings: Settings) -> Takes:
    parts = (absent.size_bytes, absent.fp8_bytes)
    known = [part for part in parts if part is not None]
    fetch_bytes = sum(known) if len(known) == len(parts) else None
    return Takes(
        model=recipe.model.repo,
        is_here=False,
        known_from=absent.known_from,
        fetch_bytes=fetch_bytes,
        write_bytes=None if fetch_bytes is None else fetch_bytes + OVERLAY_WRITE_BYTES,
        free_bytes=facts.free_bytes(settings.data_dir),
        hub_free_bytes=facts.free_bytes(settings.hub_cache),
        standalone_bytes=absent.size_bytes,
    )


def _absent(recipe: Recipe, settings: Settings) -> _Absent:
    takes_fp8 = recipe.checkpoint.fp8_dense.source is not None
    try:
        return _asked(recipe.model, settings, takes_fp8=takes_fp8)
    except CheckpointError as error:
        shipped = read_shipped_facts(resources() / "recipes" / "facts" / "models.yaml")
        known = shipped.get(recipe.model.repo)
        if known is None:
            return _Absent(f"nobody: {error.message}", None, None)
        shape = known.architecture
        sizes = ModelSizes(
            layers=shape.layers,
            hidden=shape.hidden_size,
            vocab=shape.vocab_size,
            experts=shape.num_experts,
            shared_expert_intermediate=shape.shared_expert_intermediate_size,
            mtp_layers=shape.mtp_num_hidden_layers,
            ties_embeddings=False,
        )
        fetch_bytes = expected_bytes(sizes) if takes_fp8 else 0
        said = f"shipped facts, derived, because {error.message}"
        return _Absent(said, known.total_bytes, fetch_bytes)


def _asked(model: Model, settings: Settings, *, takes_fp8: bool) -> _Absent:
    """What the hub says now, in one try, of the pinned commit or the branch."""
    hub = replace(open_hub(settings), attempts=1)
    pin = HubLock(settings.state_dir).pin(model.repo, model.revision)
    if pin is not None and pin.files:
        found, known_from = pin.facts(model.repo, model.revision), f"pinned at {pin.commit[:12]}"
    else:
        found = hub.describe(model.repo, pin.commit if pin is not None else model.revision)
        known_from = f"the hub, at {found.commit[:12]}"
    if not takes_fp8:
        return _Absent(known_from, found.size_bytes, 0)
    config = read_config(HubRanges(hub, found))
    return _Absent(known_from, found.size_bytes, expected_bytes(model_sizes(config)))


def _shown(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_bytes(size_bytes)
