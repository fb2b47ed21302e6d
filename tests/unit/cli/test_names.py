"""What Tab offers: names that are on this machine, and none that a shell would obey."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy import labels
from sparkdeploy.cli import names
from sparkdeploy.cli.main import COMPLETE
from tests.fakes.http_server import Handler, UnixHttpServer, serving
from tests.unit.program import Run


def test_recipes_are_ours_the_users_and_of_sources(tmp_path: Path) -> None:
    own_recipes = tmp_path / "config" / "recipes"
    own_recipes.mkdir(parents=True)
    for name in ("mine", "night shift", "x$(y)", "z\x1b[2J", "z\n"):
        (own_recipes / f"{name}.yaml").touch()
    index = tmp_path / "state" / "sources" / "lab" / "taken" / ".sparkdeploy-source"
    index.parent.mkdir(parents=True)
    rows = [{"name": "qwen", "refusal": ""}, {"name": "no", "refusal": "why"}, {"name": "$(x)"}, 1]
    index.write_text(json.dumps({"rows": rows}))
    found = set(names.completing(names.recipes)(""))
    assert {"mine", "lab/qwen", "v2", "baseline"} <= found
    assert not {"lab/no", "lab/$(x)", "night shift", "x$(y)", "z\x1b[2J", "z\n"} & found
    assert names.completing(names.sources)("") == ["lab"]


class Engine(UnixHttpServer):
    """A Docker Engine that lists what a test says."""

    lists: dict[str, Any]


class Listing(Handler):
    server: Engine

    def get(self) -> None:
        self.send(200, self.server.lists[self.path.partition("?")[0]])


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
    with serving(Engine(f"{tmp_path}/engine", Listing)) as made:
        yield made


def listed(name: str, deployment: str) -> dict[str, Any]:
    return {"Names": [f"/{name}"], "Labels": {labels.DEPLOYMENT: deployment}}


def test_deployments_are_those_of_the_engine_each_once(engine: Engine) -> None:
    engine.lists = {
        "/containers/json": [
            listed("sparkdeploy-main", "main"),
            listed("sparkdeploy-main-replaced", "main"),
            listed("sparkdeploy-web-replaced", "web"),
            listed("somebodys", "stranger"),
            listed("sparkdeploy-$(x)", "$(x)"),
            {"Names": None, "Labels": None},
            "none",
        ]
    }
    assert names.completing(names.deployments)("") == ["main", "web"]
    assert names.completing(names.deployments)("w") == ["web"]


def test_an_engine_that_is_not_there_has_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/engine")
    assert names.completing(names.deployments)("") == []


@pytest.mark.parametrize(
    ("typed", "candidates"),
    [
        ("stat", ["status"]),
        ("--verb", ["--verbose"]),
        ("-q checkpoint pu", ["pull"]),
        ("plan --show ", ["dockerfile", "args", "container", "mods"]),
        ("up v2-tq-3", ["v2-tq-3bit"]),
        ("bench compa", ["compare"]),
        ("bench run --sui", ["--suite"]),
        ("export systemd v2-tq-3", ["v2-tq-3bit"]),
    ],
)
def test_candidates_follow_the_words_before(
    run: Run, monkeypatch: pytest.MonkeyPatch, typed: str, candidates: list[str]
) -> None:
    words = typed.split(" ")
    monkeypatch.setenv(COMPLETE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"sparkdeploy {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert run().stdout.split() == candidates
    monkeypatch.delenv("COMP_WORDS")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"sparkdeploy {typed}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    for shell in ("zsh", "fish"):
        monkeypatch.setenv(COMPLETE, f"complete_{shell}")
        offered = re.findall(r'^(?:_arg.*\(\()?"?([\w-]+)', run().stdout, re.MULTILINE)
        assert offered == candidates, shell


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("statsu", "'status'"), ("checkpoint pul", "'pull'"), ("up --prot 1", "--port")],
)
def test_what_is_misspelt_is_answered_with_what_was_meant(run: Run, typed: str, meant: str) -> None:
    refused = run(*typed.split())
    assert refused.returncode == 2
    assert meant in refused.stderr
