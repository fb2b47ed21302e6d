"""What a container must see of the adapters before a launch, and each thing that may be wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy.checks.rdma import RdmaFact, chosen_adapters, rdma_checks, read_devinfo, read_rdma
from sparkdeploy.checks.report import Finding, Verdict
from sparkdeploy.image.inside import rdma
from tests.fakes.adapters import DEVINFO, SOUND
from tests.fakes.fabric import sparks
from tests.verbs import build_stand_in

NODE = sparks(2).nodes[0]
DEVICES = "rocep1s0f1=192.168.177.11,roceP2p1s0f1=192.168.178.11"
GID = 3


def fact(**changes: object) -> RdmaFact:
    seen = read_rdma(json.dumps({**SOUND, "devinfo": DEVINFO, **changes}))
    assert seen is not None
    return seen


def env(gid_index: object = GID, adapters: str = "rocep1s0f1,roceP2p1s0f1") -> dict[str, str]:
    return {"NCCL_IB_HCA": adapters, "NCCL_IB_GID_INDEX": str(gid_index)}


def objections(seen: RdmaFact, gid_index: object = GID) -> list[Finding]:
    return [
        check
        for check in rdma_checks(NODE, seen, env(gid_index))
        if check.verdict is not Verdict.OK
    ]


def test_two_sound_adapters_have_nothing_to_object() -> None:
    assert objections(fact()) == []
    assert len(list(rdma_checks(NODE, fact(), env()))) == 8


MESSAGES = {
    "a library is missing": (
        fact(missing={"libibverbs.so.1": "libibverbs.so.1: cannot open shared object file"}),
        "spark-1: RDMA libraries of the image: libibverbs.so.1: cannot open shared object file, "
        "expected libibverbs and the provider of mlx5",
    ),
    "the provider is missing": (
        fact(missing={"libmlx5-rdmav*.so": "/usr/lib/aarch64-linux-gnu/libibverbs has none"}),
        "spark-1: RDMA libraries of the image: /usr/lib/aarch64-linux-gnu/libibverbs has none, "
        "expected libibverbs and the provider of mlx5",
    ),
    "no rights": (
        fact(nodes={"/dev/infiniband/uverbs0": "Permission denied"}),
        "spark-1: /dev/infiniband in the container: user 1000:1000 may not open "
        "/dev/infiniband/uverbs0: Permission denied, expected user 1000:1000 may open it",
    ),
    "no device files": (
        fact(nodes={}),
        "spark-1: /dev/infiniband in the container: no adapter in it, "
        "expected user 1000:1000 may open it",
    ),
    "a limit of memory": (
        fact(memlock_bytes=8 * 2**20),
        "spark-1: memory that may be locked: 8.4 MB, expected unlimited",
    ),
    "a port is down": (
        fact(devinfo=DEVINFO.replace("PORT_ACTIVE (4)", "PORT_DOWN (1)", 1)),
        "spark-1: rocep1s0f1 in the container: PORT_DOWN, expected PORT_ACTIVE",
    ),
    "another adapter": (
        fact(devinfo=DEVINFO.replace("roceP2p1s0f1", "mlx5_9")),
        "spark-1: roceP2p1s0f1 in the container: not seen; it sees: rocep1s0f1, mlx5_9, "
        "expected an adapter",
    ),
    "no adapter": (
        fact(devinfo="No IB devices found\n"),
        "spark-1: rocep1s0f1 in the container: not seen; it sees: none, expected an adapter",
    ),
    "no adapter that opens": (
        fact(devinfo="Failed to open device\nFailed to open device\n"),
        "spark-1: rocep1s0f1 in the container: not seen; it sees: none, expected an adapter",
    ),
    "InfiniBand": (
        fact(devinfo=DEVINFO.replace("Ethernet", "InfiniBand", 1)),
        "spark-1: rocep1s0f1 in the container: InfiniBand, expected Ethernet",
    ),
    "small packets": (
        fact(devinfo=DEVINFO.replace("active_mtu:\t\t4096 (5)", "active_mtu:\t\t1024 (3)", 1)),
        "spark-1: rocep1s0f1 packets: 1024 bytes, expected 4096 bytes",
    ),
    "RoCE v1": (
        fact(
            devinfo=DEVINFO.replace(
                "::ffff:192.168.177.11, RoCE v2", "::ffff:192.168.177.11, RoCE v1"
            )
        ),
        "spark-1: rocep1s0f1 GID 3: RoCE v1 of 192.168.177.11, expected RoCE v2 of 192.168.177.11",
    ),
    "another address": (
        fact(devinfo=DEVINFO.replace("::ffff:192.168.177.11", "::ffff:169.254.3.4")),
        "spark-1: rocep1s0f1 GID 3: RoCE v2 of 169.254.3.4, expected RoCE v2 of 192.168.177.11",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_wrong_has_a_message_of_its_own_and_a_fix(name: str) -> None:
    seen, message = MESSAGES[name]
    first = objections(seen)[0]
    assert first.seen == message
    assert first.fix
    assert first.verdict == (Verdict.WARN if name == "small packets" else Verdict.FAIL)


def test_a_number_for_all_nodes_is_never_proposed() -> None:
    first = objections(fact(), gid_index=1)[0]
    assert first.seen.startswith("spark-1: rocep1s0f1 GID 1: RoCE v2 of fe80::1, expected")
    assert first.fix is not None
    assert first.fix.endswith("a NCCL_IB_GID_INDEX that you typed goes before it: leave that out")
    assert "--set" not in first.fix
    assert ": not set, expected" in objections(fact(), gid_index=9)[0].seen


@pytest.mark.parametrize("index", ["-1", "auto", ""])
def test_where_nccl_looks_for_a_gid_itself_none_is_held_against_it(index: str) -> None:
    assert objections(fact(), gid_index=index) == []


def test_an_adapter_that_the_recipe_leaves_out_is_not_looked_at() -> None:
    down = fact(devinfo=DEVINFO.replace("hca_id:\troceP2p1s0f1", "hca_id:\tmlx5_9"))
    found = rdma_checks(NODE, down, env(adapters="=rocep1s0f1:1"))
    assert [check for check in found if check.verdict is not Verdict.OK] == []


@pytest.mark.parametrize(
    ("devinfo", "value"),
    [
        (None, "no ibv_devinfo in it"),
        ("\n", "ibv_devinfo printed nothing"),
        ("a\nibv_devinfo did not end within 10 s\n", "ibv_devinfo did not end within 10 s"),
    ],
)
def test_adapters_that_could_not_be_looked_at_are_not_accused(
    devinfo: str | None, value: str
) -> None:
    (check,) = objections(fact(devinfo=devinfo))
    assert (check.verdict, check.seen) == (
        Verdict.NOT_SEEN,
        f"spark-1: adapters in the image: {value}",
    )


@pytest.mark.parametrize(
    ("told", "chosen"),
    [
        ("roce", ("rocep1s0f1", "roceP2p1s0f1")),
        ("", ("rocep1s0f1", "roceP2p1s0f1")),
        (" rocep1s0f1 , roceP2p1s0f1:1", ("rocep1s0f1", "roceP2p1s0f1")),
        ("=rocep1s0f1", ("rocep1s0f1",)),
        ("=roce", ("roce",)),
        ("^rocep1", ("roceP2p1s0f1",)),
        ("^=rocep1", ("rocep1s0f1", "roceP2p1s0f1")),
        ("^roce", ()),
        ("rocep1,mlx5_9", ("rocep1s0f1", "mlx5_9")),
    ],
)
def test_nccl_s_rules_say_which_adapters_are_meant(told: str, chosen: tuple[str, ...]) -> None:
    assert chosen_adapters({"NCCL_IB_HCA": told}, ("rocep1s0f1", "roceP2p1s0f1")) == chosen


@pytest.mark.parametrize("told", ["rocep1s0f9", "^roce", "=roce"])
def test_a_choice_that_leaves_no_adapter_is_told(told: str) -> None:
    (check,) = [
        it for it in rdma_checks(NODE, fact(), env(adapters=told)) if it.verdict is not Verdict.OK
    ]
    none = f"NCCL_IB_HCA={told}: it means none of: rocep1s0f1, roceP2p1s0f1"
    assert (check.verdict, check.seen) == (Verdict.FAIL, f"spark-1: {none}, expected an adapter")


def test_an_adapter_of_the_recipes_own_is_looked_for_in_the_container() -> None:
    seen = fact(devinfo=DEVINFO.replace("rocep1s0f1", "mlx5_0"))
    found = rdma_checks(NODE, seen, env(adapters="mlx5"))
    assert [check.seen for check in found if check.verdict is not Verdict.OK] == []


def test_adapters_named_by_their_beginning_are_looked_at() -> None:
    down = fact(devinfo=DEVINFO.replace("PORT_ACTIVE (4)", "PORT_DOWN (1)"))
    found = rdma_checks(NODE, down, env(adapters="roce"))
    failed = [check.seen for check in found if check.verdict is Verdict.FAIL]
    assert [": PORT_DOWN, expected" in seen for seen in failed] == [True] * 2


@pytest.mark.parametrize(
    "text",
    ["", '{"missing": {}, "user', "[1,2]", "null", "{}", json.dumps({**SOUND, "devinfo": 3})],
)
def test_an_answer_of_another_shape_is_none(text: str) -> None:
    assert read_rdma(text) is None


@pytest.mark.parametrize(
    "text", ["", "garbage", "hca_id:\tx\n", "hca_id:\tx\n\tGID[  3]:\t\tz, RoCE v2"]
)
def test_text_of_another_shape_is_no_bug(text: str) -> None:
    for adapter in read_devinfo(text):
        assert (adapter.name, adapter.state, adapter.mtu_bytes) == ("x", "unknown", None)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libibverbs that plays two adapters."""
    if shutil.which("ibv_devinfo") is None:
        pytest.skip("ibv_devinfo is not installed (Debian's ibverbs-utils)")
    return build_stand_in(tmp_path_factory.mktemp("verbs"))


