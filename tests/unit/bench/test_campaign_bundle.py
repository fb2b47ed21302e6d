"""What a campaign leaves to be posted: no secret, bounded, read strictly."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench.campaign.folder import (
    Campaign,
    CampaignBundle,
    CampaignPlan,
    PlannedRecipe,
    SharedRecipe,
    SharedStep,
    StepKind,
    read_bundle,
    shareable,
)
from sparkdeploy.bench.campaign.privacy import Private, private_of
from sparkdeploy.bench.campaign.report import campaign_page
from sparkdeploy.bench.figures import Estimate
from sparkdeploy.bench.files import adapter_of, json_text
from sparkdeploy.bench.quality.comparison import QualityFigures
from sparkdeploy.bench.quality.probes import CaseResult, NeedleResult
from sparkdeploy.bench.report.page import read_published
from sparkdeploy.settings import load_settings
from tests.fakes.bench_runs import bundle_with, fields_of, judged, loaded_run
from tests.unit.bench.planted import HOME, PLANTED, planted_run
from tests.unit.conftest import REPOSITORY

SCHEMA_FILE = REPOSITORY / "docs" / "bench-bundle.schema.json"
PUBLISHED = read_published(REPOSITORY / "recipes" / "facts" / "published.yaml")
PRIVATE = Private(
    secrets=(PLANTED["key"], PLANTED["variable"]),
    names=(PLANTED["host"], PLANTED["user"]),
    folders=(HOME,),
)


def planted_bundle() -> CampaignBundle:
    everything = " ".join(PLANTED.values())
    words = f"{HOME}/{PLANTED['folder']}: {PLANTED['host']}, http://{PLANTED['peer']}/v1"
    step = SharedStep("up", "failed", f"{words} {PLANTED['key']} {PLANTED['variable']}")
    quality = QualityFigures("baseline", 10, Estimate(0.9), Estimate(0.1), None,
                            Estimate(None), Estimate(0.2))  # fmt: skip
    return bundle_with(
        SharedRecipe("v2", "title", (step,), planted_run(), quality,
                     tools=(CaseResult("strings", "", f"{PLANTED['user']}: {words}"),),
                     needles=(NeedleResult(1024, 0.1, 1000, is_found=True, answer="4"),),
                     tuning=everything.replace(PLANTED["folder"], "").replace(PLANTED["peer"], "")),
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_nothing_that_was_planted_is_in_what_is_posted(name: str) -> None:
    shared = shareable(planted_bundle(), PRIVATE)
    assert PLANTED[name] in json.dumps(str(planted_bundle()))
    for text in (json_text(shared, CampaignBundle), campaign_page(shared, PUBLISHED)):
        assert PLANTED[name] not in text
        assert HOME not in text


@given(st.text("abc./:@-0123 ", max_size=40), st.sampled_from(sorted(PLANTED)))
def test_a_secret_goes_wherever_it_stands(around: str, name: str) -> None:
    private = replace(PRIVATE, secrets=tuple(PLANTED.values()))
    text = f"{around}{PLANTED[name]}{around}"
    assert PLANTED[name] not in json.dumps(private.without([text, {text: {text: 1}}]))


@pytest.mark.parametrize(
    "address",
    [
        *("ada@spark-7", "ssh://ada@spark-7/x", "10.1.2.3", "fe80::4", "10:1:2::4", "10::"),
        "r.lan:5000/m",
    ],
)
def test_addresses_that_nobody_here_knows_go_by_their_form(address: str) -> None:
    shared = json.dumps(Private().without({f"at {address} there": f"from {address} here"}))
    assert not re.search(r"ada|spark-7|10|fe80|r\.lan", shared)
    for words in ("12:30:45", "c10::Error", "127.0.0.1", "v0.25.1"):
        assert Private().without(f"at {words} here") == f"at {words} here"


def test_what_this_machine_knows_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("HF_TOKEN", PLANTED["hub token"])
    keys = tmp_path / "state" / "keys"
    keys.mkdir(parents=True)
    (keys / "main").write_text(PLANTED["key"])
    settings = replace(load_settings(), node_name=f"{PLANTED['host']}.example.org")
    settings = replace(settings, cluster={"nodes": [{"name": "n-two", "ssh": "peer-two"}]})
    recipe = PlannedRecipe("v2", "v2", "", (*StepKind,))
    sets = (f"serve.env.COLOUR={PLANTED['variable']}", "serve.env.VLLM_LOGGING_LEVEL=DEBUG")
    campaign = Campaign(tmp_path / "c", CampaignPlan("s", "main", (recipe,), sets))
    private = private_of(campaign, settings)
    said = private.without(
        [*PLANTED.values(), f"{HOME}/x", "n-two peer-two", str(tmp_path / "state")]
    )
    kept = {PLANTED["peer"], PLANTED["user"], PLANTED["folder"]}
    assert not set(said) & (set(PLANTED.values()) - kept)
    assert all(word not in str(said) for word in (HOME, "n-two", "peer-two", str(tmp_path)))
    assert private.without("DEBUG on NVIDIA DGX Spark") == "DEBUG on NVIDIA DGX Spark"


def test_a_bundle_is_read_as_it_was_written(tmp_path: Path) -> None:
    bundle = shareable(planted_bundle(), PRIVATE)
    path = tmp_path / "bundle.json"
    path.write_text(json_text(bundle, CampaignBundle))
    assert read_bundle(path) == bundle


def test_the_documented_schema_is_the_real_one(request: pytest.FixtureRequest) -> None:
    schema = adapter_of(CampaignBundle).json_schema()
    if request.config.getoption("--update-golden"):
        SCHEMA_FILE.write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")
    assert fields_of(json.loads(SCHEMA_FILE.read_text())) == fields_of(schema)


def judged_bundle(agreement: float) -> CampaignBundle:
    first, second = loaded_run("baseline", speed=30), loaded_run("v2", speed=50)
    found = replace(judged(first, second).figures, top1_agreement=Estimate(agreement))
    return bundle_with(
        SharedRecipe("baseline", "", (), first), SharedRecipe("v2", "", (), second, found)
    )


@pytest.mark.parametrize(("agreement", "said"), [(0.99, "passes"), (0.5, "fails")])
def test_the_page_of_a_campaign_begins_with_quality_too(agreement: float, said: str) -> None:
    first = campaign_page(judged_bundle(agreement), PUBLISHED).partition("<figure")[0]
    assert f"{said} the gate beside baseline" in first
    assert "is the reference" in first
    assert "(bench load)" in first
