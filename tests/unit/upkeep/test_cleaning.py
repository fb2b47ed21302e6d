"""What `clean` takes and leaves, and what `diagnose` packs."""

from __future__ import annotations

import contextlib
import errno
import os
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy import labels
from sparkdeploy import uninstall as purging
from sparkdeploy.deploy.evidence import ROOT_CAUSE
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.lock import lock_holder, node_lock
from sparkdeploy.recipe.load import Library
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep.clean import Leftover, WantedImages, clean, find_leftovers, old_images
from sparkdeploy.upkeep.diagnose import diagnose
from tests.fakes.containers import FakeContainers, container
from tests.fakes.machines import NEW, Engine, Lab, build
from tests.fakes.two_nodes import part

NOW_S = 1_800_000_000.0


def image(stage: str, tag: str, *, below: str = "", engine: str = "cuda-0.25") -> ImageFact:
    known = {labels.STAGE: stage, labels.ENGINE: engine, labels.FINGERPRINT: tag * 8}
    return ImageFact(f"sha256:{tag}", (tag,), known | ({labels.BELOW: below} if below else {}), 10)


BASE, ENGINE, PLUGIN = (
    image("base", "b1"),
    image("engine", "e1", below="b1"),
    image("plugin", "p1", below="e1"),
)
OLD_PLUGIN = image("plugin", "p0", below="e1")
OLD_ENGINE = image("engine", "e0", below="b1")
STAND_IN = ImageFact("sha256:s", ("s",), {labels.STAGE: "stand-in"}, 10)
ADOPTED = image("plugin", "x1", engine="image")
ALL = (BASE, ENGINE, PLUGIN, OLD_PLUGIN, OLD_ENGINE, STAND_IN, ADOPTED)
WANTED = WantedImages(frozenset({"p1"}), frozenset(), frozenset({"image"}))


def test_what_this_version_would_use_stays_with_what_it_stands_on() -> None:
    assert old_images(ALL, set(), WANTED) == (OLD_PLUGIN, OLD_ENGINE)


def test_what_a_deployment_runs_from_stays() -> None:
    assert old_images(ALL, {"sha256:p0"}, WANTED) == (OLD_ENGINE,)
    nothing = WantedImages(frozenset(), frozenset(), frozenset({"image"}))
    assert old_images(ALL, {"sha256:e0"}, nothing) == (PLUGIN, OLD_PLUGIN, ENGINE)


class _Engine(FakeContainers):
    """A Docker Engine with one old image of ours and one that a deployment uses."""

    def __init__(self) -> None:
        super().__init__(images=(OLD_ENGINE, PLUGIN))
        self.removed: list[str] = []
        self.used = {"sha256:p1"}

    def images_in_use(self) -> set[str]:
        return self.used

    def measured(self, image: ImageFact) -> ImageFact:
        return image

    def remove_image(self, tag: str) -> None:
        settings = load_settings()
        assert lock_holder(settings.lock_dir, settings.node_name) is not None
        self.removed.append(tag)


@pytest.fixture
def left_behind(tmp_path: Path) -> dict[str, Path]:
    """A crash folder of 15 and one of 13 days, a dead and a living cache, and something foreign."""
    made = {
        "old": tmp_path / "state" / "crashes" / "main-old",
        "young": tmp_path / "state" / "crashes" / "main-young",
        "dead": tmp_path / "cache" / "engines" / ("e0" * 8),
        "living": tmp_path / "cache" / "engines" / ("p1" * 8),
        "foreign": tmp_path / "data",
    }
    for folder in made.values():
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"12345")
    for name, days in (("old", 15), ("young", 13)):
        at = NOW_S - days * 86400
        os.utime(made[name], (at, at))
    return made


def test_old_crash_folders_and_dead_caches_are_found_with_their_size(
    left_behind: dict[str, Path],
) -> None:
    found = find_leftovers(load_settings(), _Engine().host, now_s=NOW_S)
    assert {(item.kind, item.name, item.size_bytes) for item in found} == {
        ("image", "e0", 10),
        ("crash folder", str(left_behind["old"]), 5),
        ("cache", str(left_behind["dead"]), 5),
    }


def test_an_image_that_a_running_up_has_named_is_no_leftover() -> None:
    settings = load_settings()
    name = f"{settings.node_name}-main.use"
    with node_lock(settings.lock_dir, name, command="sparkdeploy up v2", uses=("e0",)):
        assert find_leftovers(settings, _Engine().host, now_s=NOW_S) == ()


