"""NCCL's own lines: real logs of two releases, recorded as tests/gpu/fabric says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.plan.launch import over
from sparkdeploy.server.log_lines import is_from_nccl, is_nccl_info, lines_of, without_nccl_info
from sparkdeploy.server.phases import read_whole
from tests.unit.server.log_files import recorded

ADAPTERS = ("rocep1s0f1", "roceP2p1s0f1")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("2.28.9-socket", "NET/Socket over lo"),
        ("2.30.4-socket", "NET/Socket over lo"),
        ("2.28.9-fallen-back", "NET/Socket over lo"),
        ("2.30.4-fallen-back", "NET/Socket over lo"),
        ("2.30.4-roce", over("IB", ADAPTERS)),
    ],
)
def test_the_transport_of_a_recorded_start_is_read(name: str, wanted: str) -> None:
    assert read_whole([recorded(f"nccl/{name}")]).facts.transport.describe() == wanted


def test_the_same_lines_count_behind_rays_names_of_processes() -> None:
    log = recorded("nccl/2.30.4-roce").decode().replace("vm:", "(Worker pid=7) spark-2:")
    assert read_whole([log.encode()]).facts.transport.adapters == ADAPTERS


def test_adapters_of_all_nodes_add_up_and_one_that_took_sockets_is_told() -> None:
    """As in the log of a head under Ray, which has the lines of all nodes."""
    own = recorded("nccl/2.30.4-roce").decode()
    other = "".join(
        f"\x1b[36m(RayWorkerWrapper pid=7, ip=10.0.0.2)\x1b[0m {line}\n"
        for line in own.replace("s0f1", "s0f0").splitlines()
    )
    other = other.replace("vm:", "spark-2:")
    both = read_whole([own.encode(), other.encode()]).facts.transport
    assert set(ADAPTERS) < set(both.adapters)
    assert "".join(without_nccl_info([other])).count("NCCL INFO") == 0
    sockets = "(RayWorkerWrapper pid=7, ip=10.0.0.2) s:1:1 [0] NCCL INFO Using network Socket\n"
    mixed = read_whole([sockets.encode(), own.encode()]).facts.transport
    assert mixed.network == "Socket"


def test_a_node_with_fewer_adapters_than_the_others_is_told() -> None:
    own = recorded("nccl/2.30.4-roce").decode()
    other = own.replace("vm:", "spark-2:").replace(" [1]roceP2p1s0f1:1/RoCE", "")
    for log in (own + other, other + own):
        assert read_whole([log.encode()]).facts.transport.describe() == over("IB", ADAPTERS[:1])


def transport_of(*words: str) -> str | None:
    log = "".join(f"s:1:1 [0] {text}\n" for text in words)
    return read_whole([log.encode()]).facts.transport.describe()


@pytest.mark.parametrize(
    ("offered", "names"),
    [
        (
            "[0]={[0] a:1/RoCE, [1] b:1/RoCE} [1]={[2] c:1/RoCE, [3] d:2/RoCE} [RO]; OOB x:1<0>",
            "abcd",
        ),
        ("[0]a:1/RoCE ; OOB nmn0:10.0.0.1<0>", "a"),
        ("[0] a:1/RoCE [1] b:1/IB [RO]; OOB x:1<0>", "ab"),
        ("[0]a:1/RoCE [RO]", "a"),
        # In two pieces, each of which stands as a line.
        ("[0]a:1/RoCE [1]b", ""),
        ("[0]a:1/RoCE", ""),
        ("[RO]; OOB x:1<0>", ""),
    ],
)
def test_adapters_are_read_as_releases_write_them(offered: str, names: str) -> None:
    said = (f"NCCL INFO NET/IB : Using {offered}", "NCCL INFO Using network IB")
    assert transport_of(*said) == over("IB", names)


@pytest.mark.parametrize("path", ["net.cc", "transport/net.cc", "/build/nccl-2.28.3+cuda/net.cc"])
def test_a_warning_is_nccls_wherever_it_was_built(path: str) -> None:
    assert is_from_nccl(f"s:1:1 [0] {path}:12 NCCL WARN x")


def test_a_prompt_that_quotes_nccl_tells_nothing() -> None:
    quoted = b"INFO 01-01 00:00:00 [x.py:1] prompt: 'vm:1:1 [0] NCCL INFO Using network Socket'\n"
    assert read_whole([quoted]).facts.transport.network is None


def test_what_nccl_warns_of_stays_and_its_talk_goes() -> None:
    lines = lines_of(recorded("crashes/nccl_no_rights"))
    left = [line for line in lines if not is_nccl_info(line)]
    assert sum("NCCL WARN" in line for line in lines) == sum("NCCL WARN" in it for it in left) == 5
    assert not any("NCCL INFO" in line for line in left)
    assert any(line.startswith("torch.distributed.DistBackendError") for line in left)


@given(st.lists(st.integers(1, 400), max_size=30))
def test_the_log_is_the_same_wherever_its_pieces_end(sizes: list[int]) -> None:
    text = recorded("nccl/2.30.4-socket").decode() + "no line end"
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    pieces.append(text[at:])
    left = "".join(without_nccl_info(pieces))
    assert left == "".join(without_nccl_info([text]))
    assert left.endswith("no line end")
    assert "NCCL INFO" not in left
