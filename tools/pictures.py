"""Draws the pictures of docs/pictures: a screen as SVG, pages as Chromium shows them.

Run in a checkout with chromium-driver: python -m tools.pictures [status|report|gateway]. The
figures in them are made up.
"""

from __future__ import annotations

import contextlib
import io
import re
import socket
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from sparkdeploy.bench.report.page import read_published, report_page
from sparkdeploy.gateway.app import Gateway
from sparkdeploy.gateway.deployments import DeploymentLook, NodeMemory, StackLook
from sparkdeploy.gateway.fit import ModelFit, StackFit
from sparkdeploy.gateway.scheduler import Sighting
from sparkdeploy.gateway.stack import ModelEntry
from sparkdeploy.monitor.draw import screen_of
from sparkdeploy.monitor.snapshot import (
    DeploymentState,
    NodeSample,
    Percentiles,
    ServerFigures,
    WatchedDeployment,
    WatchSnapshot,
)
from sparkdeploy.node.facts import GpuLoad
from sparkdeploy.settings import resources
from sparkdeploy.terminal.style import painted
from tests.engine.bench.browser import Browser, Screen
from tests.fakes.bench_runs import judged, loaded_run
from tests.fakes.gateway import ScriptedDeployments, stack_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
FONT_FACES = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""They load fonts from elsewhere, which no picture in a page may."""
AT = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
COLUMNS, ROWS = 100, 30
REPORT, STACK = Screen(960, 720), Screen(960, 500)
LOADED = "document.readyState === 'complete'"
SERVED = "[...document.querySelectorAll('article')].some(it => it.textContent.includes('tok/s'))"
WAIT_S = 30.0


def watched() -> WatchSnapshot:
    """Return a Spark with two models, one busy and one that starts."""
    rates = tuple(50.0 - 30 * abs((number % 60) - 30) / 30 for number in range(240))
    busy = ServerFigures(
        tokens_per_s=48.3,
        rates=rates,
        running=2,
        waiting=0,
        requests_a_minute=11,
        first_token=Percentiles(0.412, 1.9),
        gap=Percentiles(0.021, 0.038),
        accepted=(0.86, 0.71),
        prefix_hits=0.64,
        kv_usage=0.23,
        preemptions=0,
        preempted_lately=0,
        generated_tokens=1_204_311,
        prompt_tokens=18_930_022,
    )
    return WatchSnapshot(
        AT,
        (
            _deployment("main", "v2", "qwen", 8000, busy),
            _deployment("embed", "qwen3-vl-embedding", "embed", 8001, None),
        ),
        (
            NodeSample(
                name="spark-1",
                available_bytes=14 << 30,
                total_bytes=119 << 30,
                floor_bytes=4 << 30,
                gpu=GpuLoad(sm_clock_mhz=2411.0, temperature_c=63.0, power_w=61.4),
            ),
        ),
    )


def _deployment(
    name: str, recipe: str, model: str, port: int, figures: ServerFigures | None
) -> WatchedDeployment:
    is_serving = figures is not None
    return WatchedDeployment(
        name=name,
        recipe=recipe,
        model=model,
        url=f"http://127.0.0.1:{port}",
        life=DeploymentState.SERVING if is_serving else DeploymentState.STARTING,
        state="serving" if is_serving else "loading weights 41%",
        gone_since=None,
        restarts=0,
        last_error="",
        up_since=AT - timedelta(hours=26 if is_serving else 0.02),
        figures=figures or ServerFigures(),
    )


def status_svg() -> str:
    """Return `status --watch` as a picture with a ground of its own, for any theme."""
    lines = screen_of(watched(), COLUMNS, ROWS)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    for line in lines:
        console.print(Text.from_ansi(painted(line, COLUMNS)), no_wrap=True)
    svg = console.export_svg(title="a Spark, with made-up figures", unique_id="status")
    return FONT_FACES.sub("", svg)


def report_png(browser: Browser) -> bytes:
    runs = [loaded_run("baseline", speed=28.1), loaded_run("v2", speed=51.4)]
    field = read_published(resources() / "recipes" / "facts" / "published.yaml")
    quality = [None, judged(runs[0], runs[1])]
    made = report_page(
        runs, field, made_at="2026-11-25 12:00 UTC", version="0 (made-up figures)", quality=quality
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(made, encoding="utf-8")
        return shown(browser, path.as_uri(), REPORT, LOADED)


class PicturedDeployments(ScriptedDeployments):
    """One model that answers, one that died, one that was not asked for."""

    def look(self, *, with_figures: bool = False) -> StackLook:  # noqa: ARG002 - what is looked at
        cause = "died with exit code 86: the guard's memory floor of 4 GiB was reached"
        models = {
            "coder": DeploymentLook(Sighting.HEALTHY, self.upstream("coder"), tokens_per_s=48.3),
            "embed": DeploymentLook(Sighting.DEAD, cause=cause),
            "prose": DeploymentLook(Sighting.STOPPED),
        }
        return StackLook(models, (NodeMemory("spark-1", 119 << 30, 28 << 30),))


@contextlib.contextmanager
def stack_page() -> Iterator[str]:
    names = {"coder": "qwen3-coder-next", "embed": "qwen3-vl-embedding", "prose": "v2"}
    sizes = {"coder": 83, "embed": 24, "prose": 101}
    stack = stack_of(models=[ModelEntry(name=it, recipe=recipe) for it, recipe in names.items()])
    fits = tuple(ModelFit(it.name, it.keep, {"memory": sizes[it.name]}) for it in stack.models)
    deployments = PicturedDeployments()
    deployments.serve("coder")
    server = Gateway(stack, StackFit({"memory": 112}, fits), deployments).server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WAIT_S)
            deployments.end_all()


def gateway_png(browser: Browser) -> bytes:
    with stack_page() as url:
        return shown(browser, url, STACK, SERVED)


def shown(browser: Browser, url: str, screen: Screen, is_ready: str) -> bytes:
    """Return what a window shows of a page, once it is ready."""
    browser.show(url, screen)
    until_s = time.monotonic() + WAIT_S
    while not browser.evaluate(f"return {is_ready}") and time.monotonic() < until_s:
        time.sleep(0.1)
    return browser.picture(whole=False)


def main(wanted: list[str]) -> int:
    PICTURES.mkdir(exist_ok=True)
    if not wanted or "status" in wanted:
        (PICTURES / "status-watch.svg").write_text(status_svg(), encoding="utf-8")
    if wanted == ["status"]:
        return 0
    with Browser() as browser:
        if not wanted or "report" in wanted:
            (PICTURES / "bench-report.png").write_bytes(report_png(browser))
        if not wanted or "gateway" in wanted:
            (PICTURES / "gateway-page.png").write_bytes(gateway_png(browser))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
