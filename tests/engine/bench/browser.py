"""A headless Chromium through its own chromedriver: plain WebDriver over HTTP, no library."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import requests

STARTED = re.compile(r"started successfully on port (\d+)")
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Screen:
    """What a page is shown on."""

    width: int
    height: int
    scheme: str = "light"


class Browser:
    """One session; a context manager."""

    def __init__(self) -> None:
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True
        )
        try:
            self._root = f"http://127.0.0.1:{self._port()}/session"
            self._http = requests.Session()
            self._http.trust_env = False
            made = self._post("", {"capabilities": {"alwaysMatch": _capabilities()}})
            self._root += f"/{made['sessionId']}"
        except BaseException:
            self._driver.kill()
            self._driver.wait()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._http.delete(self._root, timeout=TIMEOUT_S)
        finally:
            self._http.close()
            self._driver.terminate()
            self._driver.wait()
            if self._driver.stdout is not None:
                self._driver.stdout.close()

    def show(self, url: str, screen: Screen) -> None:
        """Open a page on a screen and wait until it is loaded."""
        metrics = {"width": screen.width, "height": screen.height, "deviceScaleFactor": 1}
        self.devtools("Emulation.setDeviceMetricsOverride", {**metrics, "mobile": False})
        # As on a phone: else a picture is narrower than the page by the width of a scrollbar.
        self.devtools("Emulation.setScrollbarsHidden", {"hidden": True})
        scheme = {"name": "prefers-color-scheme", "value": screen.scheme}
        self.devtools("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
        self._post("/url", {"url": url})

    def evaluate(self, script: str) -> Any:
        """Return what the body of a function returns in the page."""
        return self._post("/execute/sync", {"script": script, "args": []})

    def messages(self) -> list[str]:
        """Return what the console said since the last call, blocked requests too."""
        return [str(entry["message"]) for entry in self._post("/se/log", {"type": "browser"})]

    def picture(self, *, whole: bool = True) -> bytes:
        """Return the page, or what its window shows, as PNG."""
        taken = self.devtools("Page.captureScreenshot", {"captureBeyondViewport": whole})
        return base64.b64decode(taken["data"])

    def print_out(self) -> bytes:
        """Return the page as it would be printed, as PDF."""
        return base64.b64decode(self.devtools("Page.printToPDF", {})["data"])

    def devtools(self, command: str, parameters: Mapping[str, object]) -> Any:
        """Send a command of the devtools protocol."""
        return self._post("/goog/cdp/execute", {"cmd": command, "params": dict(parameters)})

    def _post(self, path: str, body: Mapping[str, object]) -> Any:
        answer = self._http.post(self._root + path, json=body, timeout=TIMEOUT_S)
        assert answer.ok, answer.text
        return answer.json()["value"]

    def _port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if match := STARTED.search(line):
                return int(match[1])
        raise AssertionError("chromedriver ended without a port")


def _capabilities() -> dict[str, object]:
    return {
        "goog:chromeOptions": {"args": list(ARGUMENTS)},
        "goog:loggingPrefs": {"browser": "ALL"},
    }
