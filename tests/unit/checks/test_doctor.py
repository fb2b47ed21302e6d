"""The doctor on recorded machines: every verdict, every id, and never an exception."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checks import docker, host, report
from sparkdeploy.checks.host import READ_TIMEOUT_S, TimeLimitedMachine
from sparkdeploy.checks.report import Finding, Verdict, fail, ok, warn
from sparkdeploy.deploy import doctor as module
from sparkdeploy.deploy.launch import Launch
from sparkdeploy.deploy.wait import Watch
from sparkdeploy.errors import NodeError
from sparkdeploy.node.facts import THIS_MACHINE, parse_gpu_processes, parse_gpus
from sparkdeploy.node.lock import node_lock, watching
from sparkdeploy.node.node import Nodes, node_behind
from sparkdeploy.plan import preflight
from sparkdeploy.plan.observed import ObservedNode
from sparkdeploy.plan.recipe_checks import recipe_findings
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.mods import FoundMod
from sparkdeploy.settings import SHARED_LOCK_DIR, Settings, load_settings
from sparkdeploy.shell import Completed
from tests.fakes.containers import container
from tests.fakes.fabric import node_fact, two_node_plan
from tests.fakes.plans import DOCKER
from tests.unit.checks.recorded import NAMES, RecordedEngine, load
from tests.unit.conftest import REPOSITORY
from tests.unit.plain import plain_lines

MIRRORS = {
    "SPARKDEPLOY_HUB": "https://hub.lab",
    "SPARKDEPLOY_CONTAINER_REGISTRY": "registry.lab",
    "SPARKDEPLOY_INDEX_URL": "https://packages.lab/simple",
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings answer at once; only the machine of the tests may be slow."""
    monkeypatch.setattr(module, "CONNECTION_DEADLINE_S", 60.0)
    monkeypatch.setattr(module, "DEADLINE_S", 60.0)


def settings_of_ada() -> Settings:
    home = Path("/home/ada")
    return replace(
        load_settings(MIRRORS),
        hub_cache=home / ".cache/huggingface/hub",
        state_dir=home / ".local/state/sparkdeploy",
        cache_dir=home / ".cache/sparkdeploy",
        data_dir=home / ".local/share/sparkdeploy",
    )


def no_engine(_settings: Settings) -> RecordedEngine:
    raise NodeError("docker does not answer", hint="start it")


