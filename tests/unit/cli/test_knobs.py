"""`--port` and `--max-len`: the same as `--set` of the recipe's value, and never both."""

from __future__ import annotations

import pytest

from sparkdeploy.deploy.request import Request, up_words
from sparkdeploy.errors import NodeError
from sparkdeploy.plan.container import Deployment
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.rehearsal.miniature import PORTS, port_of
from tests.unit.program import Run

pytestmark = pytest.mark.usefixtures("no_docker")


@pytest.mark.parametrize("words", [("plan",), ("up", "--dry-run")])
def test_a_knob_is_the_value_that_set_sets(run: Run, words: tuple[str, ...]) -> None:
    turned = run(*words, "v2", "--port", "18151", "--max-len", "64K")
    values = ("--set", "serve.port=18151", "--set", "serve.max_model_len=64K")
    assert turned == run(*words, "v2", *values)
    assert "18151" in turned.stdout
    assert "18151" not in run(*words, "v2").stdout


def test_the_length_reaches_vllm(run: Run) -> None:
    shown = run("plan", "v2", "--max-len", "64K", "--show", "args")
    assert "--max-model-len 65536" in shown.stdout


@pytest.mark.parametrize("command", ["plan", "up", "rehearse"])
@pytest.mark.parametrize(
    ("option", "value", "assignment"),
    [
        ("--port", "18151", "serve.port=18151"),
        ("--port", "18151", "serve={port: 18152}"),
        ("--max-len", "64K", "serve.max_model_len=32K"),
        ("--max-len", "64K", "serve=null"),
    ],
)
def test_a_value_that_is_given_both_ways_is_refused(
    run: Run, command: str, option: str, value: str, assignment: str
) -> None:
    done = run(command, "v2", option, value, "--set", assignment)
    assert done.returncode == 2
    assert f"{option} and --set {assignment} are about the same value" in done.stderr


def test_other_values_of_the_mapping_may_be_set(run: Run) -> None:
    done = run("plan", "v2", "--port", "18151", "--set", "serve={max_num_seqs: 2}")
    assert "18151" in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [("--port", "80", 2), ("--port", "x", 2), ("--max-len", "many", 3), ("--max-len", "0", 3)],
)
def test_what_is_no_value_is_refused(run: Run, option: str, value: str, code: int) -> None:
    assert run("plan", "v2", option, value).returncode == code


def test_a_rehearsal_keeps_to_the_port_that_was_typed(shipped: Library) -> None:
    assert port_of(load_recipe(shipped, "v2", ["serve.port=18151"])) == 18151
    assert port_of(load_recipe(shipped, "v2")) in PORTS


def test_a_rehearsal_leaves_the_ports_of_deployments_that_do_not_listen_yet(
    shipped: Library,
) -> None:
    recipe = load_recipe(shipped, "v2")
    first = port_of(recipe)
    assert port_of(recipe, {first}) in set(PORTS) - {first}
    with pytest.raises(NodeError, match="no port from 8190 to 8289"):
        port_of(recipe, PORTS)


@pytest.mark.parametrize(
    "wanted",
    [
        Request("v2"),
        Request("mine/x y.yaml", ("serve.port=8001", "serve.env.A=it's b")),
        Request("v2", (), Deployment("second")),
        Request("v2", (), Deployment("main", is_public=True)),
        Request("v2", ("a=1",), Deployment("second", is_public=True), cluster=True),
    ],
)
def test_the_up_that_is_proposed_asks_for_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch, wanted: Request
) -> None:
    seen: list[Request] = []

    def deploy(request: Request, *_: object, **_more: object) -> None:
        seen.append(request)

    monkeypatch.setattr("sparkdeploy.cli.deployments._deploy", deploy)
    assert run(*up_words(wanted)).returncode == 0
    assert seen == [wanted]
