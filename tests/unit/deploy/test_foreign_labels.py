"""An engine where somebody else writes our labels, by accident or by malice."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy import labels
from sparkdeploy.bench import origin as bench_origin
from sparkdeploy.checks.docker import deployment_findings
from sparkdeploy.deploy import lifecycle, removal
from sparkdeploy.deploy.expectation import expectation_on
from sparkdeploy.deploy.memory import Memory, require_memory
from sparkdeploy.deploy.watch import Watch
from sparkdeploy.errors import SparkdeployError, UnhealthyError
from sparkdeploy.monitor import status as operating
from sparkdeploy.monitor.status_words import status_lines
from sparkdeploy.node.container import ContainerFact, ImageFact, ListedContainer
from sparkdeploy.node.ports import port_owner
from sparkdeploy.plan.problems import promised_bytes
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep import diagnose
from sparkdeploy.upkeep import images as image_shelf
from tests.examples import examples
from tests.fakes.containers import FakeContainers, container
from tests.fakes.machines import reached_alone
from tests.unit.plain import plain_lines

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = datetime.now(UTC).isoformat()
NINES = "9" * 5000
NUMBERS = ("1", "2", "07", "²", "x", NINES)
ENDINGS = ("", "-replaced", *(f"-kept-{number}" for number in NUMBERS))
STRANGERS = ("postgres", "sparkdeploy-other", "sparkdeploy-main2", "sparkdeploy-", "x" * 300)
NAMES = st.sampled_from([*(f"sparkdeploy-main{ending}" for ending in ENDINGS), *STRANGERS])
DEPLOYMENTS = st.sampled_from(
    ["main"] * 8 + ["other", "", "main\n", "../../../x", "a/b", "..", "\x1b[2Jmain", "x" * 300, "ü"]
)
CLAIMS: tuple[Any, ...] = (
    None,
    {},
    [],
    {"memory": None, "backends": [], "treatment": None},
    {"memory": {"needed_bytes": "1", "floor_bytes": 0}, "backends": [], "treatment": None},
    {"memory": {"needed_bytes": -1, "floor_bytes": 1 << 80}, "backends": [], "treatment": None},
    {"memory": {"needed_bytes": 1e400, "floor_bytes": 1}, "backends": [], "treatment": None},
    {"memory": [1, 2], "backends": [], "treatment": None},
    {"memory": None, "backends": [{"subject": "x", "wanted": 1}], "treatment": None},
    {"memory": None, "backends": {"subject": "moe"}, "treatment": {"fp8_layers": "all"}},
)
VALUES = st.sampled_from(
    [
        *(
            "",
            "0",
            "2",
            "8000",
            "70000",
            "-1",
            "+1",
            "²",
            "१",
            NINES,
            "nan",
            "inf",
            "1e999",
            "0x10",
        ),
        *("8000@somewhere.test/", "\x1b]0;x\x07", "../../x", "a,,\x1b[1m", "\ud800", "a,b", "/x"),
        *("x" * 100_000, "public", "[" * 20_000, "{", "\0", "main\n"),
        *map(json.dumps, CLAIMS),
    ]
)
WHOSE = ("PREFIX", "KIND", "DEPLOYMENT")
KEYS = st.sampled_from(
    [value for name, value in vars(labels).items() if name.isupper() and name not in WHOSE]
)
FACTS = st.builds(
    lambda name, state, kind, deployment, more: ContainerFact(
        name, name, "sha256:0", state,
        {**more, **kind, labels.DEPLOYMENT: deployment},
        exit_code=1, started_at=NOW, created_at=NOW,
    ),
    NAMES,
    st.sampled_from(["running", "running", "exited", "created", "paused", "dead", "restarting"]),
    st.sampled_from([{labels.KIND: "container"}] * 6 + [{}, {labels.KIND: "image"}]),
    DEPLOYMENTS,
    st.dictionaries(KEYS, VALUES, max_size=4),
)  # fmt: skip
ENGINES = st.lists(FACTS, max_size=4, unique_by=lambda fact: fact.name)


@dataclass
class Engine(FakeContainers):
    """An engine that also tells of memory, and of images."""

    touched: list[str] = field(default_factory=list)

    def memory_bytes(self, _key: str) -> int:
        return 0

    def stop(self, key: str, *, timeout_s: int = 30) -> None:
        self.touched.append(self.facts[key].container_id)
        super().stop(key)

    def remove(self, container: str | ListedContainer) -> None:
        key = container if isinstance(container, str) else container.container_id
        self.touched.append(self.facts[key].container_id)
        super().remove(container)

    def rename(self, key: str, name: str) -> None:
        self.touched.append(self.facts[key].container_id)
        super().rename(key, name)

    def start(self, key: str) -> None:
        self.touched.append(self.facts[key].container_id)
        super().start(key)


def is_ours(fact: ContainerFact) -> bool:
    """What a person would say, written once more and otherwise than the product has it."""
    name = fact.labels.get(labels.DEPLOYMENT, "")
    if fact.labels.get(labels.KIND) != "container" or not re.fullmatch(r"[a-z0-9._-]{1,63}", name):
        return False
    ending = fact.name.removeprefix(f"sparkdeploy-{name}")
    return ending != fact.name and bool(re.fullmatch("(-replaced|-kept-[1-9][0-9]{0,8})?", ending))


def read_all() -> None:
    for _text in operating.read_log("main", follow=False, tail=None):
        pass


def show_all() -> None:
    for line in plain_lines(status_lines(operating.current_rows())):
        assert len(line) < 1000


COMMANDS: dict[str, Callable[[], object]] = {
    "status": show_all,
    "down": lambda: removal.down("main"),
    "down --all": removal.down_all,
    "rollback": lambda: lifecycle.roll_back("main"),
    "logs": read_all,
    "diagnose": lambda: diagnose.diagnose("main", load_settings().state_dir / "bundle.tar.gz"),
}
LEFT_ALONE = "warning: left alone, for they carry sparkdeploy's labels and other names:"
ASKED: list[str] = []


def never(_watch: object) -> None:
    raise UnhealthyError("it never answered")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing serves: whoever is asked whether it answers is noted, and says no."""

    def is_healthy(model: Any, *, timeout_s: float = 0) -> bool:
        ASKED.append(model.base_url)
        return False

    monkeypatch.setattr("sparkdeploy.server.client.ServedModel.is_healthy", is_healthy)
    monkeypatch.setattr(Watch, "wait", never)
    monkeypatch.setattr(diagnose, "_surroundings", lambda _settings: ())


