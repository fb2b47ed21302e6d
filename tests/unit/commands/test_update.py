"""What `update` says of deployments: the words of the very plan that `up` would apply."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy import labels
from sparkdeploy.commands import request, update
from sparkdeploy.commands.installation import NEWER, installation_of
from sparkdeploy.commands.remembered import (
    TypedBefore,
    request_again,
    request_label,
    typed_before,
)
from sparkdeploy.commands.update import Effect, update_report
from sparkdeploy.plan.container import Deployment
from sparkdeploy.settings import load_settings
from tests.fakes.containers import container
from tests.fakes.machines import build
from tests.fakes.plans import built

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.commands.update import Effects
    from sparkdeploy.recipe.load import Library
    from tests.fakes.machines import Lab

WHEEL = {"url": "file:///dists/sparkdeploy-0.1.0-py3-none-any.whl", "archive_info": {}}
CHECKOUT = {"url": "file:///home/ada/spark%20deploy", "dir_info": {}}


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    return seen(monkeypatch, build(monkeypatch, shipped, 1))


def seen(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> Lab:
    """Let `update` see the lab's machines, and count what it would change."""
    monkeypatch.setattr(update, "connect", lambda _settings: contextlib.nullcontext(lab.engines[0]))
    monkeypatch.setattr(request, "draft_plan", lab.draft)
    monkeypatch.setattr("sparkdeploy.commands.update.last_start_s", lambda *_: None)
    return lab


def told(lab: Lab) -> Effects:
    before = lab.steps
    (row,) = update_report(load_settings()).deployments
    assert lab.steps == before, "it changes nothing"
    return row


def label_of(lab: Lab, **change: Any) -> None:
    """Write other labels onto the container."""
    (key,) = lab.engines[0].facts
    fact = lab.engines[0].facts[key]
    lab.engines[0].facts[key] = replace(fact, labels={**fact.labels, **change})


def test_a_deployment_that_is_as_planned_has_nothing_to_do(lab: Lab) -> None:
    lab.up("serve.max_num_seqs=7")
    row = told(lab)
    assert (row.deployment, row.recipe, row.effect) == ("main", "v2", Effect.SAME)
    assert row.made_by
    assert (row.reasons, row.up) == ((), ())


def test_an_image_that_is_not_here_is_rebuilt_and_the_deployment_starts_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.up("serve.max_num_seqs=7")
    label_of(lab, **{labels.FINGERPRINT: "of an image of the version before"})
    monkeypatch.setattr(
        "tests.fakes.machines._built", lambda stages: {it.tag: built(it) for it in stages[:-1]}
    )
    row = told(lab)
    assert (row.effect, row.reasons) == (Effect.BUILD, ("image plugin: image is missing",))
    assert row.up == ("up", "v2", "--set", "serve.max_num_seqs=7")


def test_several_machines_are_planned_together(
    monkeypatch: pytest.MonkeyPatch, shipped: Library
) -> None:
    lab = seen(monkeypatch, build(monkeypatch, shipped, 2))
    lab.up()
    assert told(lab).effect is Effect.SAME
    (fact,) = lab.engines[1].facts.values()
    lab.engines[1].facts.clear()
    row = told(lab)
    assert row.effect is Effect.RESTART
    assert "--cluster" in row.up
    assert fact.rank == 1


def test_a_secret_that_was_kept_nowhere_is_no_reason_to_restart(lab: Lab) -> None:
    lab.up("serve.env.VLLM_SECRET=hush")
    (fact,) = lab.engines[0].facts.values()
    assert "hush" not in fact.labels[labels.REQUEST]
    row = told(lab)
    assert row.effect is Effect.UNKNOWN
    assert row.reasons == ("the value of --set serve.env.VLLM_SECRET is kept nowhere",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({labels.REQUEST: '{"recipe": "gone"}'}, "gone"),
        ({labels.REQUEST: '{"recipe": "v2", "is_rehearsal": true}'}, "a rehearsal"),
        ({labels.NODES: "spark-9,spark-1", labels.RANK: "1"}, "spark-9 heads it"),
        ({labels.USER: "anna"}, "anna deployed it: `sparkdeploy update` of that user tells"),
    ],
)
def test_what_cannot_be_planned_says_why(lab: Lab, change: dict[str, str], words: str) -> None:
    lab.up()
    label_of(lab, **change)
    row = told(lab)
    assert row.effect is Effect.UNKNOWN
    assert words in row.reasons[0]
    assert row.up == ()


