"""`plan --hardware` without Docker, GPU or network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdeploy.checkpoint.tiny_model.build import build_tiny_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from tests.hub.double import HubDouble, publish
from tests.unit.conftest import REPOSITORY
from tests.unit.program import Run

pytestmark = [pytest.mark.outside, pytest.mark.usefixtures("no_docker")]


HERE = ("--hardware", "here")


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model at hand."""
    out = tmp_path_factory.mktemp("model") / "twin"
    build_tiny_model(out, TinyShape(vocab=320, experts=2, vision_depth=1), seed=1)
    return out


def test_plan_on_a_spark_prints_memory_and_speed_from_the_facts_file(run: Run) -> None:
    done = run("plan", "v2", "--hardware", "spark", "-v")
    assert done.returncode == 0
    assert "nothing was downloaded" in done.stdout
    assert "vLLM 0.25.1 will log" in done.stdout
    assert "figures that others published" in done.stdout


def test_plan_on_a_spark_computes_no_more_than_fifteen_times_what_its_libraries_take() -> None:
    """Processor time of whole processes: the clock on the wall would measure the neighbours."""
    plan = (
        "sys.argv = ['sparkdeploy', 'plan', 'v2', '--hardware', 'spark']\n"
        "from sparkdeploy.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert 'docker' not in sys.modules"
    )
    told, plan_s = computed(plan)
    _, libraries_s = computed("import typer.main, pydantic")
    assert "reported" in told
    assert plan_s < 15 * libraries_s


def computed(code: str) -> tuple[str, float]:
    """What a program prints, and the seconds of processor time that it took."""
    timed = f"import sys, time\n{code}\nprint(time.process_time(), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", timed], check=True, capture_output=True, text=True, cwd=REPOSITORY
    )
    return done.stdout, float(done.stderr.split()[-1])


def test_plan_for_hardware_gives_json(run: Run) -> None:
    content = run.answer("plan", "v2", "--hardware", "spark", "--json")
    assert content["capacity"]["kv_bytes_per_token"] == 26_624
    assert content["verdict"]["reported_tok_s"] == 51
    assert sum(content["speed"]["bytes"].values()) == content["speed"]["batches"][0]["step_bytes"]


def test_capacity_of_a_model_at_hand_is_read_from_its_headers(run: Run, twin: Path) -> None:
    path = f"model.path={twin}"
    content = json.loads(run("plan", "v2", *HERE, "--json", "--set", path).stdout)["capacity"]
    files = twin.glob("*.safetensors")
    assert content["facts"] == "safetensors headers on this machine"
    assert sum(content["stored_bytes"].values()) < sum(path.stat().st_size for path in files)
    said = run("plan", "v2", *HERE, "--set", path).stdout
    assert "v2: Hybrid" in said
    assert "start: the image" in said


def test_a_plan_says_what_is_set_and_no_variable_s_value(run: Run) -> None:
    words = ("--set", "serve.env={A: hush, B: x}")
    said = " ".join(run("plan", "v2", "--hardware", "spark", *words).stdout.split())
    assert "bytes a step: 14.85 -> 12.12 GB by FP8 of dense layers, LM head back ends: att" in said
    assert "start: 72.4 GB to download; the image" in said
    assert "serve.enable_auto_tool_choice=true, serve.env=A,B, backends.moe=MARLIN, and 2" in said
    assert "hush" not in said


def test_a_model_nobody_knows_ends_with_the_command_that_fetches_it(run: Run) -> None:
    done = run("plan", "v2", "--hardware", "spark", "--set", "model.repo=lab/unknown")
    assert done.returncode == 6
    assert "nothing is known of lab/unknown" in done.stderr


def test_headers_are_read_from_the_hub_and_nothing_else(
    run: Run, twin: Path, tmp_path: Path, hub: HubDouble
) -> None:
    local = json.loads(run("plan", "v2", *HERE, "--json", "--set", f"model.path={twin}").stdout)
    # Its facts are shipped, and the hub is asked all the same.
    publish(hub, twin, "Intel/Qwen3.5-122B-A10B-int4-AutoRound")
    content = run.answer("plan", "v2", "--headers", "--json", "--set", "model.revision=v1")
    assert content["capacity"]["facts"].startswith("safetensors headers on the hub")
    assert content["capacity"]["stored_bytes"] == local["capacity"]["stored_bytes"]
    files = sum(path.stat().st_size for path in twin.glob("*.safetensors"))
    assert hub.body_bytes < files / 10
    assert not (tmp_path / "state").exists()


def test_a_cluster_holds_a_nodes_share_of_weights_and_cache(run: Run) -> None:
    arguments = ("plan", "v2", "--hardware", "spark", "--json")
    alone, one_of_two = run.answer(*arguments), run.answer(*arguments, "--cluster")
    assert "nodes" not in alone
    assert one_of_two["nodes"] == 2
    whole, share = (made["capacity"]["loaded_bytes"] for made in (alone, one_of_two))
    assert share["routed experts"] * 2 == whole["routed experts"]
    assert share["LM head"] == whole["LM head"]
    bytes_a_token = one_of_two["capacity"]["kv_bytes_per_token"]
    assert bytes_a_token * 2 == alone["capacity"]["kv_bytes_per_token"]
    assert one_of_two["capacity"]["available_kv_bytes"] > alone["capacity"]["available_kv_bytes"]


