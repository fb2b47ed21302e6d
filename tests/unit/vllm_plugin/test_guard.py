"""The guard with real child processes and a meminfo file of our own."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from sparkdeploy_vllm.guard.supervision import POLL_S

from tests.unit.vllm_plugin.guarded import (
    GIB,
    PLUGIN_TREE,
    Start,
    events,
    finish,
    is_running,
    set_available,
    wait_for,
)

pytestmark = pytest.mark.outside


@pytest.mark.parametrize("code", [86, 87, 88])
def test_a_child_cannot_pass_its_own_end_off_as_the_guard_s(start: Start, code: int) -> None:
    """As a memory trip, a hang or idleness."""
    ended, _, stderr = finish(start(f"raise SystemExit({code})"))
    assert ended == 1
    said = {"event": "ended_with_the_guards_code", "child_exit_code": code, "exit_code": 1}
    assert events(stderr) == [said]


def test_a_child_killed_by_a_signal_is_128_plus_its_number(start: Start) -> None:
    assert finish(start("import os; os.kill(os.getpid(), 9)"))[0] == 137


def test_a_command_that_does_not_exist_is_127(start: Start) -> None:
    guard = subprocess.run(
        [sys.executable, "-m", "sparkdeploy_vllm.guard", "--", "/no/such/program"],
        env={**os.environ, "PYTHONPATH": str(PLUGIN_TREE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert guard.returncode == 127
    assert events(guard.stderr)[0]["command"] == "/no/such/program"


def test_what_an_image_says_of_another_node_is_left_out() -> None:
    image = {"NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_IFNAME": "enp1", "GLOO_SOCKET_IFNAME": "enp1"}
    guard = subprocess.run(
        [
            *(sys.executable, "-m", "sparkdeploy_vllm.guard", "--node-env", "GLOO_SOCKET_IFNAME"),
            *(
                "--",
                sys.executable,
                "-c",
                f"import os; print(sorted({{*os.environ}} & {{*{[*image]}}}))",
            ),
        ],
        env={**os.environ, **image, "PYTHONPATH": str(PLUGIN_TREE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert guard.stdout.strip() == "['GLOO_SOCKET_IFNAME']"


LAX_PARENT = """
import resource, signal
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
"""


def test_the_child_leads_a_session_of_its_own_and_leaves_no_core(start: Start) -> None:
    """Whatever the guard's own parent was like."""
    script = """
    import os, resource
    print(os.getpid() == os.getsid(0) == os.getpgid(0), resource.getrlimit(resource.RLIMIT_CORE)[0])
    raise SystemExit(3)
    """
    code, said, _ = finish(start(script, before=LAX_PARENT))
    assert (code, said in {"True 0\n", "True 1\n"}) == (3, True)


def test_orphans_are_reaped_while_the_child_lives(start: Start) -> None:
    guard = start(
        """
        import os, time
        reader, writer = os.pipe()
        if os.fork() == 0:
            pid = os.fork()
            if pid == 0:
                time.sleep(0.2); os._exit(0)
            os.write(writer, str(pid).encode()); os._exit(0)
        os.wait()
        orphan = int(os.read(reader, 20))
        deadline = time.monotonic() + 5
        while os.path.exists(f"/proc/{orphan}") and time.monotonic() < deadline:
            time.sleep(0.02)
        raise SystemExit(4 if os.path.exists(f"/proc/{orphan}") else 3)
        """
    )
    assert finish(guard)[0] == 3


def test_below_floor_plus_one_gib_everything_dies_with_86_and_one_line(
    start: Start, meminfo: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    guard = start(
        f"""
        import os, pathlib, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        runaway = os.fork()
        if runaway == 0:
            os.setsid()  # what Ray does: out of the group
            if os.fork():
                os._exit(0)  # and orphaned
            pathlib.Path({str(pids)!r}).write_text(f"{{os.getppid()}} {{os.getpid()}}")
            time.sleep(60)
        os.wait()
        time.sleep(60)
        """,
        *("--memory-floor-bytes", str(2 * GIB), "--meminfo", str(meminfo), "--max-restarts", "3"),
    )
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    runaway = int(pids.read_text().split()[1])
    set_available(meminfo, 3 * GIB)
    time.sleep(0.3)
    assert guard.poll() is None
    set_available(meminfo, 3 * GIB - 1024)
    code, _, stderr = finish(guard)
    assert code == 86
    trips = [event for event in events(stderr) if event["event"] == "memory_floor"]
    assert len(trips) == 1
    assert trips[0]["mem_available_bytes"] == 3 * GIB - 1024
    assert trips[0]["floor_bytes"] == 2 * GIB
    assert not is_running(runaway)
    # A busy machine may keep any process waiting; the guard itself rests this long between looks.
    assert POLL_S < 0.5 / 2


NVRM = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x51)\n"


