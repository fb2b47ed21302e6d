"""Root causes, from recorded crashes."""

import pytest

from sparkdeploy.server.crash import (
    Cause,
    decisive,
    end_before_restart,
    guard_events,
    log_tail,
    root_cause,
    signatures,
    tracebacks,
)
from sparkdeploy.server.log_lines import GUARD_MARK, guard_report, read_line
from tests.unit.server.log_files import (
    HEALTHY,
    healthy_logs,
    recorded,
    recorded_crashes,
    reported_crashes,
)

EXIT_CODES = {"memory_floor": 86}
"""Of recorded crashes; all others ended with 1."""
TRIP = (
    'sparkdeploy-guard: {"event": "memory_floor", "mem_available_bytes": 5000000000,'
    ' "floor_bytes": 4294967296, "exit_code": 86}'
)
RESTART = 'sparkdeploy-guard: {"event": "restart", "exit_code": 1, "restart": 1}'


def cause_of(log: str | bytes, exit_code: int | None = 1, *, oom_killed: bool = False) -> Cause:
    text = log.decode(errors="replace") if isinstance(log, bytes) else log
    return root_cause(text, exit_code, oom_killed=oom_killed)


@pytest.mark.parametrize("name", recorded_crashes())
def test_a_recorded_crash_gets_its_cause(name: str) -> None:
    log = recorded(f"crashes/{name}").decode()
    cause = cause_of(log, EXIT_CODES.get(name, 1))
    assert cause.name == name.partition("-")[0]
    assert cause.meaning
    assert cause.name == "memory_floor" or cause.line in log


@pytest.mark.parametrize(
    "name", [*HEALTHY, "cpu-0.32-stopped", *(f"healthy/{name}" for name in healthy_logs())]
)
def test_what_sounds_bad_and_is_not_raises_no_alarm(name: str) -> None:
    log = recorded(name)
    assert cause_of(log, 143).name == "exit_143"
    assert cause_of(log, 3).name not in {signature.name for signature in signatures()}


@pytest.mark.parametrize("told", reported_crashes(), ids=lambda told: told["cause"])
def test_the_lines_that_owners_quote_get_their_cause(told: dict[str, str]) -> None:
    cause = cause_of(told["log"])
    assert cause.name == told["cause"]
    assert told.get("line", cause.line) == cause.line
    assert cause.hint or cause.name == "exception"
    coloured = "\n".join(f"\x1b[1;36m{line}\x1b[0m" for line in told["log"].splitlines())
    assert cause_of(coloured) == cause
    # The same behind what every start logs, which has words like these in it.
    assert cause_of(recorded("cpu-0.32-mtp").decode() + told["log"]) == cause


def test_every_signature_has_a_recorded_crash() -> None:
    names = {name.partition("-")[0] for name in recorded_crashes()}
    names |= {told["cause"] for told in reported_crashes()}
    assert {signature.name for signature in signatures()} <= names


def test_the_engines_own_error_is_preferred_over_the_servers_echo() -> None:
    cause = cause_of(recorded("crashes/exception"))
    assert cause.line == "ZeroDivisionError: division by zero"


def test_of_chained_exceptions_the_first_is_the_cause() -> None:
    trace = decisive(
        tracebacks(
            read_line(text)
            for text in (
                "Traceback (most recent call last):",
                '  File "a.py", line 1, in f',
                "KeyError: 'depth'",
                "During handling of the above exception, another exception occurred:",
                "Traceback (most recent call last):",
                '  File "b.py", line 1, in g',
                "RuntimeError: cannot go on",
            )
        )
    )
    assert trace is not None
    assert trace.exceptions == ["KeyError: 'depth'", "RuntimeError: cannot go on"]


def test_tracebacks_of_two_processes_are_told_apart_when_interleaved() -> None:
    lines = [
        "(A pid=1) Traceback (most recent call last):",
        "(B pid=2) Traceback (most recent call last):",
        '(A pid=1)   File "a.py", line 1, in f',
        '(B pid=2)   File "b.py", line 1, in f',
        "(A pid=1) ValueError: a",
        "(B pid=2) TypeError: b",
    ]
    found = tracebacks(read_line(text) for text in lines)
    assert [(trace.origin, trace.exceptions) for trace in found] == [
        ("A", ["ValueError: a"]),
        ("B", ["TypeError: b"]),
    ]


def test_the_kernels_out_of_memory_kill_is_named_as_such() -> None:
    assert cause_of(recorded("cpu-0.32-mtp"), 137, oom_killed=True).name == "oom_killed"


def test_a_process_that_says_why_it_ends_was_not_killed_from_outside() -> None:
    log = "Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: its own words\n"
    log += "ERROR 11-20 10:00:00 [x.py:1] Worker proc VllmWorker-1 died unexpectedly\n"
    assert cause_of(log).line == "ValueError: its own words"


@pytest.mark.parametrize(
    ("exit_code", "word"),
    [(129, "session"), (137, "SIGKILL"), (143, "earlyoom"), (159, "seccomp"), (255, "machine")],
)
def test_an_end_from_outside_is_known_by_its_code(exit_code: int, word: str) -> None:
    """What was survived before leaves a traceback, which is not what ended it."""
    survived = "Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: survived\n"
    cause = cause_of(survived, exit_code)
    assert cause.name == f"exit_{exit_code}"
    assert word in f"{cause.meaning} {cause.hint}"


