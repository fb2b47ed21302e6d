"""The gateway's page in a real browser: a start from click to ready, and a death with its cause."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.conftest import until
from tests.fakes.gateway import ScriptedDeployments, gateway, stack_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.runs()]

HOSTILE = "out of memory <img src=x onerror=document.title='hit'>"
KEY = "k" * 32


class Browser:
    """Chromium without a window, spoken to over two pipes."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("chromium")
        if program is None:
            pytest.skip("there is no chromium")
        orders_in, self._orders = os.pipe()
        self._replies, replies_out = os.pipe()
        # It reads descriptor 3 and writes descriptor 4.
        shell = f'exec 3<&{orders_in} 4>&{replies_out}; exec "$@"'
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
        self._program = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *options, f"--user-data-dir={folder}"],
            pass_fds=(orders_in, replies_out),
            stderr=subprocess.DEVNULL,
        )
        for end in (orders_in, replies_out):
            os.close(end)
        self._numbers = itertools.count(1)
        self._rest = b""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}

    def open(self, url: str) -> None:
        self._ask("Page.navigate", **self._session, url=url)

    def run(self, script: str) -> Any:
        """Run a line of JavaScript in the page and return its value."""
        done = self._ask("Runtime.evaluate", **self._session, expression=script)
        return done["result"].get("value")

    def resize(self, width: int) -> None:
        size: dict[str, Any] = {"width": width, "height": 800, "deviceScaleFactor": 1}
        self._ask("Emulation.setDeviceMetricsOverride", **self._session, **size, mobile=True)

    def close(self) -> None:
        self._program.kill()
        self._program.wait()
        for end in (self._orders, self._replies):
            os.close(end)

    def _ask(self, method: str, sessionId: str | None = None, **params: Any) -> Any:  # noqa: N803 - Chromium's name
        number = next(self._numbers)
        order: dict[str, Any] = {"id": number, "method": method, "params": params}
        if sessionId is not None:
            order["sessionId"] = sessionId
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                piece = os.read(self._replies, 65536)
                assert piece, "the browser has ended"
                self._rest += piece
            reply, _, self._rest = self._rest.partition(b"\0")
            content = json.loads(reply)
            if content.get("id") == number:
                assert "error" not in content, content
                return content["result"]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path / "profile")
    yield made
    made.close()


def text_of(browser: Browser, model: str, part: str) -> str:
    place = f"article[data-name={model}] .{part}"
    return str(browser.run(f"document.querySelector('{place}')?.textContent"))


def test_a_start_is_seen_from_click_to_ready_and_a_death_with_its_cause(
    browser: Browser, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.txt"
    keys.touch(0o600)
    keys.write_text(KEY)
    deployments = ScriptedDeployments()
    with gateway(stack_of(keys_file=keys), deployments) as client:
        browser.open(str(client.base_url))
        until(lambda: browser.run("document.getElementById('login')?.hidden === false"))
        assert browser.run("document.querySelectorAll('article').length") == 0
        browser.run(f"document.getElementById('key').value = '{KEY}'")
        browser.run("document.querySelector('#login button').click()")
        until(lambda: text_of(browser, "a", "state") == "stopped")
        deployments.may_start.clear()
        browser.run("document.querySelector('article[data-name=a] .start').click()")
        until(lambda: text_of(browser, "a", "state") == "starting")
        deployments.may_start.set()
        until(lambda: text_of(browser, "a", "state") == "ready")
        until(lambda: "51.0 tok/s" in text_of(browser, "a", "figures"))
        deployments.end("a", cause=HOSTILE)
        until(lambda: text_of(browser, "a", "cause") == HOSTILE)
        assert browser.run("document.title") == "home - sparkdeploy gateway"
        assert browser.run("document.images.length") == 0
        browser.resize(390)
        assert browser.run("document.documentElement.scrollWidth") <= 390
