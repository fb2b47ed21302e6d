"""Which deployment a command without a name is about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkdeploy.deploy import nodes, request
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.facts import own_name
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers, container
from tests.fakes.machines import reached_alone
from tests.unit.program import Run


def deployment(name: str, **more: str) -> ContainerFact:
    return container(f"sparkdeploy-{name}", deployment=name, **more)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeContainers:
    made = FakeContainers()
    reached_alone(monkeypatch, made)
    monkeypatch.setattr(nodes, "connect", lambda _settings: made)
    return made


def given(engine: FakeContainers, *facts: ContainerFact) -> None:
    engine.facts.update({fact.container_id: fact for fact in facts})


def test_a_name_that_is_given_is_taken_unasked() -> None:
    assert nodes.resolve_name("web", ("logs",)) == "web"


def test_one_alone_needs_no_name(engine: FakeContainers) -> None:
    given(engine, deployment("web", user=own_name()))
    assert nodes.resolve_name(None, ("logs",)) == "web"


def test_of_several_none_is_guessed_main_among_them_or_not(engine: FakeContainers) -> None:
    given(engine, deployment("main"), deployment("web"))
    with pytest.raises(UsageError, match="there are 2 deployments") as refused:
        nodes.resolve_name(None, ("bench", "load"))
    assert refused.value.hint == "`sparkdeploy bench load main` or `sparkdeploy bench load web`"


def test_anothers_has_to_be_named(engine: FakeContainers) -> None:
    given(engine, deployment("web", user="anna"))
    with pytest.raises(UsageError, match="not yours") as refused:
        nodes.resolve_name(None, ("down",))
    assert refused.value.hint == "`sparkdeploy down web`"
    given(engine, deployment("mine", user=own_name()))
    assert nodes.resolve_name(None, ("down",)) == "mine"


def test_a_part_of_what_another_machine_heads_has_to_be_named(engine: FakeContainers) -> None:
    given(engine, deployment("big", nodes="spark-1,spark-2", rank="1"))
    with pytest.raises(UsageError):
        nodes.resolve_name(None, ("down",))


def test_with_nothing_deployed_it_is_said_how_to_begin(engine: FakeContainers) -> None:
    with pytest.raises(NodeError, match="nothing is deployed") as refused:
        nodes.resolve_name(None, ("logs",))
    assert refused.value.hint == "start with `sparkdeploy up`"


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("switch v3-fast", "sparkdeploy up v3-fast"),
        ("diagnose", "`sparkdeploy doctor` says what is wrong with the machine"),
    ],
)
def test_with_nothing_deployed_the_fix_is_one_for_the_command(
    run: Run, engine: FakeContainers, words: str, fix: str
) -> None:
    given(engine)
    done = run(*words.split())
    assert done.returncode == 4
    assert done.stderr.startswith("error: nothing is deployed")
    assert done.stderr.endswith(f"\n  fix: {fix}\n")


@pytest.mark.parametrize("command", ["down", "rollback"])
def test_a_name_that_nothing_has_is_refused_with_the_near_one(
    run: Run, engine: FakeContainers, command: str
) -> None:
    given(engine, deployment("watched"), deployment("main"))
    done = run(command, "wached")
    assert done.returncode == 4
    assert done.stderr == "error: no deployment named wached\n  fix: did you mean watched?\n"
    assert set(engine.facts) == {"sparkdeploy-watched", "sparkdeploy-main"}


@pytest.mark.parametrize(
    ("words", "state", "asks"),
    [
        ("down", "running", True),
        ("down", "exited", True),
        ("down web", "running", True),
        ("down web", "exited", False),
        ("down web --yes", "running", False),
        ("down --yes", "running", False),
        ("down --all", "exited", True),
        ("down --all --yes", "running", False),
    ],
)
def test_a_server_that_runs_and_one_that_nobody_named_go_with_consent_alone(
    run: Run, engine: FakeContainers, words: str, state: str, *, asks: bool
) -> None:
    given(engine, replace(deployment("web", user=own_name()), state=state))
    done = run(*words.split())
    if asks:
        assert done.returncode == 1
        assert "fix: say yes, or pass --yes" in done.stderr
        assert "sparkdeploy-web" in engine.facts
    else:
        assert done.returncode == 0, done.stderr
        assert "sparkdeploy-web" not in engine.facts


def test_a_rollback_says_what_it_would_do_and_asks(run: Run, engine: FakeContainers) -> None:
    earlier = container("sparkdeploy-web-kept-1", deployment="web", user=own_name(), recipe="old")
    given(engine, deployment("web", user=own_name()), replace(earlier, state="exited"))
    done = run("rollback", "web")
    assert done.returncode == 1
    assert "deployment web (recipe" in done.stderr
    assert "is running, and was not rolled back" in done.stderr
    assert set(engine.facts) == {"sparkdeploy-web", "sparkdeploy-web-kept-1"}


def test_a_deployment_where_a_recipe_is_asked_for_is_said_to_be_one(
    run: Run, engine: FakeContainers
) -> None:
    given(engine, deployment("web"))
    done = run("show", "web")
    assert done.returncode == 3
    assert done.stderr.startswith("error: web is a deployment, and a recipe is asked for\n")
    assert "fix: sparkdeploy status web" in done.stderr


def test_a_recipe_where_a_deployment_is_asked_for_is_said_to_be_one(
    run: Run, engine: FakeContainers
) -> None:
    given(engine, deployment("web"))
    done = run("down", "v2")
    assert done.returncode == 4
    assert "v2 is a recipe; there is: web; `sparkdeploy up v2` deploys it" in done.stderr


def test_a_unit_of_a_deployment_does_what_it_was_started_with(
    run: Run, engine: FakeContainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "connect", lambda _settings: engine)
    settings = load_settings()
    typed = request.Request("v2", ("serve.max_num_seqs=2",))
    label = request.as_label(typed, settings)
    given(engine, deployment("web", request=label, exposure="public"))
    text = run("export", "systemd", "web", "--port", "8011").stdout
    words = text.replace('"', "")
    assert "up v2 --set serve.max_num_seqs=2 --set serve.port=8011 --name web --public" in words
    secret = request.Request("v2", ("serve.env.TOKEN=x",))
    assert request.as_label(secret, settings) == ""
    given(engine, deployment("web", recipe="v2"))
    done = run("export", "systemd", "web")
    assert done.returncode == 4
    assert "fix: name the recipe: v2 --name web" in done.stderr