@pytest.mark.parametrize(
    ("before", "then", "ends"),
    [
        ("", f"4,1,2,-;{NVRM}", True),
        (f"4,1,2,-;{NVRM}", "6,2,3,-;usb 1-1: new device\n", False),
        ("", "4,1,2,-;app: NV_ERR_NO_MEMORY\n4,1,3,-;NVRM: Xid 31\n", False),
        (None, "", False),
    ],
)
def test_what_the_driver_says_of_memory_from_now_on_ends_everything(
    start: Start, meminfo: Path, tmp_path: Path, before: str | None, then: str, ends: bool
) -> None:
    """A file stands in for /dev/kmsg; where there is none, nothing is read."""
    log = tmp_path / "kmsg"
    if before is not None:
        log.write_text(before)
    set_available(meminfo, 40 * GIB)
    guard = start(
        "import time; print('up', flush=True); time.sleep(60)",
        *("--memory-floor-bytes", str(2 * GIB), "--meminfo", str(meminfo)),
        *("--kernel-log", str(log)),
    )
    assert guard.stdout is not None
    guard.stdout.readline()
    if before is not None:
        with log.open("a") as file:
            file.write(then)
    if not ends:
        time.sleep(4 * POLL_S)
        guard.terminate()
    code, _, stderr = finish(guard)
    trips = [event for event in events(stderr) if event["event"] == "memory_floor"]
    assert [trip["driver"] for trip in trips] == (["NV_ERR_NO_MEMORY"] if ends else [])
    assert (code == 86) is ends


