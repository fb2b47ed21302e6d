"""A hub whose files are not what its list says, or stop coming: one clear sentence each, exit 6."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.pull import WantedRepository, resolve
from sparkdeploy.settings import load_settings
from tests.hub.double import Fault, HubDouble, Repo, hub_double, xet_hash_of
from tests.hub.xet import xet_by_get
from tests.unit.program import Run

pytestmark = [pytest.mark.outside, pytest.mark.usefixtures("no_docker")]

COMMIT = "1" * 40
NAME = "model-00002-of-00002.safetensors"
DESCRIBED = f"/resolve/{COMMIT}/{NAME}"
ALWAYS = 99


@pytest.fixture(params=["http", "xet"])
def double(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubDouble]:
    """A hub whose list was read; what happens to it now was not known then."""
    with hub_double() as made, xet_by_get():
        is_xet = request.param == "xet"
        made.repos["lab/twin"] = Repo({COMMIT: folder}, {"main": COMMIT}, is_xet=is_xet)
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        settings = load_settings()
        lock = HubLock(settings.state_dir)
        resolve(open_hub(settings), lock, WantedRepository("lab/twin"), anew=False)
        yield made


def shorter(_double: HubDouble, file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def gone(_double: HubDouble, file: Path) -> None:
    file.unlink()


def gone_in_the_middle(double: HubDouble, file: Path) -> None:
    """Some of it comes, and from then on nobody has it."""
    places = (f"/lab/twin/{COMMIT}/{NAME}", f"/xet/{xet_hash_of(file)}")
    cuts = [Fault(place, keep_bytes=100_000) for place in places]
    double.faults += [*cuts, Fault(DESCRIBED, status=404, times=ALWAYS, skip=1)]
    double.faults += [Fault(place, status=404, times=ALWAYS) for place in places]


def of_another_etag(double: HubDouble, _file: Path) -> None:
    said = {"X-Linked-Etag": '"' + "a" * 64 + '"'}
    double.faults.append(Fault(DESCRIBED, times=ALWAYS, headers=said))


def of_another_commit(double: HubDouble, _file: Path) -> None:
    double.faults.append(Fault(DESCRIBED, times=ALWAYS, headers={"X-Repo-Commit": "2" * 40}))


def elsewhere(double: HubDouble, _file: Path) -> None:
    double.faults.append(Fault(DESCRIBED, times=ALWAYS, headers={"Location": "ftp://host/file"}))


def ending_early(double: HubDouble, file: Path) -> None:
    """Described as it is listed, sent as a whole shorter file."""
    for place in (f"/lab/twin/{COMMIT}/{NAME}", f"/xet/{xet_hash_of(file)}"):
        said = {"Content-Length": "100000"}
        double.faults.append(Fault(place, times=ALWAYS, keep_bytes=100_000, headers=said))


def garbled(double: HubDouble, file: Path) -> None:
    for place in (f"/lab/twin/{COMMIT}/{NAME}", f"/xet/{xet_hash_of(file)}"):
        double.faults.append(Fault(place, times=ALWAYS, garble_from=100_000))


NOT_THE_ONE = f"{NAME} is not the one of 111111111111: the hub now states "


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shorter, NOT_THE_ONE),
        (gone, f"has no such repository, revision or file: {NAME}."),
        (gone_in_the_middle, f"has no such repository, revision or file: {NAME}."),
        (of_another_etag, NOT_THE_ONE + "'aaa"),
        (of_another_commit, NOT_THE_ONE + "'222"),
        (elsewhere, "the hub sends to 'ftp://host/file'"),
        (ending_early, f"{NAME} has 100000 bytes, and the hub states 2737792."),
        (garbled, f"{NAME} is not the file the hub describes: its hash differs."),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_file_that_is_not_as_listed_ends_in_one_clear_sentence(
    run: Run, double: HubDouble, folder: Path, change: Callable[[HubDouble, Path], None], said: str
) -> None:
    change(double, folder / NAME)
    done = run("checkpoint", "pull", "lab/twin")
    assert done.returncode == 6, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in errors[0]
    assert len([line for line in done.stderr.splitlines() if line.strip().startswith("fix: ")]) == 1
    cache = load_settings().hub_cache / "models--lab--twin"
    assert not (cache / "snapshots" / COMMIT / NAME).exists()
    assert run("checkpoint", "ls").stdout.count("verified") == 0
