"""The words with which ssh is started: which key, which node, and a script as one word."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.node.cluster import ClusterNode
from sparkdeploy.node.ssh import READY, SshLink
from tests.unit.conftest import GiveProgram

ENTRY = {"name": "spark-2", "ssh": "spark-2.local", "user": "ada", "docker_socket": "/run/own.sock"}
PORT = {"interface": "e1", "address": "192.168.177.12/24"}
TARGET = ClusterNode.model_validate({**ENTRY, "fabric": [PORT]}).target
FAKE = f"""\
for word; do printf '%s\\n' "$word"; done >> "$SSH_WORDS"
printf '\\n' >> "$SSH_WORDS"
case " $* " in
*" -M "*) echo {READY}; exec cat ;;
*" HostName=192.168.177.99 "*) exit 255 ;;
*" -G "*) printf 'hostname 10.0.0.2\\nport 2222\\n' ;;
*) for word; do last=$word; done; sh -c "$last" ;;
esac
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give_program: GiveProgram) -> Path:
    give_program("ssh", FAKE)
    monkeypatch.setenv("SSH_WORDS", str(tmp_path / "words"))
    return tmp_path / "words"


def started(calls: Path) -> list[list[str]]:
    return [call.splitlines() for call in calls.read_text().split("\n\n") if call]


def test_every_ssh_asks_nobody_and_takes_no_unknown_host(calls: Path) -> None:
    with SshLink(TARGET) as link:
        link.run("true")
        direct = shlex.split(link.rsync_shell("192.168.177.12"))
        # Behind a jump host nobody is reached directly; the open connection has the files.
        assert link.rsync_shell("192.168.177.99").startswith("ssh -S ")
    opened = [words for words in started(calls) if "-G" not in words]
    assert len(opened) == 4
    assert "ExitOnForwardFailure=yes" in opened[0]
    assert opened[0][opened[0].index("-L") + 1].endswith("/docker:/run/own.sock")
    for words in (*opened, direct):
        assert "StrictHostKeyChecking=yes" in words
        assert "BatchMode=yes" in words
        # A cable that is pulled would be waited for until TCP gives up.
        assert {"ServerAliveInterval=3", "ServerAliveCountMax=2", "ConnectTimeout=5"} <= {*words}
        assert words[words.index("-l") + 1] == "ada"
    for option in ("HostName=192.168.177.12", "HostKeyAlias=[10.0.0.2]:2222", "ProxyJump=none"):
        assert option in direct


@pytest.mark.parametrize("word", ["a b", "$HOME", "it's", '"', "*", "a\\b"])
def test_a_script_runs_there_as_it_was_written(calls: Path, word: str) -> None:
    with SshLink(TARGET) as link:
        done = link.run(f"printf '<%s>' {shlex.quote(word)}")
    assert (done.exit_code, done.stdout) == (0, f"<{word}>")


def test_what_ssh_itself_says_is_no_exit_code_of_the_script(calls: Path) -> None:
    with SshLink(TARGET) as link, pytest.raises(NodeError, match=r"spark-2: .*password or a key"):
        link.run("echo 'Permission denied (publickey).' >&2; exit 255")


def test_a_script_that_takes_too_long_is_given_up(calls: Path) -> None:
    began_s = time.monotonic()
    with SshLink(TARGET) as link, pytest.raises(NodeError):
        link.run("exec sleep 20", timeout_s=0.1)
    assert time.monotonic() - began_s < 15