def run(engine: Engine, command: str) -> SparkdeployError | None:
    with pytest.MonkeyPatch.context() as patch:
        reached_alone(patch, engine)
        patch.setattr(diagnose, "connect", lambda _settings: engine)
        try:
            COMMANDS[command]()
        except SparkdeployError as error:
            return error
    return None


@settings(max_examples=examples(300))
@given(facts=ENGINES, command=st.sampled_from(sorted(COMMANDS)))
def test_whatever_the_labels_say_a_command_touches_its_own_containers_only(
    tmp_path_factory: pytest.TempPathFactory, facts: list[ContainerFact], command: str
) -> None:
    engine, home = Engine.of(*facts), load_settings().state_dir.parent
    home.mkdir(exist_ok=True)
    around = {path.name for path in home.parent.iterdir()}
    foreign = {fact.name for fact in facts if not is_ours(fact)}

    run(engine, command)

    assert foreign.isdisjoint(engine.touched)
    assert {key: engine.facts[key] for key in foreign} == {
        fact.name: fact for fact in facts if fact.name in foreign
    }
    assert {path.name for path in home.parent.iterdir()} == around
    assert {path.name for path in home.iterdir()} <= {"state", "cache", "locks"}
    assert all(re.fullmatch(r"http://127\.0\.0\.1:[0-9]{1,5}", url) for url in ASKED)


@settings(max_examples=examples(200))
@given(facts=ENGINES)
def test_what_is_reckoned_from_labels_is_never_a_crash(facts: list[ContainerFact]) -> None:
    promised = promised_bytes(facts, "main")
    found = list(deployment_findings(facts, memory_total_bytes=1, booting=frozenset(), attended={}))
    port_owner(8000, facts)
    for fact in facts:
        expected = expectation_on(fact)
        if expected is not None:
            clock = itertools.count(step=30).__next__
            machine = Memory(
                lambda: {"MemTotal": 1 << 62}, lambda: None, "", clock, lambda _s: None
            )
            with contextlib.suppress(SparkdeployError):
                require_memory(expected.memory, machine, others_bytes=promised)

    assert promised >= 0
    assert len(found) == 3


def test_thousands_of_strangers_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine.of(*(container(f"stranger-{number}") for number in range(3000)))
    run(engine, "status")
    said = capsys.readouterr().err.splitlines()

    assert said == [f"{LEFT_ALONE} stranger-0, stranger-1, stranger-2 and 2997 more"]


@pytest.mark.parametrize("limit", ["nan", "inf", "never", "-1", ""])
def test_a_start_without_a_limit_that_is_one_has_no_time_left(limit: str) -> None:
    new = replace(container("sparkdeploy-main", startup_timeout_s=limit), started_at=NOW)
    engine = Engine.of(container("sparkdeploy-main-replaced", "exited"), new)

    assert run(engine, "rollback") is None
    assert engine.states == {"sparkdeploy-main-replaced/sparkdeploy-main": "running"}


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
        reached_alone(patch, Engine())
        patch.setattr(diagnose, "connect", lambda _settings: Engine())
        with contextlib.suppress(SparkdeployError):
            calls[command]()

    assert secret.read_text() == '["spark-1"]'


def proved(proof: str) -> ImageFact:
    marks = {labels.PROOF: proof, labels.STAGE: "engine"}
    return ImageFact("sha256:1", ("sparkdeploy/a:1",), marks, 1)


@dataclass
class Circle:
    """An engine with two images, each of which says that it stands on the other."""

    def find_image(self, reference: str) -> ImageFact:
        other = {"sparkdeploy/a:1": "sparkdeploy/b:1"}.get(reference, "sparkdeploy/a:1")
        return ImageFact(f"sha256:{reference[-3]}", (reference,), {labels.BELOW: other}, 1)


def test_images_that_stand_on_each_other_are_told_once() -> None:
    circle: Any = Circle()
    first = circle.find_image("sparkdeploy/a:1")
    record = {"Config": {"Image": "sparkdeploy/a:1"}}
    fact = replace(container("sparkdeploy-main"), image_id="sparkdeploy/a:1")

    assert len(image_shelf.image_chain(circle, first)) == 2
    assert len(bench_origin.image_origins(circle, fact, record)) == 2
