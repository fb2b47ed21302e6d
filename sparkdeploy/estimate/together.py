"""Whether several recipes fit one machine at the same time, by their budgets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy.estimate.memory_claim import CPU_SERVER_BYTES
from sparkdeploy.estimate.verdict import Fits
from sparkdeploy.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.estimate.hardware import Hardware
    from sparkdeploy.estimate.memory import Budget

HUNDREDTHS = 100
"""Shares of memory are told in steps of one hundredth."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One recipe of a set."""

    recipe: str
    """As it was named."""
    port: int
    budget: Budget
    fits_alone: Fits
    reason: str = ""
    """Why it does not fit alone, or what is not known of it."""

    @property
    def least_share(self) -> float | None:
        """Return the least part of memory with which it serves one request at its own context.

        None where that is not known, and where no part is enough.
        """
        if self.budget.unknown:
            return None
        shares = (part / HUNDREDTHS for part in range(1, HUNDREDTHS + 1))
        return next((it for it in shares if _serves(replace(self.budget, utilization=it))), None)


def _serves(budget: Budget) -> bool:
    taken_bytes, longest = budget.weight_bytes + budget.reserve_bytes, budget.longest
    return taken_bytes < budget.claim_bytes and (longest is None or longest.concurrency >= 1)


@dataclass(frozen=True, slots=True)
class Together:
    """A set of recipes on one machine; bytes."""

    hardware: Hardware
    members: Sequence[Tenant]

    @property
    def claimed_bytes(self) -> int:
        """Return what all vLLMs may use."""
        return sum(item.budget.claim_bytes for item in self.members)

    @property
    def kept_bytes(self) -> int:
        """Return what servers take beside that, and what has to stay free, on shared memory."""
        if not self.hardware.shares_memory:
            return 0
        floor_bytes = max((item.budget.floor_bytes for item in self.members), default=0)
        return CPU_SERVER_BYTES * len(self.members) + floor_bytes

    @property
    def room_bytes(self) -> int:
        return self.hardware.memory_bytes - self.kept_bytes

    @property
    def fits(self) -> Fits:
        alone = {item.fits_alone for item in self.members}
        if Fits.NO in alone or self.claimed_bytes > self.room_bytes:
            return Fits.NO
        return Fits.UNKNOWN if Fits.UNKNOWN in alone else Fits.YES

    @property
    def reason(self) -> str:
        """Return why they do not fit or may not; the sums where they do."""
        alone = [it for it in self.members if it.fits_alone is not Fits.YES]
        told = [f"{it.recipe} {it.fits_alone.value} alone: {it.reason}" for it in alone]
        kept = f", {format_gib(self.kept_bytes)} stay for servers and machine"
        sums = (
            f"together they claim {format_gib(self.claimed_bytes)} of "
            f"{format_gib(self.hardware.memory_bytes)}{kept if self.kept_bytes else ''}"
        )
        return "; ".join((*told, sums))

    def shares(self) -> tuple[float, ...] | None:
        """Return shares with which all would fit, what is left divided evenly; None without any.

        No recipe gets more than it asks for, unless that is too little for it.
        """
        if self.hardware.memory_bytes <= 0:
            return None
        least = [item.least_share for item in self.members]
        known = [it for it in least if it is not None]
        spare = self.room_bytes / self.hardware.memory_bytes - sum(known)
        if len(known) < len(least) or not known or spare < 0:
            return None
        more = math.floor(spare / len(known) * HUNDREDTHS) / HUNDREDTHS
        asked = (item.budget.utilization for item in self.members)
        return tuple(
            round(max(share, min(share + more, wanted)), 2)
            for share, wanted in zip(known, asked, strict=True)
        )
