"""`--on NODE` over an ssh of the tests' own, which runs scripts here with another home."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from sparkdeploy.commands.elsewhere import program as elsewhere
from sparkdeploy.commands.elsewhere.run import target_of, without_option
from sparkdeploy.errors import UsageError
from sparkdeploy.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.program import Run

pytestmark = pytest.mark.outside
IDENTITY = elsewhere.identity()
PYTHON_HERE = sys.executable
# The last argument is the script. What makes a connection is an ssh that stays.
SSH = """\
#!/bin/sh
for last; do :; done
echo "$*" >>{calls}
[ ! -e {gone} ] || {{ echo "connect to host spark port 22: Connection refused" >&2; exit 255; }}
cd {home}
exec env -i HOME={home} PATH={home}/bin:/usr/bin:/bin TERM=dumb sh -c "$last"
"""
# Says what it is asked; any other command it repeats, with what it was given.
PROGRAM = """\
#!/bin/sh
if [ "$1" = --identity ]; then echo {identity}; exit; fi
if [ "$1" = -P ]; then
  shift 3
  if [ "$1" = --identity ]; then echo {identity}; exit; fi
fi
echo "there: $*"
env | grep '^SPARKDEPLOY' | sort
{body}
"""
UV = """\
#!/bin/sh
set -eu
case "$1" in
  venv)
    mkdir -p "$4/bin"
    cp {python} "$4/bin/python"
    ;;
  pip) cp "$6" {home}/installed; {step} ;;
