"""How many drafted tokens are accepted: inputs of the speed estimate, as others report them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkdeploy.recipe.schema import Speculative

_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How often the first, second ... drafted token is accepted, of all steps; an input."""

    positions: tuple[float, ...]
    source: str
    reported: int = 0
    """How many of the positions somebody reported; the others are assumed, and so are all where
    only tokens a step were reported."""
    assumption: str = ""
    """How the others come about, in words that follow `assumed: `."""
    tokens_by_text: Mapping[str, float] = field(default_factory=dict)
    """Tokens a step that were reported of other texts, all positions drafted."""

    def tokens_per_step(self, drafted: int) -> float | None:
        """Return 1 and what is accepted of so many drafts; None beyond the known positions."""
        return 1 + sum(self.positions[:drafted]) if drafted <= len(self.positions) else None


def acceptance_of(
    speculative: Speculative, acceptance: Mapping[str, Acceptance]
) -> Acceptance | None:
    """Return what is known of a drafter: of MTP by its name, of another one by its repository."""
    return acceptance.get("mtp" if speculative.is_mtp else speculative.model or "")


def read_acceptance(path: Path) -> Mapping[str, Acceptance]:
    table = read_document(path).content["acceptance"]
    return {name: _acceptance(entry) for name, entry in table.items()}


def _acceptance(entry: Mapping[str, Any]) -> Acceptance:
    reported = tuple(entry.get("positions", ()))
    assumed = tuple(entry.get("assumed", ()))
    if "tokens_a_step" in entry:
        assumed = even_positions(entry["drafted"], entry["tokens_a_step"])
    return Acceptance(
        positions=reported + assumed,
        source=entry["source"],
        reported=len(reported),
        assumption=entry.get("assumption", ""),
        tokens_by_text=entry.get("tokens_by_text", {}),
    )


def even_positions(drafted: int, tokens_a_step: float) -> tuple[float, ...]:
    """Return r, r^2 ... r^drafted, which with the model's own token come to `tokens_a_step`.

    Each draft is as likely accepted as the one before it, once that one was. Raises ValueError for
    fewer than one token a step, and for more than all drafts accepted give.
    """
    if not 1 <= tokens_a_step <= 1 + drafted:
        raise ValueError(f"{tokens_a_step} tokens a step of {drafted} drafts")
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        is_less = 1 + sum(rate**at for at in range(1, drafted + 1)) < tokens_a_step
        low, high = (rate, high) if is_less else (low, rate)
    return tuple(high**at for at in range(1, drafted + 1))
