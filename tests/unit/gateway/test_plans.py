"""`plan` and `up` of a stack: what is said before the wait, and what is done in which order."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.atomic_files import write_private
from sparkdeploy.checks.survey import Survey
from sparkdeploy.deploy.up import Extent, Outcome
from sparkdeploy.errors import (
    CheckpointError,
    ConsentNeededError,
    NodeError,
    RecipeError,
    SparkdeployError,
)
from sparkdeploy.gateway import deployments, plans
from sparkdeploy.gateway.deployments import start_model, up_stack
from sparkdeploy.gateway.plans import StackPlan, requests_of
from sparkdeploy.gateway.report import fit_lines, problems, refuse, stack_lines
from sparkdeploy.gateway.stack import load_stack
from sparkdeploy.node.facts import GpuFact
from sparkdeploy.recipe.load import Library
from sparkdeploy.server.phases import save_durations
from sparkdeploy.settings import load_settings
from tests.fakes.fabric import node_fact
from tests.fakes.machines import build
from tests.fakes.plans import GIB, SPARK
from tests.unit.gateway.stacks import (
    CODER,
    EMBED,
    HOME,
    IDLE,
    PROSE,
    planned,
    running,
    spark,
    written,
)
from tests.unit.plain import plain_lines
from tests.unit.program import Run

HEAD = "schema: 1\nmodels:\n"
ALWAYS = "keep: always"


@pytest.fixture(autouse=True)
def one_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is a Spark, but where no Docker Engine is."""
    if "no_docker" not in request.fixturenames:
        spark(monkeypatch)


def said(plan: StackPlan) -> str:
    return "\n".join(plain_lines(stack_lines(plan), 80))