def examined(
    name: str, shipped: Library, monkeypatch: pytest.MonkeyPatch, recipe: str = "v2", **changes: Any
) -> dict[str, Finding]:
    recording = load(name)

    def connect(settings: Settings) -> RecordedEngine:
        if recording.docker is None:
            return no_engine(settings)
        return RecordedEngine(recording.docker)

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr("sparkdeploy.node.facts.free_bytes", lambda _path: 900 * 10**9)
    monkeypatch.setattr("sparkdeploy.node.ports.is_port_free", lambda *_: True)
    settings = replace(settings_of_ada(), **changes)
    found = module.examine(load_recipe(shipped, recipe), settings, recording)
    by_check = {item.check: item for item in found}
    assert len(by_check) == len(found), "a check speaks once"
    return by_check


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_machine_gets_exactly_these_verdicts(
    name: str, shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examined(name, shipped, monkeypatch)
    expected = {check: verdict for check, verdict in load(name).expected.items() if verdict != "ok"}
    verdicts = {check: item.verdict.value for check, item in found.items()}
    assert {check: word for check, word in verdicts.items() if word != "ok"} == expected


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_wrong_comes_with_a_fix(
    name: str, shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    for item in examined(name, shipped, monkeypatch).values():
        assert bool(item.fix) == (item.verdict in {Verdict.WARN, Verdict.FAIL}), item


def test_the_page_in_docs_lists_the_very_checks_there_are(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    section = page.partition("\n## Checks\n")[2].partition("\nA plan may also say:")[0]
    groups = "|".join(report.GROUPS)
    listed = set(re.findall(rf"`((?:{groups})\.[a-z_]+)`", section))
    emitted = {check for name in NAMES for check in examined(name, shipped, monkeypatch)}
    # These speak only of a model that is here, which no recording has.
    with_model = {"folders.readable", "folders.owner", "folders.exchange"}
    assert listed == emitted | with_model


def ids_of_problems() -> set[str]:
    """Every id of plan's problems and of checks between nodes; doctor's findings are examined."""
    made = {"fail": "", "fail_early": "", "node_finding": "cluster."}
    folders = (Path(preflight.__file__).parent, Path(report.__file__).parent)
    files = (*folders[0].glob("*.py"), folders[1] / "survey.py", folders[1] / "rdma.py")
    nodes = [item for file in files for item in ast.walk(ast.parse(file.read_text()))]
    calls = [item for item in nodes if isinstance(item, ast.Call) and item.args]
    return {
        made[name] + str(call.args[0].value)
        for call in calls
        if (name := ast.unparse(call.func)) in made and isinstance(call.args[0], ast.Constant)
    }


def test_every_problem_of_a_plan_has_a_group_and_stands_in_docs() -> None:
    ids = ids_of_problems()
    assert {"image.mods", "model.weights", "cluster.gid"} <= ids
    assert {name.partition(".")[0] for name in ids} <= set(report.GROUPS)
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    assert [name for name in sorted(ids) if f"`{name}`" not in page] == []


def test_a_missing_mod_is_a_finding_like_any_other(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replace(
        load_recipe(shipped, "v2"), mods=(FoundMod("fix", None, "", needs_network=False),)
    )
    monkeypatch.setattr("tests.unit.checks.test_doctor.load_recipe", lambda *_: made)
    found = examined("spark", shipped, monkeypatch)
    lines = plain_lines(report.lines(list(found.values())))
    assert "to look at" in lines
    assert [it for it in lines if it.startswith("  x image.mods ")]


def test_an_image_that_is_to_come_has_no_fingerprint_yet(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examined("spark", shipped, monkeypatch, recipe="baseline")
    # `plan` asks the registry for the base and knows more; two names of one thing help nobody.
    assert found["docker.image"].seen == "cuda-0.25 has no such image yet; `up` makes it"


def test_words_name_the_thing_and_its_value(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examined("spark-in-trouble", shipped, monkeypatch)
    assert "590.44.01" in found["machine.driver"].seen
    assert "python3 (pid 4711, 24.0 GiB)" in found["gpu.other_users"].seen
    assert "pid 4712 in container abababababab" in found["gpu.other_users"].seen
    assert found["folders.hub_cache"].fix is not None
    assert found["folders.hub_cache"].fix.endswith("/home/ada/.cache/huggingface/hub")
    assert "8265 (Ray's dashboard" in found["ports.open"].seen
    assert "11434 (Ollama)" in found["ports.open"].seen
    assert found["deployments.state"].fix == "sparkdeploy rollback main"


@pytest.mark.parametrize(
    ("engine", "processor", "verdict"),
    [
        ("aarch64", "x86_64", Verdict.WARN),
        ("x86_64", "x86_64", Verdict.OK),
        ("aarch64", "riscv64", Verdict.WARN),
        ("aarch64", None, Verdict.NOT_SEEN),
    ],
)
def test_an_engine_for_other_processors_than_the_machines_is_worth_a_look(
    engine: str, processor: str | None, verdict: Verdict
) -> None:
    found = docker.check_architecture(engine, processor)
    assert found.verdict is verdict
    if verdict is Verdict.WARN:
        assert f"for {engine}, and this machine is {processor}" in found.seen


def test_an_engine_that_answers_and_is_of_no_use_is_not_called_silent(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = load("spark")
    assert recording.docker is not None
    info = {**recording.docker["info"], "Architecture": "armv7l"}
    other = replace(recording, docker={**recording.docker, "info": info})
    monkeypatch.setattr("tests.unit.checks.test_doctor.load", lambda _name: other)
    found = examined("spark", shipped, monkeypatch)
    assert found["folders.model"].seen == "there is no vLLM for armv7l"
    assert found["docker.engine"].verdict is Verdict.NOT_SEEN
    assert "there is no vLLM for armv7l" in found["docker.engine"].seen


@pytest.mark.parametrize("moment", ["it waits", "it changes containers"])
def test_a_replacement_that_somebody_waits_for_is_no_trouble(
    shipped: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str
) -> None:
    lock_dir, node = tmp_path / "locks", settings_of_ada().node_name
    command = "sparkdeploy up v2 --name main"
    held = {
        "it waits": watching(lock_dir, node, "main", command=command),
        "it changes containers": node_lock(lock_dir, node, command=command, deployment="main"),
    }
    with held[moment]:
        found = examined("spark-in-trouble", shipped, monkeypatch, lock_dir=lock_dir)
    state = found["deployments.state"]
    assert (state.verdict, state.fix) == (Verdict.OK, None)
    assert state.seen.startswith("small runs, main is being replaced: `sparkdeploy up v2 --name")
    assert state.seen.endswith("waits for it")


def test_a_part_that_is_half_replaced_is_put_right_on_its_head() -> None:
    marks = {"rank": "1", "nodes": "spark-1,spark-2"}
    facts = [
        container("sparkdeploy-main", **marks),
        container("sparkdeploy-main-replaced", "exited", **marks),
    ]
    state = next(docker.deployment_findings(facts, booting=frozenset(), attended={}))
    assert state.fix == "on spark-1: sparkdeploy rollback main"


def test_the_drivers_own_words_are_passed_on(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examined("new-driver", shipped, monkeypatch)["machine.gpu"]
    assert "Driver/library version mismatch" in found.seen
    assert "reboot" in str(found.fix)


def test_a_rehearsals_engine_needs_no_gpu(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "connect", lambda _: RecordedEngine(load("spark").docker or {}))
    resolved = load_recipe(shipped, "baseline", ["engine=cpu-0.32"])
    found = module.examine(resolved, settings_of_ada(), load("nothing"))
    assert not [item for item in found if item.check.startswith(("gpu.", "machine.gpu"))]


def test_a_plan_at_hand_is_reported_and_not_drafted_again(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(module, "observe", refuse)
    monkeypatch.setattr(module, "connect", lambda _: RecordedEngine(load("spark").docker or {}))
    plan = two_node_plan(
        shipped, ObservedNode(node_fact(2, gpu=None, gpu_failure="no GPU on the second"))
    )
    found = module.doctor_report(plan.resolved, settings_of_ada(), plan)
    gpu = next(item for item in found["checks"] if "no GPU on the second" in item["seen"])
    assert gpu["seen"].startswith("spark-2: ")
    monkeypatch.setattr(module, "connect", no_engine)
    told = module.doctor_report(plan.resolved, settings_of_ada(), plan)["checks"]
    assert "docker does not answer" in {item["seen"] for item in told}


class _Slow:
    """A machine whose every command hangs as long as it may."""

    def __init__(self) -> None:
        self.patience_s: list[float] = []

    def read_file(self, path: str) -> str:
        raise NodeError(f"{path} cannot be read")

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        self.patience_s.append(timeout_s)
        raise NodeError(f"{argv[0]} did not end within {timeout_s:g} s")


def test_no_command_is_waited_for_longer_than_a_patient_would(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "connect", no_engine)
    slow = _Slow()
    module.examine(load_recipe(shipped, "v2"), settings_of_ada(), slow)
    assert len(slow.patience_s) > 8
    assert max(slow.patience_s) <= READ_TIMEOUT_S


def break_down(*_: object, **__: object) -> None:
    raise KeyError("a bug")


def test_a_bug_in_a_thread_is_raised_where_it_is_waited_for(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "connect", no_engine)
    monkeypatch.setattr(module, "observe", break_down)
    with pytest.raises(KeyError, match="a bug"):
        module.examine(load_recipe(shipped, "v2"), settings_of_ada(), load("nothing"))


def test_a_bug_of_doctor_does_not_keep_up_from_settling_a_failure(
    shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "doctor_report", break_down)
    plan = two_node_plan(shipped, ObservedNode(node_fact(2)))
    nodes = Nodes(node_behind("here", None))
    watch = Watch(Launch(nodes, "main", settings_of_ada(), "up v2"), {}, "v2", 1.0, plan=plan)
    assert watch.details()["doctor"] == {"not_seen": "KeyError('a bug')"}


@given(st.text(), st.text())
def test_no_output_of_a_command_is_too_strange(first: str, second: str) -> None:
    """Whatever the programs of a machine print, reading it does not raise."""

    class Strange:
        def read_file(self, path: str) -> str:
            return first

        def run(self, argv: Sequence[str], *, timeout_s: float) -> Any:
            return type("Done", (), {"exit_code": 0, "stdout": second, "stderr": first})()

    folders, targets = {"hub_cache": "/x", "lock": "/y"}, (host.NeededHost("hub", "h", 1),)
    machine = TimeLimitedMachine(Strange())
    assert host.host_findings(host.CheckedHost(machine, folders, ("/z",), "models--a--b", targets))
    assert host.booting(host.CheckedHost(machine, folders)) is not None
    parse_gpus(second)
    parse_gpu_processes(second)


def test_a_proxy_takes_the_place_of_the_host_behind_it() -> None:
    behind_proxy = load_settings(
        {**MIRRORS, "https_proxy": "http://proxy.lab:3128", "no_proxy": "packages.lab,ub.lab"}
    )
    targets = {item.name: item for item in module._targets(behind_proxy)}
    assert (targets["hub"].host, targets["hub"].port) == ("proxy.lab", 3128)
    assert targets["hub"].is_proxy
    assert targets["package_index"].host == "packages.lab"


@pytest.mark.parametrize(
    ("proxy", "port"), [("proxy.lab:3128", 3128), ("proxy.lab", 80), ("http://proxy.lab:port", 80)]
)
def test_a_proxy_is_read_as_curl_reads_it(proxy: str, port: int) -> None:
    targets = module._targets(load_settings({**MIRRORS, "https_proxy": proxy}))
    hub = next(item for item in targets if item.name == "hub")
    assert (hub.host, hub.port) == ("proxy.lab", port)


def test_what_disappoints_in_a_recipe_is_said(shipped: Library) -> None:
    changes = [
        *("checkpoint.mtp=required", "serve.tool_call_parser=hermes"),
        *("serve.enable_prefix_caching=true", "engine=cuda-0.19", "allow_known_bad=true"),
    ]
    resolved = load_recipe(shipped, "baseline", changes)
    found = {item.check: item.verdict for item in recipe_findings(resolved.recipe, resolved.engine)}
    assert found == {
        "recipe.speculation": Verdict.WARN,
        "recipe.prefix_caching": Verdict.WARN,
        "recipe.tool_parser": Verdict.WARN,
        "recipe.reasoning": Verdict.OK,
    }
    silent = load_recipe(shipped, "baseline", ["serve.tool_call_parser=qwen3_coder"])
    words = [item.seen for item in recipe_findings(silent.recipe, silent.engine)]
    assert any("never asked" in item for item in words)


def said_of(shipped: Library, check: str, *settings: str) -> Finding:
    made = load_recipe(shipped, "baseline", settings)
    return next(it for it in recipe_findings(made.recipe, made.engine) if it.check == check)


@pytest.mark.parametrize(
    ("model", "is_wrong"),
    [
        ("Qwen/Qwen3.5-35B-A3B", True),
        ("Qwen/Qwen3-8B", False),
        ("Qwen/Qwen2.5-7B-Instruct", False),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", False),
    ],
)
def test_hermes_is_wrong_only_for_the_models_it_was_reported_of(
    shipped: Library, model: str, is_wrong: bool
) -> None:
    found = said_of(
        shipped,
        "recipe.tool_parser",
        f"model.repo={model}",
        "serve.tool_call_parser=hermes",
        "serve.enable_auto_tool_choice=true",
    )
    assert (found.verdict is Verdict.WARN) == is_wrong
    assert not is_wrong or found.fix == "--set serve.tool_call_parser=qwen3_coder"


def test_speeds_of_the_122b_are_told_of_no_other_model(shipped: Library) -> None:
    other, check = "model.repo=Qwen/Qwen3-8B", "recipe.speculation"
    one = ("serve.speculative={method: mtp, tokens: 1}", "checkpoint.mtp=required")
    assert "30 -> 42" in said_of(shipped, check).seen
    assert said_of(shipped, check, other).seen == "none"
    assert "10 % faster" in said_of(shipped, check, *one).seen
    assert "10 % faster" not in said_of(shipped, check, other, *one).seen


@pytest.mark.parametrize(
    ("owner_uid", "is_writable", "verdict"),
    [
        (0, True, Verdict.OK),
        (1000, True, Verdict.OK),
        (0, False, Verdict.FAIL),
        (1001, True, Verdict.FAIL),
    ],
)
@pytest.mark.parametrize(
    ("place", "fix"),
    [
        (SHARED_LOCK_DIR, f"as root: rm -rf {SHARED_LOCK_DIR} && mkdir -m 1777 {SHARED_LOCK_DIR}"),
        ("/x/lock", "set SPARKDEPLOY_LOCK_DIR to another folder: root's or your own"),
    ],
)
def test_a_lock_folder_of_another_user_fails_with_what_mends_it(
    monkeypatch: pytest.MonkeyPatch,
    owner_uid: int,
    is_writable: bool,
    verdict: Verdict,
    place: str,
    fix: str,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    answers = {"stat": f"{owner_uid}\n", "test": "" if is_writable else None}
    monkeypatch.setattr(host.CheckedHost, "output", lambda _self, program, *_: answers[program])
    found = list(host.folder_findings(host.CheckedHost(THIS_MACHINE, {"lock": place})))
    assert [item.verdict for item in found] == [verdict]
    assert found[0].fix == (None if verdict is Verdict.OK else fix)


def test_the_report_is_worst_first_and_groups_stay_together() -> None:
    findings = [ok("docker.disk", "much"), warn("machine.swap", "3", "x"), fail("gpu.a", "b", "c")]
    content = report.as_dict(findings)
    assert content["verdict"] == "fail"
    assert [item["check"] for item in content["checks"]] == ["machine.swap", "gpu.a", "docker.disk"]
    lines = plain_lines(report.lines(findings))
    assert lines[-1] == "3 checks: 1 failed, 1 with a warning"
    assert report.as_dict([])["verdict"] == "ok"


def test_a_report_says_what_its_signs_mean_and_no_others() -> None:
    findings = [ok("docker.disk", "much"), warn("machine.swap", "3", "x"), ok("gpu.a", "b")]
    assert plain_lines(report.lines(findings))[-2] == "= ok, nothing to do  ! warning"
    assert set(report.SIGNS.values()) <= set(report.MEANINGS)
    assert len(set(report.MEANINGS.values())) == len(report.MEANINGS)


@pytest.mark.parametrize(
    ("free_bytes", "verdict"),
    [(0, Verdict.WARN), (19_999_999_999, Verdict.WARN), (20_000_000_000, Verdict.OK)],
)
def test_less_than_an_engines_image_and_its_build_is_little(
    free_bytes: int, verdict: Verdict
) -> None:
    assert docker.check_low_disk(DOCKER, free_bytes).verdict is verdict


@pytest.mark.parametrize(("code", "is_stop"), [(0, True), (143, True), (88, True), (137, False)])
def test_whatever_a_container_died_of_is_no_stop(code: int, *, is_stop: bool) -> None:
    fact = replace(container("sparkdeploy-main", "exited"), exit_code=code)
    for killed, is_said in ((fact, is_stop), (replace(fact, oom_killed=True), False)):
        found = next(docker.deployment_findings([killed], booting=frozenset(), attended={}))
        assert ("is stopped" in found.seen) is (found.verdict is Verdict.OK) is is_said