def test_the_key_reaches_the_child_s_environment_and_nothing_else(
    start: Start, tmp_path: Path
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("  sk-secret-4711\n")
    guard = start(
        """
        import os, pathlib
        guard = pathlib.Path(f"/proc/{os.getppid()}")
        seen = (guard / "cmdline").read_bytes()
        try:
            seen += (guard / "environ").read_bytes()
        except PermissionError:
            pass  # Only root in full may look.
        key = os.environ["VLLM_API_KEY"]
        print(key, key.encode() in seen)
        raise SystemExit(3)
        """,
        *("--key-file", str(key_file)),
    )
    code, stdout, stderr = finish(guard)
    assert (code, stdout) == (3, "sk-secret-4711 False\n")
    assert "4711" not in stderr


@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_key_file_is_refused_before_anything_starts(
    start: Start, tmp_path: Path, content: str
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(content)
    code, stdout, stderr = finish(start("print('ran')", "--key-file", str(key_file)))
    assert (code, stdout) == (2, "")
    assert "empty" in events(stderr)[0]["error"]


class _Healthy(BaseHTTPRequestHandler):
    judged: Path

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 500)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.connection.recv(1)  # The guard hangs up once it has read the answer.
        self.judged.touch()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A file that is there once the guard has read an answer of the server."""
    return tmp_path / "judged"


@pytest.fixture
def server_port(judged: Path) -> Iterator[int]:
    handler = type("Handler", (_Healthy,), {"judged": judged})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


COUNT_AND_DIE = """
import os, time
with open({starts!r}, "a") as file: file.write("x")
while not os.path.exists({judged!r}): time.sleep(0.01)
raise SystemExit(5)
"""


def test_a_child_that_was_healthy_is_restarted_that_often_and_no_more(
    start: Start, tmp_path: Path, server_port: int, judged: Path
) -> None:
    starts = tmp_path / "starts"
    guard = start(
        COUNT_AND_DIE.format(starts=str(starts), judged=str(judged)),
        *("--max-restarts", "2", "--health-url", f"http://127.0.0.1:{server_port}/health"),
    )
    code, _, stderr = finish(guard)
    assert (code, starts.read_text()) == (5, "xxx")
    restarts = [event["restart"] for event in events(stderr) if event["event"] == "restart"]
    assert restarts == [1, 2]


@pytest.mark.parametrize("path", ["/health", "/broken"])
def test_a_child_that_never_was_healthy_is_not_restarted(
    start: Start, tmp_path: Path, server_port: int, judged: Path, path: str
) -> None:
    port = 1 if path == "/health" else server_port  # nobody listens on port 1
    starts = tmp_path / "starts"
    guard = start(
        COUNT_AND_DIE.format(starts=str(starts), judged=str(judged)),
        *("--max-restarts", "2", "--health-url", f"http://127.0.0.1:{port}{path}"),
    )
    if port == 1:
        wait_for(starts.exists)
        time.sleep(0.3)  # a question that nobody hears leaves no trace: time for two turns
        judged.touch()
    assert finish(guard)[0] == 5
    assert starts.read_text() == "x"


def test_importing_the_guard_imports_neither_torch_nor_vllm() -> None:
    script = (
        "import sys, sparkdeploy_vllm.guard, sparkdeploy_vllm.key_middleware\n"
        "assert not {'torch', 'vllm', 'subprocess'} & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(PLUGIN_TREE)}
    subprocess.run([sys.executable, "-S", "-c", script], env=env, check=True)


MEASURED_LOOP = """
import resource, sys
from pathlib import Path
from sparkdeploy_vllm.guard import supervision
from sparkdeploy_vllm.guard.supervision import AvailableMemory

WARM_UP, LOOPS = 200, 1000
supervision.POLL_S = 0.0001

class Counting(AvailableMemory):
    loops = 0
    before = (0, 0)
    after = (0, 0)

    def read_bytes(self):
        self.loops += 1
        if self.loops in (WARM_UP - 2, WARM_UP - 1, WARM_UP):
            self.before = measured()  # the first ones take what a measurement itself needs
        elif self.loops == WARM_UP + LOOPS:
            self.after = measured()
            print(self.after[0] - self.before[0], self.after[1] - self.before[1], flush=True)
            return 0
        return super().read_bytes()

def measured():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return sys.getallocatedblocks(), usage.ru_minflt + usage.ru_majflt

supervision.AvailableMemory = Counting
options = ["--memory-floor-bytes", "1", "--health-url", "http://127.0.0.1:9/health"]
raise SystemExit(supervision.main([*options, "--", "sleep", "600"]))
"""


def test_the_loop_takes_no_memory_and_touches_no_new_page() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED_LOOP],
        env={**os.environ, "PYTHONPATH": str(PLUGIN_TREE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 86, done.stderr
    blocks, page_faults = (int(word) for word in done.stdout.split())
    assert blocks <= 4  # the first measurement itself
    assert page_faults == 0


def test_the_memory_of_the_guard_is_locked_or_it_says_why_not(start: Start, meminfo: Path) -> None:
    guard = start(
        "import time; print('up', flush=True); time.sleep(60)",
        *("--memory-floor-bytes", "1", "--meminfo", str(meminfo)),
    )
    assert guard.stdout is not None
    guard.stdout.readline()
    status = Path(f"/proc/{guard.pid}/status").read_text()
    locked_kib = int(status.partition("VmLck:")[2].split()[0])
    guard.terminate()
    _, _, stderr = finish(guard)
    assert (locked_kib > 0) != ("memory_not_locked" in stderr)


WITHOUT_CAPABILITIES = """
import ctypes
for capability in range(64):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
"""
"""What `--cap-drop ALL` does: root is a user like any other."""


def test_a_child_of_the_same_user_cannot_look_into_the_guard(start: Start) -> None:
    script = """
    import os
    for name in ("fd/2", "environ", "mem", "maps"):
        try:
            os.open(f"/proc/{os.getppid()}/{name}", os.O_RDONLY)
        except PermissionError:
            continue
        print(name)
    # The tuner finds out by it what the container serves.
    assert b"sparkdeploy_vllm.guard" in open(f"/proc/{os.getppid()}/cmdline", "rb").read()
    with open("/proc/self/environ", "rb") as own:
        own.read()
    raise SystemExit(3)
    """
    assert finish(start(script, before=WITHOUT_CAPABILITIES))[:2] == (3, "")


@pytest.mark.parametrize("before", ["", WITHOUT_CAPABILITIES], ids=["as-one-is", "no-capability"])
def test_the_kernels_own_killer_is_offered_all_that_is_started_and_not_the_guard(
    start: Start, before: str
) -> None:
    own = Path("/proc/self/oom_score_adj").read_text()
    # The guard withdraws its own offer after the start, and may have to wait for a processor.
    script = f"""
    import os, pathlib, time
    guard, begin_s = pathlib.Path(f"/proc/{{os.getppid()}}/oom_score_adj"), time.monotonic()
    while guard.read_text() != {own!r} and time.monotonic() < begin_s + 20:
        time.sleep(0.01)
    os.execvp("sh", ["sh", "-c", "cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj; exit 3"])
    """
    code, offered, _ = finish(start(script, before=before))
    assert (code, offered) == (3, f"1000\n{own}")