def test_what_fits_is_said_by_bytes(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert problems(plan) == []
    text = said(plan)
    assert "fit together: coder, embed" in text
    assert "alone: prose" in text
    assert "exclude each other: coder and prose (83.3 GiB and 101.1 GiB of 112.0" in text
    assert "to download: 169.1 GB in all" in text
    assert max(len(it) for it in text.splitlines() if str(tmp_path) not in it) <= 80


def test_a_stack_is_planned_for_a_machine_that_is_not_here(
    tmp_path: Path, run: Run, no_docker: None
) -> None:
    words = ("--hardware", "spark")
    path = written(tmp_path, HOME + "- {name: two, recipe: minimax-m2.7}\n")
    there = run.answer("plan", str(path), *words, "--json")
    assert [it["check"] for it in there["problems"]] == []
    assert set(there["usable_bytes"]) >= {"spark", "spark-2"}
    assert ["coder", "embed"] in there["fit_together"]
    export = run("export", "llama-swap", str(path), *words)
    assert "m1 & m2" in export.stdout
    of_gpu = run.answer("plan", str(path), "--hardware", "h200", "--json")
    assert set(of_gpu["usable_bytes"]) >= {"h200's GPU", "h200-2's GPU"}
    assert "h200" not in of_gpu["usable_bytes"]  # nobody knows its processor's memory
    assert run("plan", str(path), "--hardware", "cray").returncode == 2
    assert run("export", "llama-swap", str(written(tmp_path, HOME))).returncode == 4


def test_each_model_has_a_port_and_a_name_of_its_own(tmp_path: Path) -> None:
    text = HOME.replace("models:", "port: 8001\nmodels:") + (PROSE % "port: 8000").replace(
        "aliases: {brief: {temperature: 0}, gpt-4o: }", "set: [limits.idle_stop_s=60]"
    ).replace("prose", "other")
    plan = planned(tmp_path, text)
    recipes = {it.model.name: it.resolved.recipe for it in plan.members}
    assert {name: it.serve.port for name, it in recipes.items()} == {
        "coder": 8002,
        "embed": 8003,
        "prose": 8004,
        "other": 8000,
    }
    assert all(it.model.served_names[0] == name for name, it in recipes.items())
    assert recipes["prose"].model.served_names == ("prose", "qwen")
    assert recipes["other"].limits.idle_stop_s is None, "the gateway stops what is idle"
    # One repository is fetched once.
    assert plan.download_bytes == planned(tmp_path).download_bytes


def test_always_kept_models_that_do_not_fit_are_refused_by_bytes(tmp_path: Path, run: Run) -> None:
    path = written(tmp_path, HEAD + CODER % ALWAYS + PROSE % ALWAYS)
    done = run("plan", str(path))
    assert done.returncode == NodeError.exit_code
    words = " ".join(done.stdout.split())
    assert "coder, prose are kept always and do not fit together (83.3 GiB and 101.1" in words
    done = run("up", str(path), "--yes")
    assert done.returncode == NodeError.exit_code
    assert "coder, prose are kept always and do not fit together" in done.stderr
    as_json = json.loads(run("plan", str(path), "--json").stdout)
    assert [it["check"] for it in as_json["problems"]] == ["machine.memory"]


def test_what_never_starts_beside_an_always_kept_model_is_a_warning(tmp_path: Path) -> None:
    plan = planned(tmp_path, HEAD + CODER % ALWAYS + EMBED % IDLE + PROSE % IDLE)
    assert problems(plan) == []
    assert "! prose never starts beside what is kept always" in said(plan)
    assert "! embed" not in said(plan)


def test_what_runs_of_the_stack_gives_its_memory_back_and_what_others_run_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fact = replace(SPARK, memory_available_bytes=12 * GIB)
    spark(monkeypatch, running("prose", 101.0), node=fact)
    plan = planned(tmp_path)
    assert plan.fit.usable == {"spark": 113 * GIB}
    assert problems(plan) == [], "coder is planned as if prose had been stopped"
    spark(monkeypatch, running("main", 101.0), node=fact)
    plan = planned(tmp_path)
    assert plan.fit.usable == {"spark": 12 * GIB}
    assert {it.seen.partition(":")[0] for it in problems(plan)} == {"coder", "embed", "prose"}


def test_a_gpu_with_memory_of_its_own_is_shared_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = GpuFact("NVIDIA H100", "9.0", memory_bytes=80 * GIB)
    spark(monkeypatch, node=replace(SPARK, gpu=gpu, memory_available_bytes=110 * GIB))
    fit = planned(tmp_path, HEAD + CODER % IDLE + EMBED % IDLE + PROSE % IDLE).fit
    assert fit.usable == {"spark": 110 * GIB, "spark's GPU": 80 * GIB}
    assert fit.fits({"coder"}, "embed")
    assert not fit.fits({"prose"}, "embed")


def test_of_memory_that_nobody_knows_one_model_takes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark(
        monkeypatch,
        node=replace(SPARK, memory_total_bytes=None, memory_available_bytes=None, docker=None),
    )
    fit = planned(tmp_path).fit
    assert all(fit.fits(set(), it.name) for it in fit.models)
    assert [len(it) for it in fit.largest_sets(9)] == [1, 1, 1]


def test_a_recipe_for_two_nodes_takes_memory_of_both_and_runs_beside_no_other_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shipped: Library
) -> None:
    lab = build(monkeypatch, shipped, 2)
    facts = {
        f"spark-{number}": node_fact(number, docker=None, memory_available_bytes=112 * GIB)
        for number in (1, 2)
    }
    monkeypatch.setattr(
        plans, "open_nodes", lambda _settings, names: contextlib.nullcontext(lab.nodes(names))
    )
    monkeypatch.setattr(plans, "survey", lambda _nodes, _cache: Survey(facts))
    pair = (
        "- {name: %s, recipe: v2, set: [cluster.min_nodes=2, serve.gpu_memory_utilization=0.2]}\n"
    )
    fit = planned(tmp_path, HEAD + pair % "pair" + pair % "other" + EMBED % IDLE).fit
    both = {"spark-1": int(0.2 * 119 * GIB), "spark-2": int(0.2 * 119 * GIB)}
    assert {it: size for it, size in fit["pair"].takes.items() if size > 1} == both
    assert [*fit["embed"].takes] == ["spark-1"]
    assert fit.fits({"pair"}, "embed")
    assert [*fit.excluded()] == [("pair", "other")]
    assert "(spark-1's port for other nodes)" in "\n".join(fit_lines(fit))


