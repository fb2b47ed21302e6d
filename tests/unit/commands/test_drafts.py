"""What `status` and `up` say of a drafter, from a server that counts its drafts."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.cli.outcome import print_outcome
from sparkdeploy.commands import operate
from sparkdeploy.commands import up as commands_up
from sparkdeploy.commands.request import Request
from sparkdeploy.commands.status_words import status_lines
from sparkdeploy.commands.up import Extent
from sparkdeploy.deploy.serving import remark_on_drafts
from sparkdeploy.plan.container import Deployment
from sparkdeploy.settings import load_settings
from tests.unit.commands.lab import build, reached_alone
from tests.unit.fake_containers import FakeContainers, container
from tests.unit.plain import plain_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.recipe.load import Library

pytestmark = pytest.mark.outside

POOR = "vllm:spec_decode_num_{}_total"
COUNTED = {"drafts": 400, "draft_tokens": 4800, "accepted_tokens": 0}
SAID = "0 of 4,800 drafted tokens were accepted in 400 steps (0.0%, less than 5%)"


class Counting(ThreadingHTTPServer):
    """Answers /metrics, and nothing else."""

    text = ""
    asked = 0

    @property
    def container(self) -> ContainerFact:
        return container("sparkdeploy-main", port=str(self.server_address[1]))


class Handler(BaseHTTPRequestHandler):
    server: Counting

    def do_GET(self) -> None:
        self.server.asked += self.path == "/metrics"
        self.send_response(200 if self.server.text else 503)
        self.end_headers()
        self.wfile.write(self.server.text.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Counting]:
    with Counting(("127.0.0.1", 0), Handler) as running:
        running.text = "".join(f"{POOR.format(name)} {n}\n" for name, n in COUNTED.items())
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


class Remembering(FakeContainers):
    def memory_bytes(self, _key: str) -> int:
        return 0

    def logs(self, *_: object, **_options: object) -> tuple[bytes, ...]:
        return ()


@pytest.mark.parametrize(("is_healthy", "is_asked"), [(True, 1), (False, 0)])
def test_status_says_it_of_a_healthy_server_alone(
    monkeypatch: pytest.MonkeyPatch, server: Counting, is_healthy: bool, is_asked: int
) -> None:
    reached_alone(monkeypatch, Remembering.of(server.container))
    monkeypatch.setattr(operate, "answers", lambda _fact: is_healthy)
    (row,) = operate.current_rows()
    shown = [line for line in plain_lines(status_lines((row,))) if line.startswith("  ! ")]
    assert server.asked == is_asked
    assert (SAID in row.drafting) is is_healthy
    assert len(shown) == is_asked


def test_a_server_that_does_not_tell_is_no_failure(server: Counting) -> None:
    assert SAID in remark_on_drafts(server.container, load_settings())
    server.text = ""
    assert remark_on_drafts(server.container, load_settings()) == ""
    server.text = "x" * 100
    assert remark_on_drafts(server.container, load_settings()) == ""
    gone = container("sparkdeploy-main", port="1")
    assert remark_on_drafts(gone, load_settings()) == ""
    unlabelled = container("sparkdeploy-main")
    assert remark_on_drafts(unlabelled, load_settings()) == ""


@pytest.mark.parametrize("extent", [Extent.ANSWER, Extent.DETACH])
def test_up_of_what_serves_already_warns(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shipped: Library,
    extent: Extent,
) -> None:
    lab = build(monkeypatch, shipped, 1)
    lab.up()
    said = "the drafter costs time: that much"
    monkeypatch.setattr(commands_up, "remark_on_drafts", lambda _fact, _settings: said)
    outcome = lab.up(extent=extent)
    capsys.readouterr()
    request = Request("v2", (), Deployment("main"))
    print_outcome(outcome, request, extent, as_json=True)
    told = capsys.readouterr()
    is_said = extent is Extent.ANSWER
    assert (outcome.drafting == said) is is_said
    assert (f"warning: {said}" in told.err) is is_said
    assert ('"drafting": "the drafter' in told.out) is is_said
