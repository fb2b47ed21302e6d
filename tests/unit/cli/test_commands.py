"""Commands without Docker: what they print, how they exit, what they leave alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sparkdeploy.checkpoint.hub_lock import HubLock, RevisionPin
from sparkdeploy.cli import deployments
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.deploy.serving import ServedDeployment
from sparkdeploy.deploy.up import Extent, UpOptions
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.node import facts
from sparkdeploy.plan.container import Deployment
from sparkdeploy.recipe.load import Library
from sparkdeploy.settings import load_settings
from tests.fakes.plans import observed, plan
from tests.unit.program import Run

pytestmark = pytest.mark.usefixtures("no_docker")


def test_list_names_recipes_and_engines(run: Run) -> None:
    content = run.answer("list", "--json")
    assert "v2" in {row["name"] for row in content["recipes"]}
    releases = {row["name"]: row["vllm"] for row in content["engines"]}
    assert releases["cpu-0.32"] == "0.32.0"
    # It stands for every image, whatever that holds.
    assert releases["image"] == "any"
    assert re.search(r"^ +image +any +An image of others", run("list", "--all").stdout, re.M)


def test_list_says_what_a_recipe_needs_that_no_release_has(run: Run) -> None:
    rows = {row["name"]: row for row in run.answer("list", "--json")["recipes"]}
    assert rows["v2"]["preview"] is None
    assert rows["gpt-oss-120b"]["least_vllm"]
    for name, row in rows.items():
        assert row["source"] or not (row["reported_tok_s"] or row["preview"]), name
    (forked,) = (row for name, row in rows.items() if name == "glm-5.3-flash")
    assert forked["preview"]
    assert "needs a fork" in run("list", "--all").stdout


def test_a_list_is_one_screen_of_what_fits_a_spark_where_no_gpu_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = tmp_path / "config" / "recipes"
    recipes.mkdir(parents=True)
    (recipes / "odd.yaml").write_text(
        "schema: 1\nname: odd\ntitle: t\nextends: v2\nserve: {max_model_len: many}\n"
    )
    (recipes / "huge.yaml").write_text(
        "schema: 1\nname: huge\ntitle: too large\nextends: v2\n"
        "serve: {gpu_memory_utilization: 0.3}\n"
    )
    monkeypatch.setenv("COLUMNS", "80")
    said = run("list").stdout
    whole = " ".join(said.split())
    assert "recipes that fit on NVIDIA DGX Spark" in said
    assert len(said.splitlines()) <= 44  # six of them the two of one's own
    assert re.search(r"^  \* v2 +51  Hybrid INT4", said, re.MULTILINE)
    assert "huge" in said
    assert "yours: (no) too large" in said
    assert "minimax-m2.7" not in said
    broken = "broken: recipe odd has 1 mistake: "
    assert broken in whole
    fits = " ".join(run("list", "--fits", "spark").stdout.split())
    assert " minimax-m2.7 on 2 over 2 machines, " in fits
    assert "serve.max_model_len: 'many' is wrong" in fits
    assert run("list", "too", "large", "--fits", "spark").stdout == ""
    assert broken in " ".join(run("list", "--all").stdout.split())
    (tmp_path / "config" / "config.yaml").write_text("default_recipe: v22\n")
    for words in (("plan",), ("plan", "--hardware", "spark"), ("up",)):
        refused = run(*words)
        assert refused.returncode == 3
        assert f"default_recipe in {tmp_path}/config/config.yaml: there is no" in refused.stderr
    settings = " ".join(run("config").stdout.split())
    there = f"x default_recipe v22 ({tmp_path}/config/config.yaml): there is no recipe v22 21"
    assert f"{there} settings, " in settings
    assert settings.endswith("1 wrong (x)")


def test_fits_alone_means_this_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    here = run.answer("list", "--fits", "here", "--json")
    assert run.answer("list", "--fits", "--json") == here
    assert run.answer("list", "--json", "--fits") == here
    assert run("list", "--fits", "toaster").returncode == 2
    gpu = facts.GpuFact("NVIDIA H200", memory_bytes=150 << 30)
    monkeypatch.setattr(facts, "read_gpus", lambda *_: facts.GpuReading((gpu,)))
    assert "recipes that fit here" in run("list").stdout
    assert run("list", "--fits").stdout.startswith("on this machine (")
    made = run.answer("new", "mine", "--model", "openai/gpt-oss-120b", "-o", "-", "--json")
    assert made["verdict"].startswith("fits on NVIDIA H200")


def test_plan_works_without_docker_gpu_and_network(run: Run) -> None:
    done = run("plan", "v2")
    # There is no GPU, and `up` would say so.
    assert done.returncode == 4
    assert "docker: images and containers are unknown" in done.stdout


@pytest.mark.parametrize("words", [("plan",), ("doctor",), ("up", "--dry-run")])
def test_every_hint_names_a_recipe_as_the_user_did(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    text = "schema: 1\nname: mine\ntitle: t\nextends: v2\ncluster: {min_nodes: 2}\n"
    (tmp_path / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = run(*words, "./mine.yaml")
    assert done.returncode == 4
    assert "sparkdeploy rehearse ./mine.yaml\n" in done.stdout
    assert "sparkdeploy up ./mine.yaml --cluster\n" in done.stdout
    said = re.findall(r"sparkdeploy (?:up|rehearse|show|plan) (\S+)", done.stdout + done.stderr)
    assert {word.strip("`") for word in said} == {"./mine.yaml"}


def test_plan_check_exits_nine_when_there_is_work(
    run: Run, shipped: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(shipped, observed())
    monkeypatch.setattr("sparkdeploy.deploy.request.plan_for", lambda *_, **_more: made)
    done = run("plan", "v2", "--check")
    assert (done.returncode, "run `sparkdeploy up v2`" in done.stderr) == (9, True)


@pytest.mark.parametrize("show", [(), ("--show", "args")])
def test_plan_check_exits_four_for_what_up_would_refuse(run: Run, show: tuple[str, ...]) -> None:
    # There is work as well, and no GPU.
    done = run("plan", "v2", "--check", *show)
    assert done.returncode == 4
    assert "`up` would refuse this" in done.stderr
    assert "run `sparkdeploy up`" not in done.stderr


def test_plan_shows_dockerfiles_which_no_download_changes(run: Run) -> None:
    done = run("plan", "v2", "--show", "dockerfile")
    assert "FROM" in done.stdout
    assert done.stderr == ""


def test_plan_says_that_there_are_no_mods_or_that_one_is_missing(run: Run) -> None:
    assert run("plan", "v2", "--show", "mods").stdout == "v2 has no mods\n"
    missing = run("plan", "v2", "--show", "mods", "--set", "mods=[{folder: mods/fix}]").stdout
    assert missing == "# ---- mod mods/fix: not here, `plan` says more\n"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("args", "vllm serve '/m/ck/qwen3.5-122b-a10b-int4-autoround-<fingerprint>' \\\n  --"),
        ("container", "docker run \\\n  --detach \\\n"),
        ("container", "--label=dev.sparkdeploy.fingerprint=<hash of this container>' \\\n"),
    ],
)
def test_plan_shows_one_part_in_full_before_the_download(run: Run, part: str, words: str) -> None:
    done = run("plan", "v2", "--show", part)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert "AutoRound; what stands in <...> is known after the download" in done.stderr
    assert f"files of {load_settings().hub_cache / 'blobs'} are mounted too" in done.stderr


def test_a_pinned_commit_is_shown_before_it_is_here(run: Run) -> None:
    lock = HubLock(load_settings().state_dir)
    lock.set("Intel/Qwen3.5-122B-A10B-int4-AutoRound", "main", RevisionPin("1" * 40))
    shown = run("plan", "baseline", "--show", "args").stdout
    repo = "models--Intel--Qwen3.5-122B-A10B-int4-AutoRound"
    assert shown.startswith(f"vllm serve /m/hub/{repo}/snapshots/{'1' * 40} \\\n")
    content = json.loads(run("plan", "baseline", "--show", "container", "--json").stdout)
    (spec,) = content["nodes"].values()
    assert spec["mounts"][0]["target"] == f"/m/hub/{repo}"


@pytest.fixture
def full_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little disk and memory, and always the same: other programs run meanwhile."""
    memory = {"MemTotal": 8 << 30, "MemFree": 1 << 30, "MemAvailable": 2 << 30}
    swap = {"SwapTotal": 4 << 30, "SwapFree": 1 << 30}
    monkeypatch.setattr(facts, "parse_meminfo", lambda _text: memory | swap)
    monkeypatch.setattr(facts, "free_bytes", lambda _path: 1 << 30)


