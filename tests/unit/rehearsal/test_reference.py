"""The recorded text that a rehearsal is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from sparkdeploy.deploy.request import Request
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.recipe.load import Library, load_engine, load_recipe
from sparkdeploy.rehearsal import miniature, rehearse, requests
from sparkdeploy.rehearsal.miniature import Miniature, miniature_of
from sparkdeploy.rehearsal.requests import (
    Answer,
    compare_with_reference,
    read_reference,
    reference_path,
)
from sparkdeploy.server.metrics import Speculation
from sparkdeploy.settings import load_settings

TWIN = Path("/data/m/twin")
ANSWER = Answer("Once", " upon", 1, 0.1)


def test_the_same_text_passes() -> None:
    compare_with_reference([ANSWER], {"Once": " upon"})


@pytest.mark.parametrize("texts", [{"Once": " more"}, {"Twice": " upon"}, {}])
def test_another_text_or_none_at_all_fails(texts: dict[str, str]) -> None:
    with pytest.raises(UnhealthyError, match="not what it is without speculation"):
        compare_with_reference([ANSWER], texts)


def test_a_rehearsal_is_held_against_what_an_earlier_one_said(
    shipped: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = [(ANSWER,), (ANSWER,), (replace(ANSWER, text=" more"),)]
    monkeypatch.setattr(rehearse, "_reference_file", lambda *_: tmp_path / "record.json")
    monkeypatch.setattr(rehearse, "_serve", lambda *_: SimpleNamespace(answers=said.pop(0)))
    small = Miniature(load_recipe(shipped, "baseline"), ())

    def source() -> str:
        return rehearse._serve_and_compare(small, Request("x"), load_settings(), fresh=False)[1]

    assert source() == rehearse.FIRST_OF_ITS_KIND
    assert source() == rehearse.RECORDED_EARLIER
    with pytest.raises(UnhealthyError, match="not what it is without speculation"):
        source()


@pytest.mark.parametrize("content", ["", "{}", "[1]", "5", "{"])
def test_a_broken_record_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "record.json").write_text(content)
    assert read_reference(tmp_path / "record.json") is None


def record_of(
    shipped: Library,
    recipe: str,
    *settings: str,
    tags: tuple[str, ...] = ("engine:1", "plugin:1"),
    asked: Mapping[str, object] = MappingProxyType({}),
) -> Path:
    """Where the text of a recipe's miniature is recorded."""
    engine = load_engine(shipped, "cpu-0.32")
    resolved = load_recipe(shipped, recipe, settings)
    small = miniature_of(resolved, engine=engine, twin=TWIN, port=8190)
    images = tuple(SimpleNamespace(stage=SimpleNamespace(tag=tag)) for tag in tags)
    plan: Any = SimpleNamespace(resolved=small.resolved, images=images)
    return reference_path(plan, asked, Path("/state"))


def test_a_changed_image_or_question_has_a_record_of_its_own(shipped: Library) -> None:
    paths = {
        record_of(shipped, "v2"),
        # The last stage's tag holds the fingerprints of those below it.
        record_of(shipped, "v2", tags=("engine:1", "plugin:2")),
        record_of(shipped, "v2", asked={"prompts": ["Once"]}),
        record_of(shipped, "v2", asked={"prompts": ["Twice"]}),
    }
    assert len(paths) == 4


@pytest.mark.parametrize("recipe", ["mtp-2", "hybrid"])
def test_another_conversion_has_a_record_of_its_own(shipped: Library, recipe: str) -> None:
    assert record_of(shipped, recipe) != record_of(shipped, "v2")


@pytest.mark.parametrize("setting", ["lm_head=bf16", "fp8_dense.mode=off", "shared_experts=int4"])
def test_each_part_of_a_conversion_counts(shipped: Library, setting: str) -> None:
    plain = "checkpoint.fp8_dense.mode=off"
    base = (plain,) if setting.startswith("shared") else ()
    changed = record_of(shipped, "v2", *base, f"checkpoint.{setting}")
    assert changed != record_of(shipped, "v2", *base)


@pytest.mark.parametrize("recipe", ["dflash", "dflash-prose"])
def test_what_drafts_is_held_against_the_same_record(shipped: Library, recipe: str) -> None:
    assert record_of(shipped, recipe) == record_of(shipped, "v2")
    longer = record_of(shipped, recipe, "serve.max_model_len=1024")
    assert longer != record_of(shipped, "v2")


def refuses(_path: str, _body: object) -> None:
    raise UnhealthyError("http://127.0.0.1:8190/v1/completions answered 400: no such thing")


def test_a_refusal_counts_only_of_a_server_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = SimpleNamespace(ask=refuses)
    monkeypatch.setattr(requests, "_is_healthy", lambda _model: True)
    assert requests._asked(model, "it", "/v1", {}).outcome == "refused: no such thing"
    monkeypatch.setattr(requests, "_is_healthy", lambda _model: False)
    with pytest.raises(UnhealthyError, match="it is not answered"):
        requests._asked(model, "it", "/v1", {})


@pytest.mark.parametrize("refused", [None, 0, 2])
def test_one_refusal_among_those_asked_at_once_is_the_outcome(
    monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    def asked(_model: object, what: str, _path: str, body: Mapping[str, Any]) -> requests.Asked:
        outcome = "refused: n" if body["n"] == refused else requests.ANSWERED
        return requests.Asked(what, outcome)

    monkeypatch.setattr(requests, "_asked", asked)
    model: Any = SimpleNamespace(base_url="http://127.0.0.1:1", name="m", require_listener=None)
    found = requests._asked_at_once(model, [{"n": number} for number in range(3)])
    assert found.is_answered is (refused is None)


@pytest.mark.parametrize("drafted", [None, Speculation(0, 0, 0), Speculation(10, 10, 10)])
def test_less_drafted_than_the_recipe_says_fails(
    shipped: Library, drafted: Speculation | None
) -> None:
    recipe = load_recipe(shipped, "v2").recipe
    rehearse._check_drafting(recipe, Speculation(10, 20, 10))
    with pytest.raises(UnhealthyError, match="the recipe drafts 2 tokens a step"):
        rehearse._check_drafting(recipe, drafted)


def test_it_listens_where_no_deployment_does_or_will(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(miniature, "is_port_free", lambda port: port != 8191)
    assert miniature.port_of(load_recipe(shipped, "v2"), {8190}) == 8192
    assert miniature.port_of(load_recipe(shipped, "v2", ("serve.port=8190",)), {8190}) == 8190


@pytest.mark.parametrize(("floor", "kept"), [("4", 1.0), ("0.5", 0.5)])
def test_a_miniature_keeps_no_more_memory_free_than_it_needs(
    shipped: Library, floor: str, kept: float
) -> None:
    resolved = load_recipe(shipped, "v2", (f"limits.memory_floor_gib={floor}",))
    engine = load_engine(shipped, "cpu-0.32")
    small = miniature_of(resolved, engine=engine, twin=TWIN, port=8190)
    assert small.resolved.recipe.limits.memory_floor_gib == kept
