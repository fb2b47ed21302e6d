"""A real vLLM with clients that are slow on purpose, and a model with a hostile chat template.

One deployment for all of it: a start takes most of a minute. The endless template comes last,
because a core of the server is lost to it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.client import ServedModel
from tests.engine.conftest import free_port, patiently, until
from tests.engine.vllm.twin_user import TWIN_RECIPE, twin_user, unique_name

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.in_order,
    pytest.mark.timeout(900),
    pytest.mark.runs("checkpoint", "down", "up"),
]

PORT = free_port()
NAME = unique_name("doors")
URL = f"http://127.0.0.1:{PORT}"
TEMPLATE = """
{%- set asked = messages[-1].content -%}
{%- if asked == 'endless' -%}
  {%- set r = range(99999) -%}
  {%- for a in r -%}{%- for b in r -%}{%- for c in r -%}{%- endfor -%}{%- endfor -%}{%- endfor -%}
{%- elif asked == 'class' -%}{{ ''.__class__.__mro__ }}
{%- elif asked == 'globals' -%}{{ cycler.__init__.__globals__ }}
{%- endif -%}
{%- for message in messages -%}{{ message.content }}{%- endfor -%}
"""
RENDER_LIMIT_S = 5
PATIENCE_S = 10.0
EACH = 60
SLOW_S = 12
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SENT_BY_CLIENTS = [
    ({"chat_template": "{{ 1 }}"}, "Refused request with untrusted chat template"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "Refused request with untrusted"),
    ({"chat_template_kwargs": {"messages": []}}, "multiple values"),
    ({"chat_template_kwargs": {"conversation": []}}, "multiple values"),
    ({"chat_template_kwargs": {"tokenizer": 1}}, "multiple values"),
]
TO_THE_TOKENIZER = {"tokenize": True, "padding": "max_length", "max_length": 10**9}
"""Of so many tokens vLLM would make a list of several GiB, before it looks at the context."""


@pytest.fixture(scope="module", autouse=True)
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Serve a twin with that template.

    One sequence at a time: the CPU build dies of several short prompts in one step.
    """
    root = tmp_path_factory.mktemp("doors")
    limit = {"VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT": str(RENDER_LIMIT_S)}
    program = twin_user(root, port=PORT, env=limit, max_num_seqs=1)
    (root / "twin" / "chat_template.jinja").write_text(TEMPLATE)
    config = root / "twin" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    started = program.run("up", TWIN_RECIPE, "--name", NAME, "--yes")
    assert started.returncode == 0, started.stderr
    yield
    program.run("down", "--yes", NAME)


def chat(content: str, **more: Any) -> requests.Response:
    body = {
        "model": "qwen",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 4,
        "temperature": 0,
    }
    url = f"{URL}/v1/chat/completions"
    return requests.post(url, json=body | more, timeout=patiently(PATIENCE_S))


def is_healthy() -> bool:
    with ServedModel(URL) as model:
        return model.is_healthy(timeout_s=patiently(PATIENCE_S))


def open_files(host: DockerHost) -> int:
    """Count the open files of everything in the container."""
    found = host.find_container(f"sparkdeploy-{NAME}")
    assert found is not None
    guard = int(host.inspect(found.container_id)["State"]["Pid"])
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids_from(guard))


def connections_of_the_server() -> int:
    """Count the connections that the server has not closed."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{PORT:04X}") and row[3] == "01" for row in rows)


def pids_from(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(item for child in children for item in pids_from(int(child)))]


@contextlib.contextmanager
def connections(count: int, first: bytes) -> Iterator[list[socket.socket]]:
    """Hold connections that have sent something and take little of an answer."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in made:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            one.connect(("127.0.0.1", PORT))
            one.sendall(first)
        yield made


def test_slow_clients_keep_nobody_from_an_answer_and_leave_nothing(host: DockerHost) -> None:
    assert chat("hello").ok
    before = open_files(host)
    body = json.dumps(
        {"model": "qwen", "prompt": "The capital of France is", "max_tokens": 8, "stream": True}
        | {"temperature": 0}
    ).encode()
    with (
        connections(EACH, b"") as dripping,
        connections(EACH, HEAD + b"Content-Length: 100000\r\n\r\n{"),
        connections(EACH, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        connections(4, HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body),
    ):
        for second in range(SLOW_S):
            for one in dripping:
                one.sendall(HEAD[second : second + 1])
            assert is_healthy()
            assert second % 4 or chat("hello").ok
            time.sleep(1)
        # Nothing ends a request that is never finished; the clients themselves do.
        assert connections_of_the_server() >= 2 * EACH
    until(lambda: open_files(host) <= before, timeout_s=patiently(30))
    assert chat("hello").ok


@pytest.mark.parametrize("asked", ["class", "globals"])
def test_the_template_of_a_model_reads_nothing_of_the_server(asked: str) -> None:
    answer = chat(asked)
    assert answer.status_code == 400
    assert "is unsafe" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("sent", "said"), SENT_BY_CLIENTS)
def test_a_client_brings_no_template_and_no_message_of_another(
    sent: dict[str, Any], said: str
) -> None:
    answer = chat("hello", **sent)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert chat("hello").ok


def test_words_to_the_tokenizer_do_not_reach_it() -> None:
    answer = chat("hello", chat_template_kwargs=TO_THE_TOKENIZER)
    assert answer.ok, answer.text
    assert answer.json()["usage"] == chat("hello").json()["usage"]


def test_a_name_of_others_that_leads_here_is_refused() -> None:
    headers = {"Host": f"rebound.example:{PORT}"}
    assert requests.get(f"{URL}/v1/models", headers=headers, timeout=PATIENCE_S).status_code == 421


def test_an_endless_template_ends_its_own_request_and_later_ones_are_answered() -> None:
    """Who waited for the renderer meanwhile gets an error, or no answer at all."""
    ended: list[int] = []
    asking = threading.Thread(target=lambda: ended.append(chat("endless").status_code))
    asking.start()
    time.sleep(1)
    assert is_healthy()
    asking.join()
    assert ended == [500]
    assert chat("hello").ok
    assert is_healthy()