esac
"""
PYTHON = """\
#!/bin/sh
if [ "$1 $2" = "-I -c" ]; then mkdir -p {home}/site; echo {home}/site; exit; fi
exec {real} "$@"
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

    @property
    def programs(self) -> list[str]:
        return sorted(path.name for path in (self.cache / "program").glob("*"))

    def give(self, place: str, text: str) -> Path:
        path = self.home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def has_program(
        self,
        place: str = ".local/bin/sparkdeploy",
        *,
        identity: str = IDENTITY,
        body: str = "",
    ) -> Path:
        return self.give(place, PROGRAM.format(identity=identity, body=body))

    def has_uv(self, step: str = ":") -> None:
        """A uv that makes environments of this Python; where it is asked, nothing is fetched."""
        python = self.give("python", PYTHON.format(home=self.home, real=PYTHON_HERE))
        self.give("bin/uv", UV.format(python=python, home=self.home, step=step))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A machine without the program, and a Python here that it does not have."""
    made = Node(tmp_path / "node", tmp_path / "gone", tmp_path / "calls")
    made.home.mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH.format(home=made.home, gone=made.gone, calls=made.calls))
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
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


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_an_interpreter_of_another_user_there_is_not_run(
    node: Node, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = node.has_program("python/bin/python3", body="echo stranger")
    monkeypatch.setattr(sys, "executable", str(stranger))
    os.chown(stranger.parents[1], 65534, 65534)
    node.has_program()
    assert "stranger" not in said("status", "--on", "spark")[1]


def test_an_installed_program_is_taken_when_it_is_the_same(node: Node, said: Said) -> None:
    node.has_program()
    code, out, _ = said("-v", "logs", "other", "--on=spark", "--tail", "5")
    assert code == 0
    assert "there: -v logs other --tail 5\n" in out
    assert "SPARKDEPLOY_ON=spark\n" in out
    assert "SPARKDEPLOY_STATE_DIR" not in out


def test_another_program_is_not_taken_and_this_one_is_brought(node: Node, said: Said) -> None:
    node.has_program(identity="0.1.0-another")
    node.has_uv()
    for older in ("0.0.1-a", "0.0.2-b"):
        node.has_program(f".cache/sparkdeploy/program/{older}/venv/bin/python")
        os.utime(node.cache / "program" / older, (int(older[4]), int(older[4])))
    code, out, err = said("checkpoint", "ls", "--json", "--on", "spark")
    assert code == 0, err
    assert out.strip() == "[]"
    assert f"sparkdeploy {IDENTITY} to spark: done" in err
    assert node.programs == ["0.0.2-b", IDENTITY]
    assert "typer" in (node.home / "installed").read_text()
    link = (node.home / "site" / "sparkdeploy.pth").read_text()
    assert link == f"{node.cache}/program/{IDENTITY}\n"


@pytest.mark.parametrize("code", [0, 3, 9, 70, 130])
def test_the_exit_code_is_the_one_there(node: Node, said: Said, code: int) -> None:
    node.has_program(body=f"exit {code}")
    assert said("plan", "--check", "--on", "spark")[0] == code


def test_a_broken_connection_says_how_to_look(node: Node, said: Said) -> None:
    node.has_program(body=f"touch {node.gone}; exit 255")
    code, _, err = said("up", "v2", "--on", "ada@spark")
    assert code == 4
    assert "ada@spark: nothing listens for ssh at spark; the connection broke" in err
    assert "`sparkdeploy status --on ada@spark` says what goes on there" in err


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PYTHON_HERE, "-P", "-m", "sparkdeploy", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_standard_input_is_passed_on(node: Node) -> None:
    node.has_program(f".cache/sparkdeploy/program/{IDENTITY}/venv/bin/python", body="cat")
    process = started("plan", "--on", "spark")
    out, err = process.communicate("what was typed\n", timeout=30)
    assert process.returncode == 0, err
    assert "what was typed\n" in out


def test_at_a_terminal_the_program_there_has_one(node: Node) -> None:
    """The terminal brings it Ctrl-C, so that nothing notes which process it is."""
    node.has_program(f".cache/sparkdeploy/program/{IDENTITY}/venv/bin/python")
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [PYTHON_HERE, "-P", "-m", "sparkdeploy", "status", "--on", "spark"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    assert process.wait(30) == 0
    assert b"there: status" in os.read(ours, 65536)
    os.close(ours)
    assert " -q -t spark sh -c " in node.calls.read_text()
    assert not (node.cache / "running").exists()


def test_an_ssh_docker_host_means_that_machine(
    node: Node, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.has_program()
    monkeypatch.setenv("DOCKER_HOST", "ssh://ada@spark:2222")
    out = said("status")[1]
    assert "there: status\n" in out
    assert "DOCKER_HOST" not in out
    assert "ssh://ada@spark:2222" in node.calls.read_text()
    code, _, err = said("image", "export", "main", "x.tar")
    assert code == 4
    assert "--on ssh://ada@spark:2222" in err
    # On that machine nothing is handed on again.
    monkeypatch.setenv("SPARKDEPLOY_ON", "spark")
    assert said("status")[0] == 4


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
    argv = ("up", "--on", "a", "v2", "--on=b", "--name", "x", "--", "--on")
    assert without_option(argv) == ("up", "v2", "--name", "x", "--", "--on")


def write_cluster(home: Path) -> dict[str, object]:
    section: dict[str, object] = {
        "nodes": [
            {
                "name": f"spark-{number}",
                "ssh": f"192.168.177.1{number}",
                "user": "ada",
                "fabric": [{"interface": "e1", "address": f"192.168.178.1{number}/24"}],
            }
            for number in (1, 2)
        ]
    }
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "config.yaml").write_text(yaml.safe_dump({"cluster": section}))
    return section


RECIPE = "schema: 1\nname: {name}\ntitle: t\nextends: {extends}\n"


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """A stranger's recipe in a folder, with what it extends and its chat template."""
    folder = tmp_path / "theirs"
    (folder / "base").mkdir(parents=True)
    mine = RECIPE.format(name="mine", extends="base/theirs.yaml")
    (folder / "mine.yaml").write_text(mine + "serve: {chat_template: t.jinja}\n")
    (folder / "t.jinja").write_text("{{ messages }}")
    (folder / "base" / "theirs.yaml").write_text(RECIPE.format(name="theirs", extends="v2"))
    (folder / "secret").write_text("key")
    return folder


