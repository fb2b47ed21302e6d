"""The gateway over real sockets: who is answered, by whom, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from sparkdeploy.gateway import app, proxy, turns
from sparkdeploy.node.node import in_background
from tests.fakes.gateway import WAIT_S, ScriptedDeployments, gateway, keys_in, stack_of

CHAT = "/v1/chat/completions"
KEY = "k" * 32


@pytest.fixture
def deployments() -> ScriptedDeployments:
    return ScriptedDeployments()


@pytest.fixture
def client(deployments: ScriptedDeployments) -> Iterator[httpx2.Client]:
    with gateway(stack_of(), deployments) as found:
        yield found


def ask(client: httpx2.Client, model: str, path: str = CHAT, **more: Any) -> httpx2.Response:
    return client.post(path, json={"model": model, **more})


def test_a_request_starts_its_model_and_swaps_what_does_not_fit(
    client: httpx2.Client, deployments: ScriptedDeployments
) -> None:
    states = {it["id"]: it["state"] for it in client.get("/v1/models").json()["data"]}
    assert states == dict.fromkeys(("a", "a-cold", "b", "c"), "stopped")
    answers = [ask(client, name).json()["model"] for name in ("a", "c", "b", "b", "a")]
    assert answers == ["a", "c", "b", "b", "a"]
    assert deployments.starts == ["a", "c", "b", "a"]
    assert deployments.stops == ["a", "b"]
    metrics = client.get("/metrics").text
    assert 'sparkdeploy_gateway_swaps_total{model="a"} 1' in metrics
    assert 'sparkdeploy_gateway_requests_total{model="b"} 2' in metrics
    assert 'sparkdeploy_gateway_ready{model="b"} 0' in metrics
    assert client.get("/v1/models/a-cold").json()["root"] == "a"


def test_a_body_changes_where_a_name_is_another(
    client: httpx2.Client, deployments: ScriptedDeployments
) -> None:
    body = b'{"x": 1e400,  "model" : "a-cold", "temperature":0.5, "z": "\\ud800"}'
    headers = {"Content-Type": "application/json", "X-Api-Key": "no", "Cookie": "a=b"}
    headers |= {"X-Forwarded-For": "10.1.1.1", "Forwarded": "for=10.1.1.1", "Referer": "http://x"}
    assert client.post(f"{CHAT}?q=1", content=body, headers=headers).status_code == 200
    ((path, sent, raw),) = deployments.servers["a"].asked
    assert path == f"{CHAT}?q=1"
    added = {"chat_template_kwargs": {"enable_thinking": False}}
    assert json.loads(raw) == {**json.loads(body), **added, "model": "served-a"}
    assert not {"authorization", *(it.lower() for it in [*headers][1:])} & sent.keys()


def test_a_form_changes_where_the_name_stands(
    client: httpx2.Client, deployments: ScriptedDeployments
) -> None:
    files = {"file": ("model.wav", b'\x00\xff\r\n--x name="model"\r\n\r\n', "audio/wav")}
    answer = client.post("/v1/audio/transcriptions", data={"model": "a"}, files=files)
    assert answer.status_code == 200
    ((_, sent, raw),) = deployments.servers["a"].asked
    assert b'\x00\xff\r\n--x name="model"\r\n\r\n' in raw
    assert raw.count(b"served-a") == 1
    assert int(sent["content-length"]) == len(raw)


def test_the_servers_own_key_goes_behind(
    client: httpx2.Client, deployments: ScriptedDeployments
) -> None:
    deployments.keys["a"] = "own"
    assert ask(client, "a").status_code == 200
    assert deployments.servers["a"].asked[0][1]["authorization"] == "Bearer own"


JSON, FORM = "application/json", "multipart/form-data"
BAD_BODIES = (
    (b'{"model": "nobody"}', JSON, 404),
    (b'{"model": "\\ud800"}', JSON, 404),
    (b'{"model": "A"}', JSON, 404),
    (b'{"model": "a "}', JSON, 404),
    (b'{"model": ["a"]}', JSON, 400),
    (b'{"model": ""}', JSON, 400),
    (b'{"model": 0}', JSON, 400),
    (b'{"model": false}', JSON, 400),
    (b"{}", JSON, 400),
    (b"[]", JSON, 400),
    (b"", JSON, 400),
    (b"null", JSON, 400),
    (b'{"model": "a"} x', JSON, 400),
    (b'{"a": ' + b"[" * 100_000, JSON, 400),
    (b'{"a": ' + b"9" * 5000 + b"}", JSON, 400),
    (b'\xff{"model": "a"}', JSON, 400),
    (b'{"model": "a"', JSON, 400),
    (b"--x\r\n\r\n--x--", f"{FORM}; boundary=x", 400),
    (b"", FORM, 400),
    (b"--x", f"{FORM}; boundary=x", 400),
)


def test_what_names_no_model_is_refused(client: httpx2.Client) -> None:
    for body, kind, status in BAD_BODIES:
        answer = client.post(CHAT, content=body, headers={"Content-Type": kind})
        assert answer.status_code == status, body[:80]
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_model_is_refused_with_the_known_ones(client: httpx2.Client) -> None:
    answer = ask(client, "gpt")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "model_not_found")
    assert "a, a-cold, b, c" in error["message"]
    error = ask(client, "gpt", "/v1/messages").json()
    assert (error["type"], error["error"]["type"]) == ("error", "not_found_error")
    assert "/v1/embeddings" in ask(client, "a", "/v1/nothing").json()["error"]["message"]


def test_a_route_that_a_model_does_not_answer_is_refused_with_those_it_does(
    deployments: ScriptedDeployments,
) -> None:
    deployments.serve("b")
    with gateway(stack_of(), deployments) as client:
        answer = ask(client, "b", "/v1/embeddings", input="x")
        assert answer.status_code == 400
        assert "/v1/chat/completions, /v1/responses" in answer.json()["error"]["message"]
        assert ask(client, "b", "/tokenize").status_code == 200


def test_a_stream_comes_as_it_is(client: httpx2.Client) -> None:
    answer = ask(client, "a", stream=True)
    assert answer.headers["x-own"] == "kept"
    assert "set-cookie" not in answer.headers
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.text.count('"model": "a"') == 3


def test_who_waits_for_a_stream_gets_comments(
    client: httpx2.Client, deployments: ScriptedDeployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "COMMENT_AFTER_S", 0.05)
    monkeypatch.setattr(proxy, "COMMENT_EVERY_S", 0.05)
    deployments.may_start.clear()
    with client.stream("POST", CHAT, json={"model": "a", "stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": waiting for a"
        deployments.may_start.set()
        rest = list(lines)
    assert "data: [DONE]" in rest
    deployments.failing["b"] = "no memory"
    deployments.may_start.clear()
    for path, event in ((CHAT, ""), ("/v1/messages", "event: error\n")):
        with client.stream("POST", path, json={"model": "b", "stream": True}) as answer:
            lines = answer.iter_lines()
            if path == CHAT:
                assert next(lines) == ": waiting for b"
                deployments.may_start.set()
            text = "\n".join(lines)
        assert "no memory" in text
        assert event in text or answer.status_code == 503


def test_a_failed_start_is_said_at_once_and_not_tried_again_at_once(
    client: httpx2.Client, deployments: ScriptedDeployments
) -> None:
    deployments.failing["a"] = "no memory"
    first, second = ask(client, "a"), ask(client, "a")
    assert {first.status_code, second.status_code} == {503}
    assert "no memory" in first.json()["error"]["message"]
    assert 0 < int(second.headers["retry-after"]) <= 31
    assert deployments.starts == ["a"]


def test_who_asks_for_no_stream_is_told_when_to_come_again(
    deployments: ScriptedDeployments,
) -> None:
    with gateway(stack_of(longest_wait_s=0.2), deployments) as client:
        deployments.may_start.clear()
        answer = ask(client, "a")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        deployments.may_start.set()
        assert ask(client, "a", stream=True).status_code == 200
        assert deployments.starts == ["a"]


def test_a_client_that_goes_away_frees_the_server_within_a_second(
    client: httpx2.Client, deployments: ScriptedDeployments
) -> None:
    assert ask(client, "a").status_code == 200
    server = deployments.servers["a"]
    server.go_on.clear()
    with client.stream("POST", CHAT, json={"model": "a", "stream": True, "pause_at": 0}) as answer:
        assert next(answer.iter_lines()).startswith("data:")
    left_s = time.monotonic()
    assert server.left.wait(WAIT_S)
    assert time.monotonic() - left_s < 1
    # Nor does one that waits keep a place.
    server.go_on.set()
    deployments.may_start.clear()
    body = b'{"model": "b"}'
    with sent(client, body, len(body)):
        until(lambda: client.get("/gateway/state").json()["models"][1]["waiting"] == 1)
    until(lambda: client.get("/gateway/state").json()["models"][1]["waiting"] == 0)


@contextlib.contextmanager
def sent(client: httpx2.Client, body: bytes, length: int) -> Iterator[socket.socket]:
    """Send a head that promises so many bytes, and these."""
    url = client.base_url
    with socket.create_connection((url.host, url.port or 0), WAIT_S) as connection:
        head = f"POST {CHAT}?a=b HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(head.encode() + body)
        yield connection


def until(is_so: Any) -> None:
    """Ask again until it is so; the answer is an event of the gateway's."""
    ends_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < ends_s