def test_nothing_goes_without_consent_and_what_was_shown_goes_with_it(
    left_behind: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)
    engine = _Engine()
    shown: list[Sequence[Leftover]] = []

    def refuse(found: Sequence[Leftover]) -> bool:
        shown.append(found)
        return False

    assert clean(load_settings(), engine, agrees=refuse) == ()  # type: ignore[arg-type]
    assert all(folder.is_dir() for folder in left_behind.values())
    removed = clean(load_settings(), engine, agrees=lambda _: True)  # type: ignore[arg-type]
    assert list(removed) == list(shown[0])
    assert engine.removed == ["e0"]
    gone = {name for name, folder in left_behind.items() if not folder.exists()}
    assert gone == {"old", "dead"}


def test_what_came_into_use_since_the_question_stays(
    left_behind: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)
    engine = _Engine()

    def begins(found: Sequence[Leftover]) -> bool:
        assert len(found) == 3
        engine.used.add("sha256:e0")
        os.utime(left_behind["old"], (NOW_S, NOW_S))
        return True

    removed = clean(load_settings(), engine, agrees=begins)  # type: ignore[arg-type]
    assert (engine.removed, left_behind["old"].is_dir()) == ([], True)
    assert {item.kind for item in removed} <= {"cache"}


@pytest.fixture(autouse=True)
def there(tmp_path: Path, no_docker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def crash(tmp_path: Path) -> Path:
    folder = tmp_path / "state" / "crashes" / "main-20261121T101112Z"
    folder.mkdir(parents=True)
    (folder / ROOT_CAUSE).write_text("memory_floor: the guard")
    return folder


def packed(path: Path) -> set[str]:
    with tarfile.open(path) as tar:
        return set(tar.getnames())


@pytest.mark.parametrize("by", ["name", "folder's name", "path"])
def test_a_crash_is_packed_although_docker_and_the_recipe_are_broken(
    crash: Path, tmp_path: Path, by: str
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text("default_recipe: none-such\n")
    subject = {"name": "main", "folder's name": crash.name, "path": str(crash)}[by]
    bundle = diagnose(subject, tmp_path / "report.tar.gz")
    assert bundle.root_cause == "memory_floor: the guard"
    assert packed(bundle.path) >= {f"crash/{ROOT_CAUSE}", "doctor.json", "status.json"}


def test_a_bundle_can_be_looked_at_with_cat(crash: Path, tmp_path: Path) -> None:
    (crash / ROOT_CAUSE).write_text("exception: \x1b]0;gone\x07\u202e")
    (crash / "x\x1b[2J").write_text("\x9b2J")
    bundle = diagnose("main", tmp_path / "report.tar.gz")
    assert bundle.files["crash/x\\x1b[2J"] == len("\\x9b2J")
    with tarfile.open(bundle.path) as tar:
        cause = tar.extractfile(f"crash/{ROOT_CAUSE}")
        assert cause is not None
        assert cause.read() == b"exception: \\x1b]0;gone\\x07\\u202e"


class NoImages(Engine):
    """An engine that has containers and nothing else, but for images that stay."""

    staying: tuple[str, ...] = ()

    def remove_own_images(self) -> tuple[str, ...]:
        settings = load_settings()
        assert lock_holder(settings.lock_dir, settings.node_name) is not None
        assert not self.own_containers()
        return self.staying


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the folders be those that nobody has named, below this one."""
    for kind in ("DATA", "CACHE", "STATE"):
        monkeypatch.delenv(f"SPARKDEPLOY_{kind}_DIR", raising=False)
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    return tmp_path


@pytest.fixture
def lab(home: Path, monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    """Three machines with one deployment over all of them."""
    del home
    made = build(monkeypatch, shipped, 3)
    made.engines = [NoImages(lab=made) for _ in made.engines]
    made.up()
    return made


def purge(engine: Engine) -> tuple[Leftover, ...]:
    return purging.purge(load_settings(), engine.host, agrees=lambda _found: True)


@pytest.mark.parametrize("role", ["data", "cache", "state"])
def test_a_folder_that_the_user_named_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    named = home / "named" / role
    named.mkdir(parents=True)
    (named / "thesis.txt").write_text("of a year")
    monkeypatch.setenv(f"SPARKDEPLOY_{role.upper()}_DIR", str(named))
    purge(NoImages())
    assert (named / "thesis.txt").read_text() == "of a year"


def test_what_links_lead_to_and_the_program_itself_stay(home: Path) -> None:
    """A folder that is a link, as to a larger disk, goes, and what it leads to stays empty."""
    data, cache = load_settings().data_dir, load_settings().cache_dir
    kept, disk = home / "kept", home / "disk"
    for folder in (kept, disk / "engines", data / "m", data / "venv", cache.parent):
        folder.mkdir(parents=True, exist_ok=True)
    (data / "out").symlink_to(kept)
    cache.symlink_to(disk)
    (kept / "thesis.txt").write_text("of a year")
    purge(NoImages())
    assert (kept / "thesis.txt").read_text() == "of a year"
    assert [*disk.iterdir(), *data.iterdir()] == [data / "venv"]
    assert not cache.is_symlink()


@pytest.mark.parametrize(("number", "code"), [(errno.EBUSY, 0), (errno.EACCES, 4)])
def test_a_folder_that_cannot_go_is_named_unless_it_is_a_mount(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    number: int, code: int,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "my data"))
    (folder := load_settings().data_dir).mkdir(parents=True)
    monkeypatch.setattr(purging, "connect", lambda _settings: NoImages())

    def rmdir(path: Path) -> None:
        raise OSError(number, "no", str(path))

    monkeypatch.setattr(Path, "rmdir", rmdir)
    with pytest.raises(SystemExit) if code else contextlib.nullcontext() as ended:
        purging.main(["--yes"])
    assert (ended.value.code if ended is not None else 0) == code
    said = capsys.readouterr().err
    assert (f"{folder} cannot be removed: no" in said) == (code > 0)
    assert (f"sudo rm -r '{folder}'" in said) == (code > 0)


def test_where_docker_does_not_answer_the_exit_code_says_so() -> None:
    with pytest.raises(SystemExit, match="4"):
        purging.main(["--yes"])


def test_an_image_that_others_made_theirs_from_is_named_when_all_else_is_gone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = NoImages({"c" * 12: container("c" * 12, "exited")})
    engine.staying = ("sha256:1",)
    monkeypatch.setattr(engine, "ended_checks", lambda: ("c" * 64,))
    (home / "cache" / "sparkdeploy").mkdir(parents=True)
    with pytest.raises(SparkdeployError, match=r"images stay, .* made from them: sha256:1"):
        purge(engine)
    assert (engine.facts, load_settings().cache_dir.exists()) == ({}, False)


def test_a_deployment_over_several_nodes_goes_from_all_of_them(lab: Lab) -> None:
    removed = purge(lab.engines[0])
    assert lab.names() == [[], [], []]
    told = [(item.name, item.why) for item in removed if item.kind == "deployment"]
    assert told == [("main", "its parts on spark-1, spark-2, spark-3")]
    assert not load_settings().state_dir.exists()


def test_what_an_unreachable_node_has_stays_noted_until_it_is_back(lab: Lab) -> None:
    lab.gone = {"spark-3"}
    with pytest.raises(NodeError, match="spark-3 may still have parts") as caught:
        purge(lab.engines[0])
    assert caught.value.exit_code == 4
    assert lab.names() == [[], [], [NEW]]
    assert lab.record.nodes("main") == ("spark-3",)
    assert not load_settings().cache_dir.exists()
    lab.gone = set()
    purge(lab.engines[0])
    assert lab.names() == [[], [], []]
    assert lab.record.deployments() == ()


def test_a_worker_removes_nothing_and_names_the_head(home: Path) -> None:
    live = replace(part(NEW, "x", nodes="spark-2,spark-1", rank="1"), container_id="x")
    own = container("sparkdeploy-own", deployment="own")
    engine = NoImages({"x": live, "own": own})
    folder = home / "cache" / "sparkdeploy" / "engines"
    folder.mkdir(parents=True)
    with pytest.raises(NodeError, match="which spark-2 heads") as caught:
        purge(engine)
    assert caught.value.exit_code == 4
    assert "on spark-2, sparkdeploy down main;" in (caught.value.hint or "")
    assert engine.facts == {"x": live, "own": own}
    assert folder.is_dir()