def test_a_measured_start_goes_before_an_estimated_one(tmp_path: Path) -> None:
    settings = load_settings()
    save_durations(settings.state_dir, "sparkdeploy/plugin:0123456789abcdef v2", {"weights": 61.0})
    plan = planned(tmp_path)
    assert (plan.fit["prose"].start_s, plan.fit["prose"].is_measured) == (61.0, True)
    assert not plan.fit["coder"].is_measured
    assert (plan.fit["coder"].start_s or 0) > (plan.fit["embed"].start_s or 0) > 60
    assert " 1m01s" in said(plan)


def test_a_wrong_recipe_is_named_with_the_model(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="model x: there is no recipe v22"):
        planned(tmp_path, f"{HEAD}- {{name: x, recipe: v22}}")
    with pytest.raises(RecipeError, match="model x: recipe v2 has 1 mistake"):
        planned(tmp_path, f"{HEAD}- {{name: x, recipe: v2, set: [serve.max_num_seqs=0]}}")


DANGEROUS = "- {name: x, recipe: v2, set: ['serve.env={PYTHONPATH: /tmp}', 'model.revision=main']}"


@pytest.mark.parametrize(
    "set_", ["mods=[{run: echo}]", "serve.chat_template=/etc/hostname"], ids=["mods", "template"]
)
def test_a_stack_from_elsewhere_sets_no_file_that_could_be_exchanged(
    tmp_path: Path, set_: str
) -> None:
    settings = load_settings()
    text = f"{HEAD}- {{name: x, recipe: v2, set: ['{set_}']}}"
    stack = load_stack(written(tmp_path, text), settings)
    with pytest.raises(RecipeError, match="a stack from elsewhere names no"):
        requests_of(stack, settings)
    assert requests_of(stack, settings, ["allow_unsafe=true"])


@pytest.mark.parametrize(
    "line", ["allowed_origins: ['https://evil.example']", "allowed_hosts: [evil.example]"]
)
def test_a_stack_from_elsewhere_asks_before_it_opens_the_models_to_pages(
    tmp_path: Path, line: str
) -> None:
    settings = load_settings()
    text = f"schema: 1\n{line}\nmodels:\n- {{name: x, recipe: v2}}\n"
    stack = load_stack(written(tmp_path, text), settings)
    with pytest.raises(ConsentNeededError) as caught:
        requests_of(stack, settings)
    assert "evil.example: pages of that name" in (caught.value.detail or "")
    assert requests_of(stack, settings, ["allow_unsafe=true"])
    assert caught.value.record is not None
    write_private(caught.value.record, "")
    assert requests_of(stack, settings), "consent is remembered"


def test_a_stack_from_elsewhere_asks_for_what_it_sets(tmp_path: Path) -> None:
    settings = load_settings()
    stack = load_stack(written(tmp_path, HEAD + DANGEROUS), settings)
    with pytest.raises(ConsentNeededError) as caught:
        requests_of(stack, settings)
    assert f"{stack.path}:2: serve.env" in (caught.value.detail or "")
    assert "model.revision" not in (caught.value.detail or "")
    assert requests_of(stack, settings, ["allow_unsafe=true"])
    assert caught.value.record is not None
    write_private(caught.value.record, "")
    assert requests_of(stack, settings), "consent is remembered"
    other = written(tmp_path, HEAD + DANGEROUS + "\n# another file\n")
    with pytest.raises(ConsentNeededError):
        requests_of(load_stack(other, settings), settings)
    # What lies in the user's own folder of recipes is the user's own.
    (settings.config_dir / "recipes").mkdir(parents=True)
    own = written(settings.config_dir / "recipes", HEAD + DANGEROUS)
    assert requests_of(load_stack(own, settings), settings)


