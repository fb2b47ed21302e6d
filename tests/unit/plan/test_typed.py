"""What `plan --show` prints is what a shell would start: read back, it is the very container."""

from __future__ import annotations

import csv
import shlex
import subprocess
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.node.container import LOG_SIZE, ContainerSpec, Mount, Ulimit
from sparkdeploy.plan.observed import ObservedNode
from sparkdeploy.plan.report import arguments_text, container_text, docker_run, typed
from tests.fakes.fabric import node_fact, two_node_plan
from tests.fakes.plans import observed, plan

if TYPE_CHECKING:
    from sparkdeploy.recipe.load import Library


def words_of(text: str) -> list[str]:
    """A shell joins lines that end in a backslash."""
    return shlex.split(text.replace("\\\n", ""))


def read_back(text: str) -> ContainerSpec:
    """The container of a `docker run`, by Docker's rules for what is used here."""
    words = words_of(text)
    assert words[:3] == ["docker", "run", "--detach"]
    options: dict[str, list[str]] = defaultdict(list)
    while words[3].startswith("--"):
        name, _, value = words.pop(3).removeprefix("--").partition("=")
        options[name].append(value)
    image, *command = words[3:]
    mounts = [
        dict(field.partition("=")[::2] for field in row) for row in csv.reader(options["mount"])
    ]
    (log_driver,) = options["log-driver"]
    assert log_driver == "json-file"
    assert dict(option.split("=", 1) for option in options["log-opt"]) == LOG_SIZE
    assert (options["read-only"], options["restart"]) == (["true"], ["no"])
    return ContainerSpec(
        name=options["name"][0],
        image=image,
        entrypoint=tuple(options["entrypoint"]),
        command=tuple(command),
        env=dict(item.split("=", 1) for item in options["env"]),
        mounts=tuple(
            Mount(item["source"], item["target"], "ro" if "readonly" in item else "rw")
            for item in mounts
        ),
        user=options["user"][0],
        gpus="all" if options["gpus"] == ["all"] else "none",
        tmpfs=dict(item.split(":", 1) for item in options["tmpfs"]),
        shm_size_bytes=int(options["shm-size"][0]),
        ulimits=tuple(
            Ulimit(name, int(limits.split(":")[0]))
            for name, limits in (item.split("=") for item in options["ulimit"])
        ),
        devices=tuple(options["device"]),
        network=options["network"][0],
        cap_drop=tuple(options["cap-drop"]),
        cap_add=tuple(options["cap-add"]),
        security_options=tuple(options["security-opt"]),
        stop_timeout_s=int(options["stop-timeout"][0]),
        labels=dict(item.split("=", 1) for item in options["label"]),
    )


def as_docker_sees(spec: ContainerSpec) -> ContainerSpec:
    """An entrypoint of several words is one word and the beginning of the command."""
    first, *more = spec.entrypoint
    return replace(spec, entrypoint=(first,), command=(*more, *spec.command))


@pytest.mark.parametrize("recipe", ["baseline", "hybrid", "mtp-2", "v2", "v2-tq", "dflash"])
def test_the_docker_command_starts_the_container_of_the_plan(shipped: Library, recipe: str) -> None:
    made = plan(shipped, observed(), recipe)
    assert made.head.spec is not None
    assert read_back(container_text(made)) == as_docker_sees(made.head.spec.with_fingerprint())
    serve = made.head.spec.command[made.head.spec.command.index("--") + 1 :]
    assert tuple(words_of(arguments_text(made))) == serve


def test_each_node_of_a_cluster_has_its_command_below_its_name(shipped: Library) -> None:
    made = two_node_plan(shipped, ObservedNode(node_fact(2)))
    first, second = container_text(made).split("\n\n")
    for planned, text in zip(made.nodes, (first, second), strict=True):
        name, _, command = text.partition("\n")
        assert planned.spec is not None
        assert name == f"# {planned.node}"
        assert read_back(command) == as_docker_sees(planned.spec.with_fingerprint())
    silent = replace(made, nodes=(made.head, replace(made.nodes[1], spec=None)))
    assert container_text(silent) == f"{first}\n\n# spark-2: unknown, for it does not answer"


def test_paths_that_a_shell_or_docker_would_cut_stay_whole(shipped: Library) -> None:
    made = plan(shipped, observed())
    assert made.head.spec is not None
    odd = Mount('/home/a b,c"d:e', "/m/hub/x")
    spec = replace(
        made.head.spec, mounts=(odd,), devices=("/dev/infiniband",), cap_add=("IPC_LOCK",)
    )
    assert read_back(docker_run(spec)) == as_docker_sees(spec)


def test_a_shell_reads_what_was_typed() -> None:
    argv = ["--", "it's", 'a "b"', "$HOME", "--json={}", "a\\\n  b", "*", "", "-x", "--flag", "ü\n"]
    shown = subprocess.run(
        ["sh", "-c", typed(["printf", "%s\\0", *argv])], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split("\0")[:-1] == argv


def test_each_flag_begins_a_line() -> None:
    text = typed(["vllm", "serve", "/m", "--port", "1", "--eager", "--list", "a", "b"])
    assert text.splitlines() == [
        "vllm serve /m \\",
        "  --port 1 \\",
        "  --eager \\",
        "  --list a b",
    ]
