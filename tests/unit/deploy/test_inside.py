"""What is looked at in the engine's containers before a launch, over fakes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sparkdeploy.checks.report import Finding, Verdict
from sparkdeploy.deploy import expectation
from sparkdeploy.deploy.expectation import (
    SUBJECT,
    check_all_reduce,
    expectation_of,
    probe_containers,
)
from sparkdeploy.deploy.request import Request
from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.image.inside import all_reduce, rdma
from sparkdeploy.node.container import ContainerSpec
from sparkdeploy.node.host import DockerRefusedError
from sparkdeploy.recipe.load import Library
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep import cluster
from tests.fakes.adapters import of_node
from tests.fakes.fabric import adapters_of
from tests.fakes.machines import Engine, Lab, build
from tests.unit.server.log_files import recorded

DENIED: dict[str, object] = {"nodes": {"/dev/infiniband/uverbs0": "Permission denied"}}
BOTH = frozenset({"spark-1", "spark-2"})


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    """Two Sparks."""
    return build(monkeypatch, shipped, 2)


def test_a_launch_that_nccl_could_not_begin_is_refused_and_the_old_one_serves(lab: Lab) -> None:
    lab.up("serve.max_num_seqs=1")
    lab.is_answering, before = True, lab.running()
    lab.engines[1].inside = DENIED
    with pytest.raises(
        NodeError, match="v2 cannot start on spark-1, spark-2, for 1 reason"
    ) as caught:
        lab.up("serve.max_num_seqs=2")
    assert "spark-2: /dev/infiniband in the container: user 1000:1000 may not" in (
        caught.value.detail or ""
    )
    assert "sudo chmod a+rw /dev/infiniband" in (caught.value.detail or "")
    assert (lab.running(), lab.steps) == (before, 0)


@pytest.fixture(autouse=True)
def any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses of the fakes are none of this machine's."""
    monkeypatch.setattr("sparkdeploy.deploy.expectation.free_port", lambda _address: 40000)


def planned(lab: Lab) -> tuple[Finding, ...]:
    """Every check that is made inside, of the plan that was applied last."""
    nodes = lab.nodes(BOTH)
    plan = lab.planned[-1]
    return (*probe_containers(plan, nodes), *check_all_reduce(plan, nodes))


