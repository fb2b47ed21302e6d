"""Deployments beside others: a second cluster, one machine alone, names that are none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.deploy import lifecycle, removal
from sparkdeploy.deploy import nodes as deploy_nodes
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.monitor import status as operating
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.steps import Plan, for_cluster
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep import diagnose
from tests.examples import examples
from tests.fakes.containers import FakeContainers, container
from tests.fakes.machines import Lab, build, reached_alone
from tests.fakes.two_nodes import BOTH, NEW, Pair, part

SMALL = "serve.gpu_memory_utilization=0.3"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    return build(monkeypatch, shipped, 2)


def drafted(lab: Lab, name: str, *sets: str) -> Plan:
    assignments = ("serve.port=8001", SMALL, *sets)
    resolved = for_cluster(load_recipe(lab.shipped, "v2", assignments))
    return lab.draft(resolved, load_settings(), lab.nodes(frozenset({"spark-2"})), Deployment(name))


@pytest.mark.parametrize(
    ("sets", "port"),
    [
        (("cluster.tensor_parallel=2",), 29501),
        (("cluster.tensor_parallel=2", "cluster.backend=ray"), 6379),
        (("cluster.tensor_parallel=1", "cluster.data_parallel=2"), 13345),
    ],
)
def test_it_would_meet_at_the_port_of_the_first(lab: Lab, sets: tuple[str, ...], port: int) -> None:
    lab.up(SMALL)
    found = [item for item in drafted(lab, "second", *sets).problems if item.check[:5] == "ports"]
    assert [item.check for item in found] == ["ports.cluster"]
    assert "deployment main runs from there over spark-1, spark-2" in found[0].seen
    assert f"at port {port}" in found[0].seen
    assert str(found[0].fix).startswith("sparkdeploy down main; or ")


def test_one_machine_alone_meets_nobody(lab: Lab) -> None:
    lab.up(SMALL)
    plan = drafted(lab, "second", "cluster.tensor_parallel=1")
    assert "ports.cluster" not in {item.check for item in plan.problems}


def test_what_replaces_the_first_or_comes_after_it_meets_at_its_port(lab: Lab) -> None:
    lab.up(SMALL)
    plans = [drafted(lab, "main", "cluster.tensor_parallel=2")]
    lab.down()
    plans.append(drafted(lab, "second", "cluster.tensor_parallel=2"))
    for plan in plans:
        assert "ports.cluster" not in {item.check for item in plan.problems}


def test_one_machine_alone_leaves_the_other_nodes(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.note(*BOTH)
    pair.head.facts["old"] = replace(part(NEW, "old"), container_id="old")
    pair.worker.facts["old"] = replace(part(NEW, "old", rank="1"), container_id="old")
    pair.worker.breaks_with = NodeError("docker is gone")
    pair.lab.up(size=1)
    assert "when spark-2 is back" in capsys.readouterr().err
    assert "spark-2" in pair.noted
    pair.worker.breaks_with = None
    pair.lab.is_answering = True
    pair.lab.up(size=1)
    assert len(pair.worker.facts) + len(pair.noted) == 0
    assert [fact.is_running for fact in pair.head.facts.values()] == [True]


def test_what_the_other_node_has_of_its_own_by_that_name_stays(pair: Pair) -> None:
    lab, kept = pair.lab, part(f"{NEW}-kept-1", "x", "exited")
    pair.head.facts[kept.name], pair.worker.facts[NEW] = kept, container(NEW)
    for command in (lambda: lab.up(size=1), lab.stop, lab.down):
        pair.note(*BOTH)
        command()
        assert pair.worker.states == {f"{NEW}/{NEW}": "running"}


def test_one_machine_alone_asks_for_no_cluster(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(deploy_nodes, "open_nodes", refuse)
    pair.head.facts[NEW] = container(NEW)
    assert lifecycle.roll_back("main").action == "nothing"
    assert capsys.readouterr().err == ""


def test_a_container_that_was_renamed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = container("postgres", deployment="main")
    engine = FakeContainers.of(renamed, container("sparkdeploy-main"))
    reached_alone(monkeypatch, engine)
    assert removal.down("main") == ("sparkdeploy-main",)
    assert list(engine.facts.values()) == [renamed]


@settings(max_examples=examples(150))
@given(
    name=st.sampled_from(["/x", "../../x", "..", ".", "", "*", "[", "main\0", "x" * 300, "a/../b"])
    | st.text(max_size=6),
    command=st.sampled_from(["diagnose", "rollback", "down", "logs"]),
)
def test_a_name_that_is_none_is_no_way_to_another_file(name: str, command: str) -> None:
    state = load_settings().state_dir
    (state / "cluster" / "deployments").mkdir(parents=True, exist_ok=True)
    secret = state / "x.json"
    secret.write_text('["spark-1"]')
    calls: dict[str, Callable[[], object]] = {
        "diagnose": lambda: diagnose.diagnose(name, state / "bundle.tar.gz"),
        "rollback": lambda: lifecycle.roll_back(name),
        "down": lambda: removal.down(name),
        "logs": lambda: list(operating.read_log(name, follow=False, tail=None)),
    }
    with pytest.MonkeyPatch.context() as patch:
        reached_alone(patch, FakeContainers())
        patch.setattr(diagnose, "connect", lambda _settings: FakeContainers())
        with contextlib.suppress(SparkdeployError):
            calls[command]()
    assert secret.read_text() == '["spark-1"]'
