"""`--on NODE` over an ssh of the tests' own, which runs scripts here with another home."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from sparkdeploy import __version__
from sparkdeploy.cli.main import split_on
from sparkdeploy.cli.on import target_of
from sparkdeploy.errors import UsageError
from sparkdeploy.node.ssh import FACT, _assigned
from sparkdeploy.settings import load_settings
from tests.unit.conftest import GiveProgram

pytestmark = pytest.mark.outside
SECRET = "a-key-of-this-machine"
# The last argument is the script. What makes a connection is an ssh that stays.
SSH = """\
for last; do :; done
echo "$*" >>{calls}
[ ! -e {gone} ] || {{ echo "connect to host spark port 22: Connection refused" >&2; exit 255; }}
cd {home}
exec env -i HOME={home} PATH=/usr/bin:/bin TERM=dumb sh -c "$last"
"""
# Repeats a command, with what it was given.
REPEATS = 'echo "there: $*"; env | grep "^SPARKDEPLOY" | sort'
PROGRAM = """\
#!/bin/sh
if [ "$1" = --version ]; then echo sparkdeploy {version}; exit; fi
{body}
"""


@dataclass(frozen=True)
class Node:
    """The machine behind the fake ssh."""

    home: Path
    gone: Path
    calls: Path

    @property
    def cache(self) -> Path:
        return self.home / ".cache" / "sparkdeploy"

    def has_program(self, body: str = REPEATS, *, version: str = __version__) -> None:
        path = self.home / ".local" / "bin" / "sparkdeploy"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROGRAM.format(version=version, body=body))
        path.chmod(0o755)

    def has_this_program(self) -> None:
        self.has_program(f'exec {sys.executable} -P -m sparkdeploy "$@"')

    def sent(self) -> set[str]:
        (folder,) = (self.cache / "from").glob("*")
        return {str(it.relative_to(folder)) for it in folder.rglob("*") if it.is_file()}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give_program: GiveProgram) -> Node:
    """A machine without the program."""
    made = Node(tmp_path / "node", tmp_path / "gone", tmp_path / "calls")
    made.home.mkdir()
    give_program("ssh", SSH.format(home=made.home, gone=made.gone, calls=made.calls))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return made


class Said:
    """Runs commands whose answers other processes print."""

    def __init__(self, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capfd = capfd
        self._patch = patch

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        from sparkdeploy.cli.main import main

        self._patch.setattr(sys, "argv", ["sparkdeploy", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        out, err = self._capfd.readouterr()
        return ended.value.code, out, err


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Said:
    return Said(capfd, monkeypatch)


def test_the_nodes_own_program_runs_the_command(node: Node, said: Said) -> None:
    node.has_program()
    code, out, _ = said("-v", "logs", "other", "--on=spark", "--tail", "5")
    assert code == 0
    assert "there: -v logs other --tail 5\n" in out
    assert "SPARKDEPLOY_ON=spark\n" in out
    assert "SPARKDEPLOY_STATE_DIR" not in out
    assert not (node.cache / "from").exists()


def test_no_secret_of_this_machine_is_sent(node: Node, said: Said) -> None:
    node.has_program("env")
    code, out, _ = said("status", "--on", "spark")
    assert code == 0
    assert "SPARKDEPLOY_ON=spark" in out
    assert SECRET not in out + node.calls.read_text()


def test_a_node_without_the_program_is_told_how_to_install_it(node: Node, said: Said) -> None:
    code, _, err = said("status", "--on", "spark")
    assert code == 4
    assert "spark: sparkdeploy is not installed there" in err
    assert "./install.sh --tool-only" in err


def test_another_version_there_is_refused_with_nothing_sent(
    node: Node, said: Said, recipes: Path
) -> None:
    node.has_program(version="0.0.9")
    code, out, err = said("plan", str(recipes / "mine.yaml"), "--allow-unsafe", "--on", "spark")
    assert (code, out) == (4, "")
    assert f"sparkdeploy 0.0.9 is installed there, and this is sparkdeploy {__version__}" in err
    assert f"uv tool install sparkdeploy=={__version__}" in err
    assert not (node.cache / "from").exists()


@pytest.mark.parametrize("code", [0, 3, 9, 70, 130])
def test_the_exit_code_is_the_one_there(node: Node, said: Said, code: int) -> None:
    node.has_program(f"exit {code}")
    assert said("plan", "--check", "--on", "spark")[0] == code


def test_a_broken_connection_says_how_to_look(node: Node, said: Said) -> None:
    node.has_program("exit 255")
    code, _, err = said("up", "v2", "--on", "ada@spark")
    assert code == 4
    assert "ada@spark: the connection broke" in err
    assert "`sparkdeploy status --on ada@spark` says what goes on there" in err


def test_a_node_that_does_not_answer_is_named(node: Node, said: Said) -> None:
    node.gone.touch()
    code, _, err = said("status", "--on", "spark")
    assert code == 4
    assert "spark: nothing listens for ssh at spark" in err


@pytest.mark.parametrize(
    "words",
    [
        ("diagnose", "-o", "report.tar.gz"),
        ("diagnose", "--output=report.tar.gz"),
        ("ask", "What?", "--image", "a.png"),
    ],
)
def test_paths_of_this_machine_are_refused_by_name(
    node: Node, said: Said, words: tuple[str, ...]
) -> None:
    code, _, err = said(*words, "--on", "spark")
    assert code == 2
    option = next(word for word in words if word.startswith("-")).partition("=")[0]
    assert f"{option} names a path of this machine" in err
    assert "ssh -t spark 'sparkdeploy " in err
    assert not node.calls.exists()


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "sparkdeploy", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_standard_input_is_passed_on(node: Node) -> None:
    node.has_program("cat")
    process = started("plan", "--on", "spark")
    out, err = process.communicate("what was typed\n", timeout=30)
    assert process.returncode == 0, err
    assert "what was typed\n" in out


def test_ctrl_c_without_a_terminal_reaches_the_program_there(node: Node) -> None:
    node.has_program(
        'trap "echo interrupted; exit 130" INT; echo ready; while :; do sleep 0.1; done'
    )
    process = started("up", "v2", "--on", "spark")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(2)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "interrupted\n"), err
    assert list((node.cache / "running").iterdir()) == []


@pytest.mark.parametrize("has_output", [True, False])
def test_the_program_there_has_a_terminal_where_we_have_one(node: Node, has_output: bool) -> None:
    """The terminal brings it Ctrl-C, so that nothing notes which process it is."""
    node.has_program()
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sparkdeploy", "status", "--on", "spark"],
        stdin=theirs,
        stdout=theirs if has_output else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    assert process.wait(30) == 0
    assert (" -q -t spark sh -c " in node.calls.read_text()) is has_output
    assert (node.cache / "running").exists() is not has_output
    os.close(ours)


def test_an_ssh_docker_host_means_that_machine(
    node: Node, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.has_program()
    monkeypatch.setenv("DOCKER_HOST", "ssh://ada@spark:2222")
    out = said("status")[1]
    assert "there: status\n" in out
    assert "DOCKER_HOST" not in out
    assert "ssh://ada@spark:2222" in node.calls.read_text()
    code, _, err = said("cluster", "check")
    assert code in {3, 4}, err
    # On that machine nothing is handed on again.
    monkeypatch.setenv("SPARKDEPLOY_ON", "spark")
    code, _, err = said("status")
    assert code == 4
    assert "--on ssh://ada@spark:2222" in err


@pytest.mark.parametrize("words", ["-oProxyCommand=x", "a@-oProxyCommand=x", "a b", "ssh://", ""])
def test_what_is_no_destination_is_refused_before_ssh_sees_it(
    node: Node, said: Said, words: str
) -> None:
    code, _, err = said("status", f"--on={words}")
    assert code == 2, err
    assert not node.calls.exists()


def test_a_node_of_the_configuration_is_known_by_its_name(tmp_path: Path) -> None:
    write_cluster(tmp_path)
    target = target_of("spark-2", load_settings())
    assert (target.address, target.user) == ("192.168.177.12", "ada")
    assert target_of("spark-3", load_settings()).address == "spark-3"
    with pytest.raises(UsageError):
        target_of("-v", load_settings())


def test_only_the_option_itself_is_left_out() -> None:
    argv = ["up", "--on", "a", "v2", "--on=b", "--name", "x", "--", "--on"]
    assert split_on(argv) == ("b", ["up", "v2", "--name", "x", "--", "--on"])


def test_what_is_about_this_machine_goes_nowhere(node: Node, said: Said) -> None:
    code, _, err = said("setup", "--on", "spark")
    assert code == 2
    assert "ssh -t spark 'sparkdeploy setup'" in err
    assert not node.calls.exists()


def test_a_greeting_is_no_fact() -> None:
    assert FACT.fullmatch("sparkdeploy: welcome") is None
    assert FACT.fullmatch("sparkdeploy:welcome=you") is None
    found = FACT.fullmatch("sparkdeploy:cache=/home/ada/.cache/sparkdeploy")
    assert found is not None
    assert found.groups() == ("cache", "/home/ada/.cache/sparkdeploy")


def write_cluster(home: Path) -> None:
    nodes = [
        {
            "name": f"spark-{number}",
            "ssh": f"192.168.177.1{number}",
            "user": "ada",
            "fabric": [{"interface": "e1", "address": f"192.168.178.1{number}/24"}],
        }
        for number in (1, 2)
    ]
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "config.yaml").write_text(yaml.safe_dump({"cluster": {"nodes": nodes}}))


RECIPE = "schema: 1\nname: {name}\ntitle: t\nextends: {extends}\n"


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """A recipe in a folder, with what it extends and its chat template."""
    folder = tmp_path / "theirs"
    (folder / "base").mkdir(parents=True)
    mine = RECIPE.format(name="mine", extends="base/theirs.yaml")
    (folder / "mine.yaml").write_text(mine + "serve: {chat_template: t.jinja}\n")
    (folder / "t.jinja").write_text("{{ messages }}")
    (folder / "base" / "theirs.yaml").write_text(RECIPE.format(name="theirs", extends="v2"))
    (folder / "secret").write_text("key")
    (folder / "mod").mkdir()
    (folder / "mod" / "run.sh").write_text("true\n")
    return folder


def test_a_recipe_is_sent_with_what_it_names_and_nothing_else(
    node: Node, said: Said, recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.has_this_program()
    monkeypatch.chdir(recipes)
    code, out, err = said("show", "./mine.yaml", "--allow-unsafe", "--json", "--on", "spark")
    assert code == 0, err
    assert '"mine"' in out
    inside = str(recipes).lstrip("/")
    assert node.sent() == {
        f"{inside}/mine.yaml", f"{inside}/t.jinja", f"{inside}/base/theirs.yaml"
    }  # fmt: skip
    (again,) = (node.cache / "from").glob("*")
    assert said("show", str(recipes / "mine.yaml"), "--allow-unsafe", "--on", "spark")[0] == 0
    assert list((node.cache / "from").glob("*")) == [again]


def test_a_stack_is_sent_with_the_recipes_that_it_names(
    node: Node, said: Said, recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.has_this_program()
    models = [
        {"name": name, "recipe": recipe}
        for name, recipe in (("a", "base/theirs.yaml"), ("b", "v2"), ("c", "./home.yaml"), ("d", 1))
    ]
    (recipes / "home.yaml").write_text(yaml.safe_dump({"schema": 1, "models": models}))
    monkeypatch.chdir(recipes)
    code, _, err = said("plan", "home.yaml", "--on", "spark")
    assert (code, "models.3.recipe" in err) == (3, True), err
    inside = str(recipes).lstrip("/")
    assert node.sent() == {f"{inside}/home.yaml", f"{inside}/base/theirs.yaml"}


def test_a_template_is_sent_with_consent_alone(node: Node, said: Said, recipes: Path) -> None:
    code, _, err = said("plan", str(recipes / "mine.yaml"), "--on", "spark")
    assert code == 3
    assert "t.jinja is a file of this machine, which is sent with your consent only" in err
    assert not node.calls.exists()


def test_mods_are_sent_with_consent_alone(node: Node, said: Said, recipes: Path) -> None:
    node.has_program()
    file = recipes / "base" / "theirs.yaml"
    file.write_text(file.read_text() + "mods: [{folder: ../mod}, {folder: mod}]\n")
    (recipes / "mine.yaml").write_text(RECIPE.format(name="mine", extends="base/theirs.yaml"))
    code, _, err = said("plan", str(recipes / "mine.yaml"), "--on", "spark")
    assert code == 3
    assert "is code, which is sent with your consent only" in err
    assert not node.calls.exists()
    mine = str(recipes / "mine.yaml")
    assert said("plan", mine, "--allow-unsafe", "--on", "spark")[0] == 0
    assert f"{str(recipes).lstrip('/')}/mod/run.sh" in node.sent()


def test_recipes_that_extend_one_another_are_refused_there(
    node: Node, said: Said, recipes: Path
) -> None:
    node.has_this_program()
    (recipes / "base" / "theirs.yaml").write_text(RECIPE.format(name="t", extends="../mine.yaml"))
    code, _, err = said("plan", str(recipes / "mine.yaml"), "--allow-unsafe", "--on", "spark")
    assert code == 3
    assert "extends itself" in err


def test_a_recipe_from_elsewhere_is_judged_there(node: Node, said: Said, recipes: Path) -> None:
    node.has_this_program()
    file = recipes / "mine.yaml"
    file.write_text(RECIPE.format(name="mine", extends="v2") + "serve: {env: {A: /x.so}}\n")
    _, out, err = said("plan", str(file), "--on", "spark")
    assert "`up` asks for your consent to serve.env.A" in out + err


def test_the_name_of_an_own_recipe_is_answered_with_its_file(
    node: Node, said: Said, tmp_path: Path
) -> None:
    node.has_program("exit 3")
    own = tmp_path / "config" / "recipes"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(RECIPE.format(name="mine", extends="v2"))
    _, _, err = said("plan", "mine", "--set", "a/b=1", "--on", "spark")
    assert err.count("give its file: ") == 1
    assert f"to send mine of this machine, give its file: {own}/mine.yaml\n" in err
    assert "give its file" not in said("plan", "v2", "--on", "spark")[2]


def test_the_newest_twenty_of_what_was_sent_are_kept(node: Node, said: Said, recipes: Path) -> None:
    node.has_program()
    for number in range(25):
        folder = node.cache / "from" / f"{number:016x}"
        folder.mkdir(parents=True)
        os.utime(folder, (number, number))
    assert said("plan", str(recipes / "mine.yaml"), "--allow-unsafe", "--on", "spark")[0] == 0
    kept = {path.name for path in (node.cache / "from").iterdir()}
    assert len(kept) == 20
    assert f"{5:016x}" not in kept
    assert f"{24:016x}" in kept


@pytest.mark.parametrize("value", ["it's", "$(id)", "a b", "`id`", "", "\n"])
def test_what_is_given_to_the_other_shell_arrives_as_it_is(value: str) -> None:
    script = _assigned('printf "%s." "$note"', note=value)
    done = subprocess.run(("sh", "-c", script), capture_output=True, text=True, check=True)
    assert done.stdout == f"{value}."
