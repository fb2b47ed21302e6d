"""`bench campaign` with Docker played: `python -m tests.unit.bench.campaign_lab ARGUMENTS`.

What serves stands in the file `served.json` of LAB, what was done in `log`; the model is whatever
answers at ENGINE. The process ends itself by SIGKILL in the `up` of the recipe that KILL_IN names,
once; the recipe that FAIL names does not start.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sparkdeploy import labels
from sparkdeploy.bench import run as bench_run
from sparkdeploy.bench.campaign import run as campaign_run
from sparkdeploy.bench.campaign import steps as campaign_steps
from sparkdeploy.bench.endpoint import Access, Endpoint, reach_url
from sparkdeploy.bench.quality import capture, probes
from sparkdeploy.bench.record import RecipeOrigin
from sparkdeploy.checks.report import fail, ok
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.report import values_to_show
from tests.fakes.tool_container import REPORT
from tests.unit.bench.planted import HOME, PLANTED

MARK = "killed"


def lab() -> Path:
    return Path(os.environ["LAB"])


def served() -> dict[str, Any] | None:
    file = lab() / "served.json"
    return json.loads(file.read_text()) if file.exists() else None


def noted(words: str) -> None:
    with (lab() / "log").open("a") as log:
        log.write(words + "\n")


def up(resolved: Resolved, request: Request, _settings: Any, **_more: Any) -> SimpleNamespace:
    name = resolved.recipe.name
    noted(f"up {name}")
    if name == os.environ.get("FAIL"):
        raise UnhealthyError(f"{name} never answered; Bearer {PLANTED['key']} on {PLANTED['host']}")
    values = values_to_show(resolved.recipe)
    here = {"values": values, "env": dict(resolved.recipe.serve.env), "name": name}
    here["exposure"] = request.deployment.exposure
    (lab() / "served.json").write_text(json.dumps(here))
    if name == os.environ.get("KILL_IN") and not (lab() / MARK).exists():
        (lab() / MARK).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return SimpleNamespace(readiness=None)


def take_down(_name: str, *, missing_ok: bool) -> tuple[str, ...]:
    noted("down")
    (lab() / "served.json").unlink(missing_ok=True)
    return ()


@contextlib.contextmanager
def connect(_settings: Any) -> Iterator[SimpleNamespace]:
    env = [f"{name}={value}" for name, value in (served() or {}).get("env", {}).items()]
    record: dict[str, Any] = {"Config": {"Env": ["PATH=/bin", *env]}}
    record["Args"] = ["serve", "/m/ck/x"]
    yield SimpleNamespace(inspect=lambda _id: record, exec=lambda _id, argv: (0, printed(argv)))


def printed(argv: list[str]) -> str:
    """What a program says in the container: vLLM's report of a load, or the tiles of a tuning."""
    is_report = argv[0] == "sh" and argv[2].startswith("cat")
    return json.dumps(REPORT) if is_report else f"best tile: 8\n{HOME}/x"


def find_deployment(_host: Any, name: str) -> SimpleNamespace | None:
    here = served()
    if here is None:
        return None
    marks = {
        labels.DEPLOYMENT: name,
        labels.RECIPE: here["name"],
        labels.RECIPE_VALUES: json.dumps(here["values"]),
        labels.EXPOSURE: here["exposure"],
    }
    fact = ContainerFact("c1", f"sparkdeploy-{name}", "sha256:1", "running", marks)
    return SimpleNamespace(serving=fact, current=fact)


def reached(url: str) -> Endpoint:
    """The engine, made by the recipe that serves."""
    endpoint, here = reach_url(url, Access()), served()
    recipe = RecipeOrigin(here["name"], here["name"]) if here is not None else None
    origin = replace(endpoint.origin, recipe=recipe)
    return replace(endpoint, origin=origin, container_id="c1")


def install() -> None:
    url = os.environ["ENGINE"]
    play(socket, gethostname=lambda: PLANTED["host"])
    findings = (ok("machine.memory", "128 GB"), fail("gpu.clock", "slow", "wait"))
    for module in (campaign_run, campaign_steps):
        play(module, up=up)
    for module in (campaign_run, campaign_steps, bench_run):
        play(module, connect=connect)
    play(campaign_run, find_deployment=find_deployment, down=take_down)
    play(
        campaign_steps,
        require_deployment=find_deployment,
        plan_for=lambda request, settings: SimpleNamespace(resolved=resolve(request, settings)),
        examine=lambda *_args, **_more: findings,
        reach_deployment=lambda _name, _settings: reached(url),
    )
    for module in (capture, probes):
        play(module, reach=lambda _name, _settings, _access: reached(url))


def play(module: Any, **parts: object) -> None:
    for name, part in parts.items():
        setattr(module, name, part)


if __name__ == "__main__":
    from sparkdeploy.cli.main import main

    install()
    sys.argv = ["sparkdeploy", *sys.argv[1:]]
    main()
