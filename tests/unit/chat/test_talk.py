"""`ask` and `chat` against a server that streams, refuses, hangs and commands terminals."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy import labels
from sparkdeploy.chat import answer as stage
from sparkdeploy.chat.answer import AnswerPrinter
from sparkdeploy.deploy import nodes
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.server.streaming import AnswerPiece
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers, container
from tests.fakes.http_server import Handler, HttpServer, serving
from tests.unit.program import Run

pytestmark = pytest.mark.outside
PNG = b"\x89PNG\r\n\x1a\n and more"


class Talking(HttpServer):
    """Streams what `deltas` says of a request, or refuses with `refusal`."""

    def __init__(self) -> None:
        super().__init__(TalkingHandler)
        self.deltas: Callable[[dict[str, Any]], list[dict[str, Any]]] = lambda _body: [
            {"content": "Paris"},
            {"content": "."},
        ]
        self.refusal: tuple[int, str] | None = None
        self.routes = ["/v1/chat/completions", "/v1/completions"]
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.finish = "stop"
        self.most_events: int | None = None
        """After so many the connection ends."""
        self.dies_with = ""
        """What the engine says after the first piece."""

    def fact(self, name: str = "main", **marks: str) -> ContainerFact:
        port = str(self.port)
        marks = {"deployment": name, "port": port, "served_name": "qwen", **marks}
        return container(f"sparkdeploy-{name}", **marks)


class TalkingHandler(Handler):
    server: Talking

    def get(self) -> None:
        answers = {
            "/health": "",
            "/v1/models": {"data": [{"id": "qwen", "max_model_len": 100}]},
            "/openapi.json": {"paths": {key: {} for key in self.server.routes}},
        }
        self.send(200, answers.get(self.path, ""))

    def post(self) -> None:
        body = self.body()
        self.server.asked.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        if self.path not in self.server.routes:
            self.send(404, '{"detail":"Not Found"}')
            return
        if self.server.refusal is not None:
            self.send(*self.server.refusal)
            return
        deltas = self.server.deltas(body)
        events: list[Any] = [{"choices": [{"delta": delta}]} for delta in deltas]
        if self.server.dies_with:
            events[1:] = [{"error": {"message": self.server.dies_with}}]
        events.append({"choices": [{"delta": {}, "finish_reason": self.server.finish}]})
        usage = {"prompt_tokens": 10, "completion_tokens": len(deltas)}
        events.append({"choices": [], "usage": usage})
        parts = [f"data: {json.dumps(event)}\n\n" for event in events[: self.server.most_events]]
        if self.server.most_events is None:
            parts.append("data: [DONE]\n\n")
        self.stream(*(part.encode() for part in parts))


@pytest.fixture
def server() -> Iterator[Talking]:
    with serving(Talking()) as running:
        yield running


@pytest.fixture
def engine(server: Talking, monkeypatch: pytest.MonkeyPatch) -> FakeContainers:
    made = FakeContainers.of(server.fact())
    for module in (stage, nodes):
        monkeypatch.setattr(module, "connect", lambda _settings: made)
    return made


@pytest.fixture
def run(
    engine: FakeContainers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    del engine
    return Run(monkeypatch, capsys)


def test_the_answer_alone_is_on_stdout(run: Run, server: Talking) -> None:
    server.deltas = lambda _body: [
        {"reasoning": "Let me think."},
        {"content": "\n\nParis"},
        {"content": "\r"},
        {"content": "\nor \x1b[2J\u202eso"},
    ]
    done = run("ask", "Which city?", "--system", "Be brief.", "--max-tokens", "9", "--no-think")
    assert (done.returncode, done.stdout) == (0, "Paris\nor \\x1b[2J\\u202eso\n")
    assert "4 tokens, the first after" in done.stderr
    assert "think" not in done.stderr
    (asked,) = server.asked
    assert asked["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Which city?"},
    ]
    assert asked["max_tokens"] == 9
    assert asked["chat_template_kwargs"]["enable_thinking"] is False
    assert asked["model"] == "qwen"


def test_json_has_the_thought_and_what_it_took(run: Run, server: Talking) -> None:
    server.deltas = lambda _body: [{"reasoning_content": "Hm."}, {"content": "Paris"}]
    told = run.answer("ask", "main", "Which city?", "--json")
    assert (told["text"], told["thought"], told["deployment"]) == ("Paris", "Hm.", "main")
    assert (told["completion_tokens"], told["finish_reason"]) == (2, "stop")
    assert told["first_token_s"] > 0
    assert "max_tokens" not in server.asked[0]


@pytest.mark.parametrize("words", [("-",), ("main", "-"), (), ("main",)])
def test_the_question_is_read_from_standard_input(
    run: Run, server: Talking, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a question\nof two lines\n"))
    assert run("ask", *words).returncode == 0
    assert server.asked[0]["messages"][0]["content"] == "a question\nof two lines\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [(("a", "b", "c"), "put it in quotes"), (("main", " "), "empty"), (("-",), "empty")],
)
def test_a_question_that_is_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    done = run("ask", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_pictures_go_along_by_what_they_are(run: Run, server: Talking, tmp_path: Path) -> None:
    picture = tmp_path / "picture.txt"
    picture.write_bytes(PNG)
    jpeg = tmp_path / "b"
    jpeg.write_bytes(b"\xff\xd8\xff and more")
    assert run("ask", "What is it?", "--image", str(picture), "--image", str(jpeg)).returncode == 0
    first, second, text = server.asked[0]["messages"][0]["content"]
    assert first["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgog")
    assert second["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert text == {"type": "text", "text": "What is it?"}


def test_what_is_no_picture_is_refused_before_anything_is_asked(
    run: Run, server: Talking, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_text("no picture")
    for path, said in ((tmp_path / "a.png", "unsupported image format"), (tmp_path, "regular")):
        done = run("ask", "What?", "--image", str(path))
        assert done.returncode == 2
        assert said in done.stderr
    assert server.asked == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("qwen is not a multimodal model", "takes no pictures"),
        ("At most 0 image(s) may be provided in one prompt.", "takes no pictures"),
        ("This model's maximum context length is 100 tokens. However, ...", "--max-tokens"),
        ("default chat template is no longer allowed", "/v1/completions"),
    ],
)
def test_a_refusal_is_in_the_servers_words_with_a_hint(
    run: Run, server: Talking, words: str, hint: str
) -> None:
    server.refusal = (400, json.dumps({"error": {"message": words}}))
    done = run("ask", "What?")
    assert done.returncode == 1
    assert f"answered 400: {words}" in done.stderr
    assert hint in done.stderr.partition("fix: ")[2]
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_an_engine_that_dies_in_an_answer_is_named_with_where_to_look(
    run: Run, server: Talking, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    server.dies_with = "EngineCore encountered an issue."
    typed(monkeypatch, "one")
    done = run(*(("ask", "What?") if command == "ask" else ("chat",)))
    assert done.stdout == "Paris\n"
    said = "error: main: the server ended its answer early: EngineCore encountered an issue.\n"
    assert said in done.stderr
    assert "`sparkdeploy logs main` shows why, `sparkdeploy diagnose main` packs" in done.stderr


def test_the_key_of_a_public_deployment_is_used(run: Run, server: Talking) -> None:
    run_settings = load_settings()
    keys = run_settings.state_dir / "keys"
    keys.mkdir(parents=True)
    (keys / "main").write_text("a-key\n")
    stage.connect(run_settings).facts["sparkdeploy-main"].labels[labels.EXPOSURE] = "public"  # type: ignore[attr-defined]
    assert run("ask", "What?").returncode == 0
    assert server.keys == ["Bearer a-key"]


def test_which_deployment(run: Run, engine: FakeContainers, server: Talking) -> None:
    engine.facts = {}
    assert run("ask", "What?").returncode == 4
    engine.facts = {name: server.fact(name) for name in ("a", "b")}
    done = run("ask", "What?")
    assert done.returncode == 2
    assert '`sparkdeploy ask a "..."` or `sparkdeploy ask b "..."`' in done.stderr
    assert run("ask", "b", "What?").returncode == 0
    engine.facts["c"] = server.fact("main")
    assert run("ask", "What?").returncode == 2, "main is one of three"
    engine.facts = {"a": server.fact("a", nodes="spark-1,spark-2", rank="1")}
    assert run("ask", "What?").returncode == 2, "what another machine heads has to be named"
    done = run("ask", "a", "What?")
    assert done.returncode == 4
    assert "fix: on spark-1, run the same command" in done.stderr


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_chat_remembers_and_is_steered(
    run: Run, server: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(
        monkeypatch,
        *("Which city?", "", "And\\", "then?", "/system Be brief.", "//etc?", "/clear", "New?"),
        *("/clear", "/system", "Last?", "/nope", "/help", "/quit", "never"),
    )
    done = run("chat", "--system", "Be kind.")
    assert done.returncode == 0
    said = [[message["content"] for message in body["messages"]] for body in server.asked]
    assert said == [
        ["Be kind.", "Which city?"],
        ["Be kind.", "Which city?", "Paris.", "And\nthen?"],
        ["Be brief.", "Which city?", "Paris.", "And\nthen?", "Paris.", "/etc?"],
        ["Be brief.", "New?"],
        ["Last?"],
    ]
    assert done.stdout == "Paris.\n" * 5
    assert "unknown command /nope" in done.stderr
    assert "12 of 100 tokens of context" in done.stderr


def test_a_chat_that_is_too_long_says_what_to_do_and_goes_on(
    run: Run, server: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "This model's maximum context length is 100 tokens."

    def deltas(_body: dict[str, Any]) -> list[dict[str, Any]]:
        server.refusal = (400, words) if len(server.asked) == 1 else None
        return [{"content": "Paris."}]

    server.deltas = deltas
    typed(monkeypatch, "one", "two", "three", "/clear", "four")
    done = run("chat")
    assert done.returncode == 0
    assert words in done.stderr
    assert "/clear forgets what was said" in done.stderr
    # The question that was refused is no part of the conversation.
    server.refusal = None
    assert [len(body["messages"]) for body in server.asked] == [1, 3, 3, 1]


def test_ctrl_c_ends_an_answer_and_not_the_chat(
    run: Run, server: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "one", "two")
    take = AnswerPrinter.take

    def interrupted(printer: AnswerPrinter, piece: AnswerPiece) -> None:
        take(printer, piece)
        if len(server.asked) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(AnswerPrinter, "take", interrupted)
    done = run("chat")
    assert done.returncode == 0
    assert "(ended)" in done.stderr
    assert done.stdout == "Paris\nParis.\n"
    assert [it["content"] for it in server.asked[1]["messages"]] == ["one", "Paris", "two"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_kill_or_a_terminal_that_goes_away_ends_the_chat(
    run: Run, server: Talking, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    typed(monkeypatch, "one", "two")
    monkeypatch.setattr(AnswerPrinter, "take", lambda *_: signal.raise_signal(number))
    before = signal.signal(number, lambda *_: None)
    try:
        assert run("chat").returncode == 130
    finally:
        signal.signal(number, before)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("limit", "words"), [(None, "generation_config.json has max_new_tokens"), (5, "used up")]
)
def test_an_answer_that_nobody_limited_names_what_may_have_cut_it(
    limit: int | None, words: str
) -> None:
    so_far = AnswerPrinter(shows=False).so_far
    so_far.text, so_far.finish_reason = "Par", "length"
    assert words in stage.remark(so_far, limit)
    so_far.finish_reason = "stop"
    assert stage.remark(so_far, limit) == ""