def test_the_guards_trip_says_how_much_was_left() -> None:
    cause = cause_of(recorded("crashes/memory_floor"), 86)
    assert cause.line == "4.8 GiB were available, the floor is 4.0 GiB"


def test_a_trip_by_the_driver_s_word_says_so() -> None:
    trip = 'sparkdeploy-guard: {"event": "memory_floor", "mem_available_bytes": 23622320128, '
    cause = cause_of(trip + '"driver": "NV_ERR_NO_MEMORY", "exit_code": 86}\n', 86)
    said = "the GPU's driver got no memory (NV_ERR_NO_MEMORY); 22.0 GiB were available"
    assert cause.line == said


def test_a_child_that_writes_the_guards_line_is_not_believed() -> None:
    log = f"{TRIP}\nfatal error: it was me\n"
    assert cause_of(log, 1).name != "memory_floor"
    assert cause_of(log, 1).line == "fatal error: it was me"
    assert cause_of(TRIP, 137, oom_killed=True).name == "oom_killed"
    assert guard_events(log, 1) == []
    assert guard_events(log + log, 86) == ["memory_floor"]


@pytest.mark.parametrize("event", ["refused", "cannot_run"])
def test_a_prompt_that_quotes_a_failure_of_the_guards_is_not_the_cause(event: str) -> None:
    failure = TRIP.replace("memory_floor", event)
    assert cause_of(f"prompt: {failure}\nfatal error: x\n", 1).line == "fatal error: x"
    assert cause_of(f"{failure}\nfatal error: x\n", 1).line == failure


OLDER = "s:1:1 [0] net.cc:345 NCCL WARN Error: network IB not found."
TORCH = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, invalid usage"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("s:1:1 [0] NCCL INFO Failed to open libibverbs.so[.1]", "nccl_no_library"),
        ("s:1:1 [0] p2p.cc:1 NCCL WARN NET/IB : Unable to open device mlx5_0", "nccl_no_rights"),
        ("s:1:1 [0] NCCL INFO NET/IB : No device found.", "nccl_no_adapter"),
    ],
)
def test_an_older_nccl_has_the_same_causes_in_other_words(line: str, cause: str) -> None:
    assert root_cause(f"{line}\n{OLDER}\n{TORCH}\n", 1, oom_killed=False).name == cause


@pytest.mark.parametrize(
    "warning",
    [
        "couldn't open config directory '/etc/libibverbs.d'.",
        "couldn't load driver 'libmlx5-rdmav34.so': cannot open shared object file",
        "no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0",
    ],
)
def test_a_provider_that_is_missing_is_no_matter_of_the_cable(warning: str) -> None:
    log = f"libibverbs: Warning: {warning}\ns:1:1 [0] NCCL INFO NET/IB : No device found.\n{OLDER}"
    assert root_cause(log, 1, oom_killed=False).name == "nccl_no_library"


def test_a_prompt_that_quotes_nccl_is_not_the_cause() -> None:
    quoted = "s:1:1 [0] NCCL WARN Call to ibv_modify_qp failed: NCCL error"
    log = (
        f"INFO 11-22 10:00:00 [logger.py:1] Received request: prompt: '{quoted}'\n"
        f"INFO 11-22 10:00:00 [logger.py:1] {quoted}\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in <module>\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert root_cause(log, 1, oom_killed=False).name == "cuda_oom"


def test_the_guards_own_restart_ends_what_came_before() -> None:
    assert end_before_restart(f"a\n{RESTART}\nb")[:2] == ("a", 1)


def test_a_memory_that_is_too_large_for_a_number_is_no_bug() -> None:
    trip = TRIP.replace("5000000000", "9" * 400)
    assert cause_of(trip, 86).line == "? were available, the floor is 4.0 GiB"


def test_every_signature_has_a_name_of_its_own_and_a_way_out() -> None:
    assert len({signature.name for signature in signatures()}) == len(signatures())
    assert all(signature.hint and signature.meaning for signature in signatures())


def test_the_tail_shows_the_last_lines_without_colours() -> None:
    assert log_tail("a\n\x1b[31mb\x1b[0m\n\nc\n", 2) == "b\nc"


@pytest.mark.parametrize(
    ("behind", "report"),
    [('{"event": "x"}', {"event": "x"}), ("{", {}), ("[1]", {}), ("[" * 9000, {}), ("1", {})],
)
def test_a_line_of_the_guard_is_the_object_behind_its_mark(
    behind: str, report: dict[str, str]
) -> None:
    assert guard_report(GUARD_MARK + behind) == report


@pytest.mark.parametrize("event", ["[]", "{}", "null", "0", '"refused'])
def test_no_event_of_the_guard_is_a_bug(event: str) -> None:
    line = f'{GUARD_MARK}{{"event": {event}, "error": 1}}'
    assert cause_of(f"{line}\nfatal error: x\n", 1).line == "fatal error: x"


@pytest.mark.parametrize(
    "before", ["INFO 11-20 10:00:00 [logger.py:1] ", "(APIServer pid=7) ", "prompt: ", " "]
)
def test_the_mark_within_a_line_is_a_quotation(before: str) -> None:
    assert guard_report(f'{before}{GUARD_MARK}{{"event": "x"}}') == {}
