"""The gateway's page in a real browser: a start from click to ready, and a death with its cause."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.engine.bench.browser import Browser, Screen
from tests.engine.conftest import until
from tests.fakes.gateway import ScriptedDeployments, gateway, keys_in, stack_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.runs()]

HOSTILE = "out of memory <img src=x onerror=document.title='hit'>"
KEY = "k" * 32


def text_of(browser: Browser, model: str, part: str) -> str:
    place = f"article[data-name={model}] .{part}"
    return str(browser.evaluate(f"return document.querySelector('{place}')?.textContent"))


@pytest.mark.skipif(shutil.which("chromedriver") is None, reason="there is no chromium-driver")
def test_a_start_is_seen_from_click_to_ready_and_a_death_with_its_cause(tmp_path: Path) -> None:
    keys = keys_in(tmp_path, KEY)
    deployments = ScriptedDeployments()
    with gateway(stack_of(keys_file=keys), deployments) as client, Browser() as browser:
        browser.show(str(client.base_url), Screen(1280, 800))
        until(lambda: browser.evaluate("return document.getElementById('login')?.hidden === false"))
        assert browser.evaluate("return document.querySelectorAll('article').length") == 0
        browser.evaluate(f"document.getElementById('key').value = '{KEY}'")
        browser.evaluate("document.querySelector('#login button').click()")
        until(lambda: text_of(browser, "a", "state") == "stopped")
        deployments.may_start.clear()
        browser.evaluate("document.querySelector('article[data-name=a] .start').click()")
        until(lambda: text_of(browser, "a", "state") == "starting")
        deployments.may_start.set()
        until(lambda: text_of(browser, "a", "state") == "ready")
        until(lambda: "51.0 tok/s" in text_of(browser, "a", "figures"))
        deployments.end("a", cause=HOSTILE)
        until(lambda: text_of(browser, "a", "cause") == HOSTILE)
        assert browser.evaluate("return document.title") == "home - sparkdeploy gateway"
        assert browser.evaluate("return document.images.length") == 0
        phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        browser.devtools("Emulation.setDeviceMetricsOverride", phone)
        assert browser.evaluate("return document.documentElement.scrollWidth") <= 390