def test_the_speed_of_a_cluster_is_a_bound_beside_no_published_figure(run: Run) -> None:
    arguments = ("plan", "v2", "--hardware", "spark")
    content = run.answer(*arguments, "--cluster", "--json")["speed"]
    whole = run.answer(*arguments, "--json")
    alone = whole["speed"]
    half = content["batches"][0]["step_bytes"] / alone["batches"][0]["step_bytes"]
    assert 0.5 < half < 0.52
    said = run(*arguments, "--cluster", "-v").stdout
    assert "upper bounds: how long the nodes take to exchange results is not known" in said
    assert "reported" not in said


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"pipeline_parallel": 2}, "tensor 2 x pipeline 2 x data 1"),
        ({"tensor_parallel": 1, "data_parallel": 3}, "each of the 3 copies of the model serves"),
    ],
)
def test_an_estimate_follows_the_parallel_sizes(run: Run, sizes: dict[str, int], said: str) -> None:
    changes = [word for key, n in sizes.items() for word in ("--set", f"cluster.{key}={n}")]
    done = run("plan", "v2", "--hardware", "spark", "--cluster", *changes)
    assert said in done.stdout


def test_speculation_of_a_cluster_is_what_its_estimate_is_for(run: Run) -> None:
    off = ("--set", "cluster.speculative=off")
    content = run.answer("plan", "v2", "--hardware", "spark", "--cluster", "--json", *off)
    assert "MTP experts" not in content["capacity"]["loaded_bytes"]
    assert content["speed"]["tokens_per_step"] == 1


def test_sizes_that_no_nodes_serve_are_refused_as_up_refuses_them(run: Run) -> None:
    sizes = ("--set", "cluster.data_parallel=2")
    done = run("plan", "v2", "--hardware", "spark", "--cluster", *sizes)
    assert done.returncode == 3
    assert "one copy of the model takes 2 GPUs" in done.stderr


def test_what_others_reported_is_of_the_recipe_as_it_is(run: Run) -> None:
    arguments = ("plan", "v2", "--hardware", "spark")
    assert "51 tok/s" in run(*arguments).stdout
    assert "reported" not in run("plan", "v2", "--hardware", "h200").stdout
    assert "51 tok/s" in run(*arguments, "--port", "8011", "--set", "model.served_name=x").stdout
    for changed in ("serve.max_num_seqs=2", "checkpoint.lm_head=bf16"):
        assert "reported" not in run(*arguments, "--set", changed).stdout.replace(
            "were reported", ""
        )
    both = run("plan", "minimax-m2.7", "--hardware", "spark", "--cluster").stdout
    assert "24.3 tok/s" in both


def test_no_speed_is_promised_of_a_model_of_some_megabytes(run: Run, twin: Path) -> None:
    done = run("plan", "baseline", "--hardware", "spark", "--set", f"model.path={twin}")
    assert "its speed is not known" in done.stdout


def test_a_named_machine_is_judged_as_the_one_at_hand(run: Run) -> None:
    spark = ("--hardware", "spark")
    assert run("plan", "v2", "--hardware", "h100").returncode == 4
    pair = run("plan", "minimax-m2.7", *spark)
    assert "fits on 2 x NVIDIA DGX Spark" in pair.stdout
    assert "(--cluster)" in pair.stdout
    assert (
        "does not fit on NVIDIA DGX Spark" in run("plan", "minimax-m2.7", "--solo", *spark).stdout
    )
    assert "needs the B12X build of vLLM" in run("plan", "glm-5.3-flash", *spark).stdout
    table_on_disk = run("plan", "qwen3.8-flash-next-solo", *spark)
    assert table_on_disk.returncode == 0
    for recipe in ("qwen3.6-35b-nvfp4", "gpt-oss-120b-mxfp4"):
        there = run("plan", recipe, *spark).stdout.splitlines()
        here = run("plan", recipe).stdout
        marked = [it for it in there if it.startswith(("  x ", "  ! "))]
        assert [it for it in marked if it not in here] == []
        assert recipe != "qwen3.6-35b-nvfp4" or marked


def test_a_machine_may_be_named_by_its_gpu(run: Run) -> None:
    by_name = run("plan", "v2", "--hardware", "spark")
    assert run("plan", "v2", "--hardware", "GB10") == by_name


def test_a_context_that_does_not_fit_is_refused_alike(run: Run) -> None:
    words = ("--set", "serve.gpu_memory_utilization=0.61", "--json")
    there = run("plan", "v2", "--hardware", "spark", *words)
    assert there.returncode == 4
    told = json.loads(there.stdout)
    assert ["machine.room" in str(told[kind]) for kind in ("problems", "warnings")] == [True, False]
