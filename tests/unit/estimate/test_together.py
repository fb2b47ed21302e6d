"""Several recipes on one machine: sums of their budgets, and the shares with which they would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.authoring.fits import _member
from sparkdeploy.authoring.outlook import ground_for
from sparkdeploy.estimate.hardware import read_hardware
from sparkdeploy.estimate.memory import CPU_SERVER_BYTES, GIB, Budget, Reserve
from sparkdeploy.estimate.model import WeightKind
from sparkdeploy.estimate.verdict import Fits, Tenant, Together
from sparkdeploy.recipe.load import load_recipe
from sparkdeploy.settings import load_settings
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from sparkdeploy.recipe.load import Library
    from tests.unit.program import Run

MACHINES = read_hardware(Path(REPOSITORY) / "recipes" / "facts" / "hardware.yaml")
SPARK = replace(MACHINES["spark"], memory_bytes=100 * GIB)


def member(share: float, weights_gib: int, fits: Fits = Fits.YES, unknown: str = "") -> Tenant:
    budget = Budget(
        hardware=SPARK,
        utilization=share,
        loaded={WeightKind.ATTENTION: weights_gib * GIB},
        reserves=(Reserve("graphs", GIB, "a test"),),
        layout=None,
        max_model_len=0,
        floor_bytes=4 * GIB,
        unknown=unknown,
    )
    return Tenant("any", 8000, budget, fits, "why")


def test_what_they_claim_is_added_and_the_machine_keeps_its_part_once() -> None:
    found = Together(SPARK, (member(0.5, 20), member(0.4, 20)))
    assert found.claimed_bytes == 90 * GIB
    assert found.kept_bytes == 2 * CPU_SERVER_BYTES + 4 * GIB
    assert found.fits is Fits.YES


def test_one_gib_too_much_does_not_fit() -> None:
    assert Together(SPARK, (member(0.5, 20), member(0.41, 20))).fits is Fits.NO
    # A card with memory of its own has no machine to leave it to.
    card = replace(SPARK, shares_memory=False)
    assert Together(card, (member(0.5, 20), member(0.41, 20))).fits is Fits.YES


def test_the_worst_of_them_counts() -> None:
    good = member(0.2, 5)
    assert Together(SPARK, (good, member(0.2, 30, Fits.NO))).fits is Fits.NO
    unsure = Together(SPARK, (good, member(0.2, 5, Fits.UNKNOWN)))
    assert unsure.fits is Fits.UNKNOWN
    assert unsure.reason.startswith("any may fit alone: why; together they claim 40.0 GiB")


def test_the_least_share_holds_weights_and_reserves() -> None:
    assert member(0.9, 20).least_share == 0.22
    assert member(0.9, 20, unknown="its cache").least_share is None
    assert member(0.9, 200).least_share is None


def test_shares_fit_are_enough_and_no_more_than_was_asked() -> None:
    wanted = (member(0.9, 40), member(0.3, 10))
    shares = Together(SPARK, wanted).shares()
    assert shares == (0.6, 0.3)
    smaller = tuple(
        replace(it, budget=replace(it.budget, utilization=share))
        for it, share in zip(wanted, shares, strict=True)
    )
    assert Together(SPARK, smaller).fits is Fits.YES


def test_too_much_for_any_share_is_said() -> None:
    assert Together(SPARK, (member(0.9, 60), member(0.9, 40))).shares() is None
    assert Together(replace(SPARK, memory_bytes=0), (member(0.9, 1),)).shares() is None


def test_the_command_answers_with_commands_that_fit(run: Run) -> None:
    wanted = ("fits", "qwen3.6-35b", "qwen3-vl-embedding", "--hardware", "spark")
    done = run(*wanted)
    assert done.returncode == 1
    assert done.stdout.startswith("does not fit on NVIDIA DGX Spark")
    second = done.stdout.splitlines()[-1]
    assert "up qwen3-vl-embedding --name model-2 --set serve.port=8001" in second


@pytest.mark.parametrize(
    ("recipes", "exit_code"), [(("qwen3-vl-embedding",), 0), (("qwen3.5-397b-int4",), 1)]
)
def test_the_exit_code_says_whether_they_fit(
    run: Run, recipes: tuple[str, ...], exit_code: int
) -> None:
    assert run("fits", *recipes, "--hardware", "spark", "--json").returncode == exit_code


@pytest.mark.parametrize(("least", "fits"), [((), Fits.YES), (("cluster.min_nodes=2",), Fits.NO)])
def test_one_for_several_machines_fits_on_none(
    shipped: Library, least: tuple[str, ...], fits: Fits
) -> None:
    resolved = load_recipe(shipped, "qwen3-vl-embedding", least)
    found = _member(ground_for("spark", load_settings()), resolved, "it")
    assert found.fits_alone is fits
    assert ("2 machines" in found.reason) is bool(least)


def test_a_recipe_that_is_not_there_is_an_error_of_its_own(run: Run) -> None:
    assert run("fits", "nope", "--hardware", "spark").returncode == 3