def test_a_server_that_dies_is_started_by_the_next_request(
    client: httpx2.Client, deployments: ScriptedDeployments
) -> None:
    assert ask(client, "a").status_code == 200
    text = ask(client, "a", stream=True, die_at=1).text
    assert '"i": 1' in text
    assert "ended in the middle" in text
    assert "[DONE]" not in text
    deployments.end("a", cause="the GPU ran out of memory")
    assert ask(client, "a").json()["model"] == "a"
    assert deployments.starts == ["a", "a"]


def test_a_death_in_an_answer_that_is_no_stream_is_an_error(
    client: httpx2.Client, deployments: ScriptedDeployments
) -> None:
    assert ask(client, "a", fail=418).json() == {"error": {"message": "no"}}
    assert ask(client, "a", fail=302).status_code == 502
    server = deployments.servers["a"]
    server.go_on.clear()
    with ThreadPoolExecutor() as pool:
        server.began.clear()
        answer = pool.submit(ask, client, "a")
        assert server.began.wait(WAIT_S)
        # As the kernel does for a process that is killed.
        server.socket.close()
        deployments.dead["a"] = "killed"
        server.go_on.set()
        assert answer.result().status_code in {200, 502}


def test_sixty_four_streams_at_once(
    client: httpx2.Client, deployments: ScriptedDeployments
) -> None:
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda _: ask(client, "a", stream=True, n=20).text, range(64)))
    assert [it for it in answers if it.count("data:") != 21] == []
    assert deployments.starts == ["a"]