class Answers:
    """An engine whose containers answer the two programs as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, said: object, code: int = 0) -> None:
        self.specs: list[ContainerSpec] = []
        look = Engine.run_to_end

        def run_to_end(engine: Engine, spec: ContainerSpec, *, timeout_s: int) -> tuple[int, str]:
            self.specs.append(spec)
            if rdma.MARK in spec.command[1]:
                return look(engine, spec, timeout_s=timeout_s)
            if isinstance(said, NodeError):
                raise said
            return code, of_node(int(spec.env["VLLM_HOST_IP"][-1]), str(said))

        monkeypatch.setattr(Engine, "run_to_end", run_to_end)


def summed(log: str, total: float = 2.0) -> str:
    told = {"sum": total, "gb_per_s": 21.5}
    return recorded(f"nccl/{log}").decode() + f"{all_reduce.MARK}{json.dumps(told)}\n"


def test_a_sum_over_the_adapters_of_the_plan_is_well(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.up()
    answers = Answers(monkeypatch, summed("2.30.4-roce"))
    checks = planned(lab)
    assert {check.verdict for check in checks} == {Verdict.OK}
    sums = [check for check in checks if check.check == "cluster.all_reduce"]
    assert [check.seen for check in sums] == [
        f"spark-{n}: NCCL all-reduce: NET/IB over {', '.join(adapters_of(n))}, 21.5 GB/s"
        for n in (1, 2)
    ]
    adding = [spec for spec in answers.specs if spec.gpus == "all"]
    looking = [spec for spec in answers.specs if spec.gpus == "none"]
    assert (len(adding), len(looking)) == (2, 2)
    assert sorted(spec.command[2:5] for spec in adding) == [
        (rank, "2", "192.168.177.11") for rank in ("0", "1")
    ]
    assert {spec.devices for spec in answers.specs} == {("/dev/infiniband",)}
    assert all(not spec.mounts for spec in answers.specs)


@pytest.mark.parametrize(
    ("said", "code", "value"),
    [
        (summed("2.30.4-fallen-back"), 0, "NET/Socket over lo, 21.5 GB/s"),
        (summed("2.30.4-roce", total=1.0), 0, "1"),
        (
            recorded("crashes/nccl_no_library").decode(),
            1,
            "NCCL is to use RDMA, and the image lacks",
        ),
        (recorded("crashes/nccl_no_rights").decode(), 1, "NCCL may not open the RDMA adapters"),
        (recorded("crashes/nccl_no_adapter").decode(), 1, "NCCL sees none of the RDMA adapters"),
        (recorded("crashes/nccl_gid").decode(), 1, "the adapters of two nodes do not reach each"),
    ],
    ids=["sockets", "wrong sum", "no library", "no rights", "no adapter", "gid"],
)
def test_each_way_a_sum_can_fail_has_its_own_words(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, said: str, code: int, value: str
) -> None:
    lab.up()
    Answers(monkeypatch, said, code)
    sums = [check for check in planned(lab) if check.check == "cluster.all_reduce"]
    assert {check.verdict for check in sums} == {Verdict.FAIL}
    assert all(f"{SUBJECT}: {value}" in check.seen and check.fix for check in sums)


@pytest.mark.parametrize(
    "said",
    [
        f"{rdma.MARK}",
        f'{rdma.MARK}{{"missing": {{}}, "user',
        f"{rdma.MARK}[1,2]",
        f"{rdma.MARK}null",
        f"{rdma.MARK}{{}}",
        f"{all_reduce.MARK}",
        f'{all_reduce.MARK}{{"sum": 2',
        f'{all_reduce.MARK}{{"gb_per_s": 2}}',
        f'{all_reduce.MARK}{{"sum": 2.0}}',
        f"{all_reduce.MARK}" + "[" * 100_000,
    ],
    ids=range(10),
)
@pytest.mark.parametrize("code", [0, 1])
def test_an_answer_of_another_shape_is_told_and_no_bug(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, said: str, code: int
) -> None:
    lab.up()
    monkeypatch.setattr(Engine, "run_to_end", lambda *_args, **_options: (code, said))
    verdicts = {check.check: check.verdict for check in planned(lab)}
    assert verdicts == {"cluster.container": Verdict.NOT_SEEN, "cluster.all_reduce": Verdict.FAIL}


def test_the_head_under_ray_is_held_to_what_every_node_has(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expectation, "_converted", lambda _plan: None)
    lab.up("cluster.backend=ray")
    plan = lab.planned[-1]

    def wanted(*rdma: str) -> str:
        """What the head is held to where the worker has these adapters."""
        head, worker = plan.nodes
        assert worker.spec is not None
        spec = replace(worker.spec, env={**worker.spec.env, "NCCL_IB_HCA": ",".join(rdma)})
        other = replace(worker, rank=replace(worker.rank, rdma=rdma), spec=spec)
        uneven = replace(plan, nodes=(head, other))
        return expectation_of(uneven, head).backends[-1].wanted

    assert wanted("rocep1s0f1", "roceP2p1s0f1") == "NET/IB over rocep1s0f1, roceP2p1s0f1"
    assert wanted("rocep1s0f1") == "NET/IB over rocep1s0f1"
    assert wanted("rocep9s0f1", "roceP9p1s0f1") == "NET/IB"


def test_sockets_that_a_recipe_puts_up_with_are_a_warning(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.up("backends.warn_only=[transport]")
    Answers(monkeypatch, summed("2.30.4-fallen-back"))
    sums = [check for check in planned(lab) if check.check == "cluster.all_reduce"]
    assert {check.verdict for check in sums} == {Verdict.WARN}


def test_a_container_that_docker_cannot_start_is_a_check_that_failed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.up()

    def refuse(_engine: Engine, spec: ContainerSpec, *, timeout_s: int) -> tuple[int, str]:
        raise DockerRefusedError(f"run {spec.name}: no such device /dev/infiniband")

    monkeypatch.setattr(Engine, "run_to_end", refuse)
    found = probe_containers(lab.planned[-1], lab.nodes(BOTH))
    assert [check.verdict for check in found] == [Verdict.FAIL, Verdict.FAIL]
    assert "no such device /dev/infiniband" in found[0].seen
    assert "ls -l /dev/infiniband" in (found[0].fix or "")


@pytest.mark.parametrize("setting", ["serve.env.NCCL_NET=Socket", "serve.env.NCCL_IB_DISABLE='1'"])
def test_a_recipe_that_asks_for_sockets_gets_no_adapters_and_is_not_looked_into(
    lab: Lab, setting: str
) -> None:
    for engine in lab.engines:
        engine.inside = DENIED
    assert lab.up(setting).changed
    spec = lab.planned[-1].head.spec
    assert spec is not None
    assert (spec.devices, spec.cap_add, spec.env.get("NCCL_NET")) in {
        ((), (), "Socket"),
        ((), (), None),
    }


@pytest.mark.parametrize(
    ("recipe", "typed", "words"),
    [
        ("nosuch", (), "there is no recipe nosuch"),
        ("v2", ("backends.warn_only=[transprot]",), "recipe v2 has 1 mistake"),
    ],
)
def test_what_was_typed_wrongly_ends_the_check_before_anybody_is_asked(
    recipe: str, typed: tuple[str, ...], words: str
) -> None:
    settings = load_settings()
    assert settings.default_recipe == "v2"
    with pytest.raises(RecipeError, match=words):
        cluster.check_all(Request(recipe, typed, cluster=True), settings)
