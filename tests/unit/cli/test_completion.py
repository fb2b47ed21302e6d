"""What may stand where the cursor is: by the words before it, and by what is on the machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy import labels
from sparkdeploy.cli.completion import names
from sparkdeploy.cli.completion.answer import answer
from sparkdeploy.cli.completion.words import load_words
from tests.fakes.http_server import Handler, UnixHttpServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHIPPED = {"v2", "v2-tq", "baseline"}


def completed(*words: str) -> list[str]:
    """The candidates for the last word."""
    return [line.partition("\t")[0] for line in list(answer(["words", *words]))[1:]]


@pytest.mark.parametrize(
    ("typed", "candidates"),
    [
        ("stat", ["status"]),
        ("--verb", ["--verbose"]),
        ("-q checkpoint pu", ["pull"]),
        ("checkpoint nothing ", []),
        ("nothing ", []),
        ("plan --show ", ["dockerfile", "args", "container", "mods"]),
        ("plan --show=a", ["--show=args"]),
        ("plan --hardware sp", ["spark"]),
        ("list --fits h1", ["h100"]),
        ("list --fits --js", ["--json"]),
        ("up -- --", []),
        ("up v2 more v", []),
        ("bench compa", ["compare"]),
        ("bench --sui", ["--suite"]),
        ("bench --suite dec", ["decode"]),
        ("bench load --arrivals p", ["poisson"]),
        ("up --set serve.max_num_s", ["serve.max_num_seqs="]),
        ("up --set=serve.port", ["--set=serve.port="]),
        ("up --set cluster.backend=", ["cluster.backend=native", "cluster.backend=ray"]),
        ("up --set engine=cuda-0.2", ["engine=cuda-0.25"]),
        ("up --set serve.nothing=", []),
        ("up --name web v2-tq-3", ["v2-tq-3bit"]),
        ("export systemd v2-tq-3", ["v2-tq-3bit"]),
        ("completion install f", ["fish"]),
        ("image wheelhouse cuda-0.1", ["cuda-0.19"]),
    ],
)
def test_candidates_follow_the_words_before(typed: str, candidates: list[str]) -> None:
    assert completed(*typed.split(" ")) == candidates


@given(st.text())
def test_no_line_is_too_odd(line: str) -> None:
    list(answer(["line", line, "=:"]))


def test_recipes_are_ours_the_users_and_of_sources(tmp_path: Path) -> None:
    own_recipes = tmp_path / "config" / "recipes"
    own_recipes.mkdir(parents=True)
    (own_recipes / "mine.yaml").touch()
    index = tmp_path / "state" / "sources" / "lab" / "taken" / ".sparkdeploy-source"
    index.parent.mkdir(parents=True)
    rows = [{"name": "qwen", "title": "Qwen", "refusal": ""}, {"name": "no", "refusal": "why"}]
    index.write_text(json.dumps({"rows": rows}))
    found = set(completed("plan", ""))
    assert {"mine", "lab/qwen", *SHIPPED} <= found
    assert "lab/no" not in found
    assert completed("recipe", "source", "rm", "") == ["lab"]
    assert {"h", "lab/qwen"} & found == {"lab/qwen"}


@pytest.mark.parametrize(
    ("open_quote", "found"), [("", ["a\\ b", "a\\$\\(x\\)"]), ("'", ["a b"]), ('"', ["a b"])]
)
def test_what_a_shell_would_obey_is_no_candidate_within_a_quote(
    tmp_path: Path, open_quote: str, found: list[str]
) -> None:
    shelf = tmp_path / "state" / "bench"
    shelf.mkdir(parents=True)
    for number, label in enumerate(("a$(x)", "a b")):
        (shelf / f"{number}.json").write_text(json.dumps({"label": label}))
    lines = list(answer(["line", f"sparkdeploy bench show {open_quote}a", "=:"]))[1:]
    assert [line.partition("\t")[0] for line in lines] == found


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


def listed(name: str, deployment: str, **marks: str) -> dict[str, Any]:
    return {"Names": [f"/{name}"], "Labels": {labels.DEPLOYMENT: deployment, **marks}}


def test_deployments_are_those_of_the_engine_each_once(engine: Engine) -> None:
    engine.lists = {
        "/containers/json": [
            listed("sparkdeploy-main", "main", **{labels.RECIPE: "v2"}),
            listed("sparkdeploy-main-kept-1", "main"),
            listed("sparkdeploy-web-replaced", "web"),
            listed("somebodys", "stranger"),
            listed("sparkdeploy-$(x)", "$(x)"),
            {"Names": None, "Labels": None},
            "none",
        ]
    }
    for words in (["logs", ""], ["down", ""], ["bench", "needle", ""], ["plan", "--name", ""]):
        assert completed(*words) == ["main", "web"]
    assert list(answer(["words", "logs", "m"]))[1:] == ["main\tv2"]
    # Another machine has others.
    assert completed("logs", "--on", "spark-1", "") == []


def test_every_kind_that_a_word_may_be_is_one_of_names() -> None:
    words = load_words()
    values = [
        value
        for command in words.commands.values()
        for value in (*command.arguments, *(it.value for it in command.options if it.value))
    ]
    kinds = {kind for value in values for kind in value.kinds}
    assert kinds == {*names.KINDS, "setting", "file", "folder"}


def test_names_that_a_terminal_would_obey_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "recipes"
    folder.mkdir(parents=True)
    for name in ("zz\x1b[2J", "zz\n", "zz plain"):
        (folder / f"{name}.yaml").touch()
    assert completed("up", "zz") == ["zz plain"]