def test_docker_that_does_not_answer_takes_nothing_away(
    client: httpx2.Client, deployments: ScriptedDeployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(client, "a").status_code == 200
    deployments.docker_answers = False
    until(lambda: client.get("/gateway/state").json()["problem"] == "docker does not answer")
    assert ask(client, "a").status_code == 200


def test_a_model_is_started_and_stopped_by_hand(
    client: httpx2.Client, deployments: ScriptedDeployments
) -> None:
    path = "/gateway/models/a/"
    assert client.post(f"{path}start").status_code == 403
    own = {"X-Sparkdeploy": "1"}
    assert client.post(f"{path}start", headers=own).status_code == 202
    until(lambda: client.get("/gateway/state").json()["models"][0]["state"] == "ready")
    assert client.post(f"{path}stop", headers=own).status_code == 202
    until(lambda: client.get("/gateway/state").json()["models"][0]["state"] == "stopped")
    assert (deployments.starts, deployments.stops) == (["a"], ["a"])
    assert client.post("/gateway/models/x/stop", headers=own).status_code == 404
    assert client.post(f"{path}remove", headers=own).status_code == 404
    assert client.get(f"{path}stop", headers=own).status_code == 405


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return keys_in(tmp_path, f"# Ada\n{KEY}\n\n{'m' * 16}\n")


def test_every_route_but_health_and_the_bare_page_needs_a_key(
    deployments: ScriptedDeployments, keys: Path
) -> None:
    with gateway(stack_of(keys_file=keys), deployments) as client:
        assert client.get("/health").text == "ok\n"
        assert client.get("/").status_code == 200
        for path in ("/v1/models", "/metrics", "/gateway/state", "/nothing", "/health/"):
            assert client.get(path).status_code == 401
        wrong: tuple[dict[str, str], ...] = (
            {},
            {"Authorization": "Bearer x"},
            {"x-api-key": f"{KEY}x"},
            {"x-api-key": ""},
        )
        for headers in wrong:
            answer = client.post(CHAT, json={"model": "a"}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        answer = client.post("/v1/messages", json={"model": "a"})
        assert answer.json()["error"]["type"] == "authentication_error"
        assert client.post("/gateway/models/a/start", headers={"X-Sparkdeploy": "1"}).is_error
        assert deployments.starts == []
        for right in ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": "m" * 16}):
            assert client.post(CHAT, json={"model": "a"}, headers=right).status_code == 200
        assert "authorization" not in deployments.servers["a"].asked[0][1]


HOSTS: tuple[tuple[dict[str, str], int], ...] = (
    ({"Host": "localhost:1"}, 200),
    ({"Host": "[::1]:8800"}, 200),
    ({"Host": "192.168.1.5"}, 200),
    ({"Host": "SPARK.lan:8800"}, 200),
    ({"Host": "evil.example"}, 403),
    ({"Host": "localhost.evil.example"}, 403),
    ({"Host": "127.0.0.1.evil.example"}, 403),
    ({"Host": "evil.example@localhost"}, 403),
    ({"Host": "localhost/x"}, 403),
    ({"Host": "localhost?x"}, 403),
    ({"Host": "localhost#x"}, 403),
    ({"Host": "[::1"}, 403),
    ({"Host": ""}, 403),
    ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
    ({"Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
    ({"Origin": "https://chat.lan"}, 200),
    ({"Origin": "https://chat.lan.evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": ""}, 403),
)


def test_foreign_hosts_and_origins_are_refused(deployments: ScriptedDeployments) -> None:
    stack = stack_of(allowed_hosts=("spark.lan",), allowed_origins=("https://chat.lan",))
    with gateway(stack, deployments) as client:
        for headers, status in HOSTS:
            assert client.get("/v1/models", headers=headers).status_code == status, headers


def test_bodies_and_headers_have_a_size(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "MAX_BODY_BYTES", 1000)
    assert ask(client, "a", text="x" * 2000).status_code == 413
    assert client.post(CHAT, content=iter([b"x" * 100] * 20)).status_code == 413
    monkeypatch.setattr(proxy, "MAX_BODIES_BYTES", 10)
    assert ask(client, "a", text="x" * 20).status_code == 503
    # What is still being read counts, too.
    monkeypatch.setattr(proxy, "MAX_BODIES_BYTES", 1000)

    def counts() -> bool:
        with sent(client, b"x" * 700, 800):
            # Small ones leave it room until it is read: beside a large one it would be refused.
            assert {ask(client, "x").status_code for _ in range(20)} == {404}
            return ask(client, "x", text="x" * 300).status_code == 503

    until(counts)
    until(lambda: {ask(client, "x", text="x" * 300).status_code for _ in range(4)} == {404})
    # Whoever sends so much may see the end of the connection before the answer.
    with contextlib.suppress(httpx2.ReadError, httpx2.WriteError):
        assert client.get("/v1/models", headers={"X-Long": "x" * 200_000}).status_code == 400


def test_a_body_that_does_not_come_is_said(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "BODY_LIMIT_S", 0.05)
    with sent(client, b"{", 900) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_query_that_is_no_url_is_refused_and_not_logged(
    client: httpx2.Client, capfd: pytest.CaptureFixture[str]
) -> None:
    body = b'{"model": "a"}'
    url = client.base_url
    with socket.create_connection((url.host, url.port or 0), WAIT_S) as connection:
        head = f"POST {CHAT}?secret={'x' * 66_000} HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert "secret" not in "".join(capfd.readouterr())


def test_what_took_a_servers_port_is_sent_nothing(
    deployments: ScriptedDeployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "SOCKETS_COUNT_S", 0)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    deployments.keys["b"] = "own"
    deployments.serve("b")
    with gateway(stack_of(), deployments) as client:
        assert ask(client, "b").json()["model"] == "b"
        server = deployments.servers["b"]
        assert server.asked[-1][1]["authorization"] == "Bearer own"
        with monkeypatch.context() as patch:
            patch.setattr(proxy, "listening_sockets", lambda _port: frozenset({"another's"}))
            assert ask(client, "b").status_code == 503
        assert len(server.asked) == 1
        assert ask(client, "b").status_code == 200


@pytest.mark.parametrize("model", ["org/gpt-4o", "größe"])
def test_an_alias_of_any_letters_is_found(deployments: ScriptedDeployments, model: str) -> None:
    first, *others = stack_of().models
    models = (first.model_copy(update={"aliases": [model]}), *others)
    with gateway(stack_of(models=models), deployments) as client:
        assert client.get(f"/v1/models/{model}").json()["id"] == model
        assert client.get(f"/v1/models/{quote(model, safe='')}").json()["root"] == "a"
        assert ask(client, model).json()["model"] == "a"


def test_the_page_loads_nothing_from_elsewhere(client: httpx2.Client) -> None:
    answers = {path: client.get(path) for path in ("/", "/page.js", "/page.css")}
    for path, answer in answers.items():
        assert answer.status_code == 200, path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "http://" not in answer.text
        assert "https://" not in answer.text
        assert "//" not in answer.text.replace("// Kept", "")
    assert "innerHTML" not in answers["/page.js"].text
    assert "<script>" not in answers["/"].text
    state = client.get("/gateway/state").json()
    assert state["nodes"] == [{"name": "<b>spark</b>", "total": 128 << 30, "available": 28 << 30}]


def test_nothing_of_a_request_is_logged(
    client: httpx2.Client, capfd: pytest.CaptureFixture[str]
) -> None:
    ask(client, "a", text="a secret of the client")
    ask(client, "nobody", text="a secret of the client")
    client.post(CHAT, content=b"{ a secret of the client")
    written = "".join(capfd.readouterr())
    assert "a is ready" in written
    assert "secret" not in written


def test_a_gateway_that_starts_finds_what_runs(deployments: ScriptedDeployments) -> None:
    deployments.serve("b")
    with gateway(stack_of(), deployments) as client:
        assert ask(client, "b").json()["model"] == "b"
        assert deployments.starts == []
        assert threading.active_count() < 40


def test_what_is_always_kept_starts_by_itself_also_after_its_death_and_not_after_a_stop(
    deployments: ScriptedDeployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "LOOK_EVERY_S", 0.02)
    first, *others = stack_of().models
    models = (first.model_copy(update={"keep": "always"}), *others)
    with gateway(stack_of(models=models), deployments) as client:

        def state() -> Any:
            return client.get("/gateway/state").json()["models"][0]["state"]

        until(lambda: state() == "ready")
        deployments.end("a", cause="the GPU ran out of memory")
        until(lambda: deployments.starts == ["a", "a"])
        until(lambda: state() == "ready")
        client.post("/gateway/models/a/stop", headers={"X-Sparkdeploy": "1"})
        until(lambda: state() == "stopped")
        looks = deployments.looks
        until(lambda: deployments.looks > looks + 2)
        assert state() == "stopped"
    assert deployments.starts == ["a", "a"]


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), StopIteration(1)]
)
def test_whatever_ends_a_thread_ends_who_waits_for_it(error: BaseException) -> None:
    def work() -> None:
        raise error

    async def wait() -> None:
        async with asyncio.timeout(WAIT_S):
            await asyncio.wrap_future(in_background(work))

    with pytest.raises((ValueError, RuntimeError)):
        asyncio.run(wait())


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET ",
    ],
    ids=["nothing", "a head", "a body after its answer", "a second head"],
)
def test_a_request_that_is_never_whole_keeps_no_connection(
    begin: bytes, deployments: ScriptedDeployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "HEAD_LIMIT_S", 0.5)
    with gateway(stack_of(), deployments) as client:
        host, port = client.base_url.host, client.base_url.port or 0
        with socket.create_connection((host, port), timeout=WAIT_S) as connection:
            connection.sendall(begin)
            connection.settimeout(0.05)
            began_s = time.monotonic()
            with contextlib.suppress(ConnectionError):
                while time.monotonic() - began_s < WAIT_S:
                    with contextlib.suppress(TimeoutError):
                        if not connection.recv(65536):
                            break
                    connection.sendall(b"a")
            assert time.monotonic() - began_s < 3


def test_one_connection_too_many_is_answered_503(
    deployments: ScriptedDeployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_CONNECTIONS", 3)
    with gateway(stack_of(), deployments) as client, contextlib.ExitStack() as held:
        assert client.get("/health").status_code == 200
        for _ in range(3):
            place = client.base_url.host, client.base_url.port or 0
            held.enter_context(socket.create_connection(place, timeout=WAIT_S))
        until(lambda: client.get("/health").status_code == 503)


def test_a_long_answer_outlives_the_time_of_a_head(
    deployments: ScriptedDeployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "HEAD_LIMIT_S", 0.2)
    deployments.may_start.clear()
    with gateway(stack_of(), deployments) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, client, "a")
        time.sleep(0.6)
        deployments.may_start.set()
        assert asked.result(WAIT_S).status_code == 200