@pytest.mark.parametrize(
    "words",
    [
        *("plan {} --set serve.port=1", "plan {} --show args --name x"),
        *("plan {} --hardware spark --check", "up {} --detach", "up {} --port 8001 --solo"),
        "export systemd {} --public",
    ],
)
def test_options_of_one_recipe_are_refused_for_a_stack(
    tmp_path: Path, run: Run, words: str
) -> None:
    path = written(tmp_path, HOME)
    done = run(*words.format(path).split())
    assert done.returncode == 2
    assert f"{path} is a stack, and --" in done.stderr


class Recorder:
    """`up` that does nothing and says what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Extent]] = []
        self.stopped: list[str] = []
        self.drops_page_cache = False
        self.running: set[str] = set()
        monkeypatch.setattr(deployments, "up", self.up)
        monkeypatch.setattr(deployments, "stop", self.stopped.append)
        monkeypatch.setattr(deployments, "running_models", lambda _plan, _settings: self.running)

    def up(self, _resolved: Any, request: Any, _settings: Any, **how: Any) -> Outcome:
        options = how["options"]
        self.asked.append((request.deployment.name, options.extent))
        self.drops_page_cache = options.drop_page_cache
        how["confirm"]("replace?")
        return Outcome(None, changed=True)  # type: ignore[arg-type]


def test_all_is_prepared_before_anything_starts_and_only_the_always_kept_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, HEAD + PROSE % IDLE + CODER % ALWAYS + EMBED % ALWAYS)
    recorder, questions = Recorder(monkeypatch), list[str]()

    def confirm(question: str) -> bool:
        questions.append(question)
        return True

    done = up_stack(plan, load_settings(), confirm=confirm, drop_page_cache=True)
    assert recorder.drops_page_cache
    names = ("prose", "coder", "embed")
    assert recorder.asked == [
        *((name, Extent.PREPARE) for name in names),
        *((name, Extent.ANSWER) for name in ("coder", "embed")),
    ]
    assert (done.prepared, [*done.started]) == (names, ["coder", "embed"])
    # Once for everything, then for what each start may replace.
    assert len(questions) == 3
    assert questions[0].startswith("Download Intel/")
    assert "(169.1 GB)" in questions[0]
    assert up_stack(plan, load_settings(), confirm=confirm, starts=False).started == {}


def test_nothing_is_fetched_without_a_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    with pytest.raises(CheckpointError, match=r"169\.1 GB to download"):
        up_stack(planned(tmp_path), load_settings(), confirm=lambda _question: False)
    assert recorder.asked == []


def test_what_is_in_the_way_of_an_always_kept_model_is_stopped_with_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, HEAD + PROSE % IDLE + CODER % ALWAYS)
    recorder = Recorder(monkeypatch)
    recorder.running = {"prose"}
    with pytest.raises(SparkdeployError, match="coder was not started"):
        up_stack(plan, load_settings(), confirm=lambda question: question.startswith("Download"))
    assert recorder.stopped == []
    questions: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return True

    up_stack(plan, load_settings(), confirm=confirm)
    assert recorder.stopped == ["prose"]
    assert "Stop prose, which coder does not fit beside?" in questions


def test_one_model_starts_as_up_does_and_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(monkeypatch)
    start_model(planned(tmp_path)["embed"], load_settings())
    assert recorder.asked == [("embed", Extent.ANSWER)]


def test_a_refusal_lists_every_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark(monkeypatch, node=replace(SPARK, gpu=None, data_free_bytes=100 * 10**9))
    plan = planned(tmp_path)
    with pytest.raises(NodeError, match="stack home cannot start, for 4 reasons") as caught:
        refuse(plan)
    assert "all models take 169.1 GB more, and 100.0 GB are free" in (caught.value.detail or "")
    with pytest.raises(NodeError, match="cannot be prepared, for 1 reason"):
        refuse(plan, of_preparation=True)


def test_a_plan_of_a_stack_is_checked(tmp_path: Path, run: Run) -> None:
    done = run("plan", str(written(tmp_path, HOME)), "--check")
    assert done.returncode == 9
    assert "up" in done.stderr
    answered = run.answer("plan", str(tmp_path / "home.yaml"), "--json")
    assert answered["fit_together"] == [["coder", "embed"], ["prose"]]
    assert answered["has_work"]