@pytest.mark.parametrize(
    "written", ["", "[]", "{", '{"recipe": 7}', '{"recipe": "v2", "set": "x"}', "[" * 10**5]
)
def test_a_damaged_label_is_none(written: str) -> None:
    assert typed_before(container("sparkdeploy-main", request=written)) is None


def test_a_label_gives_back_what_was_typed(tmp_path: Path) -> None:
    typed = request.Request(
        str(tmp_path / "mine.yaml"), ("serve.port=8001", "serve.env={}"), Deployment("chat")
    )
    label = request_label(typed, load_settings())
    fact = container("sparkdeploy-chat", deployment="chat", request=label)
    again = request_again(fact, typed_before(fact))
    assert again == replace(typed, assignments=("serve.port=8001", "serve.env"))


SECRET = "hf_planted"
WAYS_TO_SET_A_VARIABLE = [
    "serve.env.HF_TOKEN={}",
    "serve.env={{HF_TOKEN: {}}}",
    "serve={{port: 8001, env: {{HF_TOKEN: {}}}}}",
    "serve={{? env : {{HF_TOKEN: {}}}}}",
    'serve={{"\\x65nv": {{HF_TOKEN: {}}}}}',
    "serve={{<<: {{env: {{HF_TOKEN: {}}}}}}}",
    "serve.env.A={{no YAML: {}",
]


@given(
    way=st.sampled_from(WAYS_TO_SET_A_VARIABLE),
    before=st.sampled_from(["", " ", "\t", "\n "]),
    around=st.sampled_from(["=", " =", "= ", " = "]),
    quote=st.sampled_from(["", "'", '"']),
)
def test_no_value_of_a_variable_is_ever_in_the_label(
    way: str, before: str, around: str, quote: str
) -> None:
    written = way.replace("=", around, 1).format(f"{quote}{SECRET}{quote}")
    typed = request.Request("v2", (before + written,), Deployment("main"))
    label = request_label(typed, load_settings())
    assert SECRET not in label
    (left,) = TypedBefore.model_validate_json(label).left_out
    assert left == way.partition("=")[0]


@pytest.mark.parametrize(
    "assignment", ["serve.environment=x", "serve={port: 8001}", " serve.port = 8001", "a=serve.env"]
)
def test_what_sets_no_variable_is_kept_as_it_was_typed(assignment: str) -> None:
    typed = request.Request("v2", (assignment,), Deployment("main"))
    label = request_label(typed, load_settings())
    assert TypedBefore.model_validate_json(label).set == [assignment]


@pytest.mark.parametrize(
    ("mark", "origin", "by", "command"),
    [
        ("installed-sources", CHECKOUT, "install.sh", "'/home/ada/spark deploy'/install.sh"),
        ("", {**CHECKOUT, "dir_info": {"editable": True}}, "an editable checkout", " pull"),
        ("pipx_metadata.json", WHEEL, "pipx", f"pipx install --force {NEWER}"),
        ("pipx_metadata.json", {}, "pipx", "pipx upgrade sparkdeploy"),
        ("uv-receipt.toml", WHEEL, "uv tool", f"uv tool install --force {NEWER}"),
        ("uv-receipt.toml", {}, "uv tool", "uv tool upgrade sparkdeploy"),
        ("archive-v0/x/pyvenv.cfg", WHEEL, "uvx", f"uvx --from {NEWER} sparkdeploy"),
        ("archive-v0/x/pyvenv.cfg", {}, "uvx", "uvx sparkdeploy@latest"),
        ("pyvenv.cfg", {}, "pip", "/bin/python -I -m pip install --upgrade sparkdeploy"),
    ],
)
def test_a_newer_version_comes_the_way_this_one_came(
    tmp_path: Path, mark: str, origin: dict[str, Any], by: str, command: str
) -> None:
    place = tmp_path / mark
    if mark:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    found = installation_of(place.parent if mark else tmp_path, origin)
    assert found.by == by
    assert found.update.endswith(command)