def look(stand_in: Path, fault: str = "") -> RdmaFact:
    """Run the program as a container would, with the real ibv_devinfo."""
    env = {
        "LD_LIBRARY_PATH": str(stand_in),
        "PATH": "/usr/bin:/bin",
        "STAND_IN_DEVICES": DEVICES,
        "STAND_IN_FAULT": fault,
    }
    argv = [sys.executable, "-I", "-c", Path(rdma.__file__).read_text()]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    line = done.stdout.splitlines()[-1]
    seen = read_rdma(line.removeprefix(rdma.MARK))
    assert seen is not None
    return seen


@pytest.mark.outside
def test_the_real_ibv_devinfo_is_read_with_adapters_that_a_library_plays(stand_in: Path) -> None:
    seen = look(stand_in)
    # This machine has no provider beside the stand-in, no device files and limits of its own.
    assert list(seen.missing) == [rdma.PROVIDER]
    sound = replace(fact(), devinfo=seen.devinfo)
    assert objections(sound) == []


@pytest.mark.outside
@pytest.mark.parametrize(
    ("fault", "value"),
    [
        ("denied", "not seen; it sees: none"),
        ("down", "PORT_DOWN"),
        ("mtu", "1024 bytes"),
        ("v1", "RoCE v1 of 192.168.177.11"),
    ],
)
def test_what_a_library_plays_is_told(stand_in: Path, fault: str, value: str) -> None:
    sound = replace(fact(), devinfo=look(stand_in, fault).devinfo)
    assert f": {value}, expected" in objections(sound)[0].seen


@pytest.mark.outside
def test_a_library_that_cannot_be_opened_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / rdma.LIBRARY).write_text("no library")
    seen = look(tmp_path)
    assert list(seen.missing) == [rdma.LIBRARY]
    assert "RDMA libraries of the image" in objections(seen)[0].seen
