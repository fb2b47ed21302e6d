"""What must not get into a file that is posted; each is planted somewhere it could come from."""

from __future__ import annotations

from dataclasses import replace

from sparkdeploy.bench.record import CheckpointOrigin, EngineOrigin, Failure, FailureKind, Run
from tests.fakes.bench_runs import sample_run

HOME = "/home/planted-user"
PLANTED = {
    "key": "planted-key-0123456789",
    "hub token": "hf_plantedplantedplanted",
    "variable": "planted-variable-value",
    "host": "planted-host",
    "user": "planted-user",
    "address": "10.20.30.40",
    "peer": "planted-peer.example.org",
    "folder": "secret-project",
}


def planted_run(name: str = "v2") -> Run:
    """A run with all of it in fields that somebody's machine can fill."""
    run = sample_run(name)
    failure = Failure(
        FailureKind.UNREACHABLE,
        f"{PLANTED['user']}@{PLANTED['host']}: http://{PLANTED['peer']}:8000/v1 and "
        f"{PLANTED['address']}: Bearer {PLANTED['key']}",
    )
    suite = run.suites[0]
    cell = suite.cells[0]
    cell = replace(cell, samples=(replace(cell.samples[0], failure=failure), *cell.samples[1:]))
    suite = replace(
        suite,
        cells=(cell, *suite.cells[1:]),
        notes=(f"{HOME}/{PLANTED['folder']}/x: no, said {PLANTED['host']}",),
    )
    recipe = run.origin.recipe
    assert recipe is not None
    values = {
        "name": name,
        "model": {"path": f"{HOME}/{PLANTED['folder']}/model"},
        "serve": {"extra_args": ["--api-key", PLANTED["key"], f"--x={PLANTED['variable']}"]},
    }
    origin = replace(
        run.origin,
        url=f"http://{PLANTED['host']}:8000",
        deployment=PLANTED["host"],
        recipe=replace(recipe, values=values),
        checkpoint=CheckpointOrigin(f"{HOME}/{PLANTED['folder']}/model"),
        engine=EngineOrigin("0.25.1", f"{{'token': '{PLANTED['hub token']}'}}", "FLASHINFER"),
    )
    return replace(run, origin=origin, suites=(suite,))