def sent(node: Node) -> set[str]:
    (folder,) = (node.cache / "from").glob("*")
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_recipe_travels_with_what_it_names_and_nothing_else(
    node: Node, said: Said, recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.has_uv()
    monkeypatch.chdir(recipes)
    code, out, err = said("show", "./mine.yaml", "--json", "--on", "spark")
    assert code == 0, err
    assert '"mine"' in out
    inside = f"files{recipes}"
    assert sent(node) == {
        f"{inside}/mine.yaml", f"{inside}/t.jinja", f"{inside}/base/theirs.yaml"
    }  # fmt: skip
    (again,) = (node.cache / "from").glob("*")
    assert said("show", str(recipes / "mine.yaml"), "--on", "spark")[0] == 0
    assert list((node.cache / "from").glob("*")) == [again]


@pytest.mark.parametrize("template", ["../../outside.jinja", "secret", ".hidden.jinja"])
def test_a_stranger_has_no_other_file_sent(
    node: Node, said: Said, recipes: Path, template: str
) -> None:
    (recipes / template).touch()
    file = recipes / "base" / "theirs.yaml"
    file.write_text(file.read_text() + f"serve: {{chat_template: {template}}}\n")
    code, _, err = said("plan", str(recipes / "mine.yaml"), "--on", "spark")
    assert code == 3
    assert "serve.chat_template" in err
    assert not node.calls.exists()


def test_a_link_in_the_own_folder_does_not_make_a_strangers_recipe_ones_own(
    node: Node, said: Said, recipes: Path
) -> None:
    node.has_program()
    own = recipes.parent / "config" / "recipes"
    own.mkdir(parents=True)
    (own / "linked.yaml").symlink_to(recipes / "mine.yaml")
    (own / "broken.yaml").write_text("[")
    (own / "fine.yaml").write_text(RECIPE.format(name="fine", extends="v2"))
    assert said("plan", "fine", "--on", "spark")[0] == 0
    assert sent(node) == {f"files{own}/fine.yaml"}
    code, _, err = said("plan", f"{own}/../recipes/linked.yaml", "--on", "spark")
    assert code == 3
    assert "linked.yaml leads out of the folder of your own recipes" in err


def test_pictures_are_read_here_and_sent(node: Node, said: Said, tmp_path: Path) -> None:
    node.has_program()
    (tmp_path / "a.png").write_bytes(b"\x89PNG\xff")
    code, out, err = said("ask", "What?", "--image", str(tmp_path / "a.png"), "--on", "spark")
    assert code == 0, err
    (file,) = (path for path in (node.cache / "from").rglob("*") if path.is_file())
    assert file.read_bytes() == b"\x89PNG\xff"
    assert f"there: ask What? --image {file}\n" in out


def test_the_identity_changes_with_the_code_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--identity").stdout.strip() == IDENTITY
    names = {file.path for file in elsewhere.program_files()}
    assert {"sparkdeploy/cli/main.py", "recipes/v2.yaml"} <= names
    assert not [name for name in names if name.endswith(".pyc") or ".git" in name]
    assert shlex.quote(IDENTITY) == IDENTITY


def test_a_strangers_recipe_is_a_stranger_there_too(node: Node, said: Said, recipes: Path) -> None:
    node.has_uv()
    file = recipes / "mine.yaml"
    file.write_text(file.read_text().replace("{", "{env: {LD_AUDIT: /x.so}, "))
    code, _, err = said("plan", str(file), "--on", "spark")
    assert code == 3
    assert "needs your consent" in err
    # The very same in the user's own folder is the user's word, there as here.
    own = recipes.parent / "config" / "recipes"
    own.parent.mkdir(exist_ok=True)
    recipes.rename(own)
    (own / "secret").unlink()
    assert said("show", "mine", "--on", "spark")[0] == 0
    assert said("show", str(own / "mine.yaml"), "--on", "spark")[0] == 0