@pytest.mark.usefixtures("full_machine")
def test_plan_and_dry_run_print_the_same(run: Run) -> None:
    planned, dry = (
        json.loads(run(*words, "--json").stdout)
        for words in (("plan", "v2"), ("up", "v2", "--dry-run"))
    )
    assert "disk" in str(planned["problems"])
    assert "memory" in str(planned["problems"])
    assert "swap" in str(planned["warnings"])
    assert planned == dry


def test_up_without_docker_exits_four_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    done = run("up", "v2")
    assert done.returncode == 4
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_bug_under_a_state_folder_that_cannot_be_made_still_exits_seventy(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDEPLOY_STATE_DIR", "/proc/nowhere")
    monkeypatch.setattr("sparkdeploy.recipe.report.recipe_rows", None)
    done = run("list")
    assert done.returncode == 70
    place = Path(done.stderr.partition("details in ")[2].strip())
    assert "TypeError" in place.read_text()
    shutil.rmtree(place.parent)


def test_a_docker_address_that_is_none_exits_four(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://somewhere:port")
    done = run("status")
    assert done.returncode == 4
    assert "no address of a Docker Engine" in done.stderr


def test_a_chat_template_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "schema: 1\nname: mine\ntitle: t\nextends: v2\nserve: {chat_template: mine.jinja}\n"
    )
    done = run("plan", str(path))
    assert done.returncode == 3
    assert str(tmp_path / "mine.jinja") in done.stderr


def test_an_inherited_chat_template_stands_beside_the_recipe_that_names_it(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "parent").mkdir()
    (tmp_path / "parent" / "mine.jinja").touch()
    (tmp_path / "parent" / "parent.yaml").write_text(
        "schema: 1\nname: parent\ntitle: t\nextends: v2\nserve: {chat_template: mine.jinja}\n"
    )
    child = tmp_path / "child.yaml"
    child.write_text("schema: 1\nname: child\ntitle: t\nextends: parent/parent.yaml\n")
    done = run("plan", str(child), "--allow-unsafe", "--show", "args")
    assert done.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "--dry-run", "--prepare"),
        ("up", "--solo", "--cluster"),
        ("up", "--dry-run", "--image-id", "sha256:0000"),
        ("up", "--update-image", "--image-id", "sha256:0000"),
        ("plan", "--name", "Not A Name"),
        ("plan", "--name", "main\n"),
        ("plan", "--hardware", "spark", "--name", "A!"),
        ("no-such-command",),
    ],
)
def test_nonsense_exits_two(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_switch_serves_a_recipe_of_several_nodes_on_one_where_it_is_told_to(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = ServedDeployment("main", "v2", 8123, ("qwen",), nodes=("a", "b"))
    asked: list[tuple[Request, object, UpOptions]] = []
    monkeypatch.setattr("sparkdeploy.deploy.nodes.resolve_name_or_none", lambda *_: "main")
    monkeypatch.setattr("sparkdeploy.deploy.request.served_at", lambda *_: served)
    monkeypatch.setattr(deployments, "_deploy", lambda *words, **__: asked.append(words))
    assert run("switch", "qwen3.5-397b-int4").returncode == 0
    assert run("switch", "qwen3.5-397b-int4", "--solo", "--drop-page-cache").returncode == 0
    both, alone = (resolve(it, load_settings()).recipe.cluster.least_nodes for it, *_ in asked)
    assert ([it.cluster for it, *_ in asked], both, alone) == ([True, False], 2, 1)
    assert [how.drop_page_cache for *_, how in asked] == [False, True]


def test_what_is_typed_reaches_up_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        deployments, "_deploy", lambda request, _, how, **more: asked.append((request, how, more))
    )
    words = "--port 8123 --max-len 4096 --name x --public --detach --update-image --json --yes"
    run("up", "v2", *words.split(), "--drop-page-cache", "--allow-unsafe", "--allow-known-bad")
    sets = ("allow_known_bad=true", "allow_unsafe=true", "serve.port=8123")
    request = Request("v2", (*sets, "serve.max_model_len=4096"), Deployment("x", is_public=True))
    how = UpOptions(Extent.DETACH, drop_page_cache=True, update_image=True)
    assert asked.pop() == (request, how, {"yes": True, "as_json": True})
    run("up", "v2", "--prepare", "--image-id", "sha256:0")
    assert asked.pop()[1] == UpOptions(Extent.PREPARE, image_id="sha256:0")


def test_what_is_typed_reaches_what_a_command_does(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, bool]] = []

    def only_asked(*_: object, **more: bool) -> NoReturn:
        asked.append(more)
        raise UnhealthyError("no more is done here")

    for place in ("lifecycle.start", "lifecycle.restart", "lifecycle.roll_back", "removal.down"):
        monkeypatch.setattr(f"sparkdeploy.deploy.{place}", only_asked)
    monkeypatch.setattr("sparkdeploy.deploy.removal.down_all", only_asked)
    for command in ("start", "restart", "rollback"):
        assert run(command, "main", "--drop-page-cache").returncode == 7
    drops, named = {"drop_page_cache": True}, {"is_named": True}
    assert asked == [drops, drops, {**drops, "asks": True, **named}]
    for words in (("rollback", "main"), ("down", "main"), ("down", "--all")):
        assert run(*words, "--yes").returncode == run(*words).returncode == 7
    back = {"drop_page_cache": False, **named}
    assert asked[3:] == [
        {**more, "asks": asks} for more in (back, named, {}) for asks in (False, True)
    ]


def test_a_cluster_without_nodes_is_refused_and_not_deployed_on_one_node(run: Run) -> None:
    done = run("up", "v2", "--cluster")
    assert done.returncode == 3
    assert "names no nodes" in done.stderr
    assert "cluster discover" in done.stderr


@pytest.mark.parametrize("name", ["v2-replaced", "main\n", ""])
def test_a_name_that_would_confuse_is_refused(run: Run, name: str) -> None:
    assert run("plan", "v2", "--name", name).returncode == 2


@pytest.mark.parametrize("assignment", ["extends=mtp-1", "name=x", "schema=2", "serve.port=80"])
def test_set_cannot_change_what_a_recipe_is(run: Run, assignment: str) -> None:
    assert run("plan", "v2", "--set", assignment).returncode == 3
