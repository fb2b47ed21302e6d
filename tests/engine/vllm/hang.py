"""A deployment of the real vLLM whose engine is made to hang: who computes, and what is noticed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import requests

from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.client import ServedModel
from tests.engine.conftest import until

LATE_S = 10
"""How much later than after `limits.stall_s` a hang may be noticed."""
LONG = {"prompt": "a b c", "max_tokens": 1000, "ignore_eos": True}
"""Some seconds of a twin's writing."""


@dataclass(frozen=True)
class Served:
    """A deployment by its name, on this machine's port."""

    host: DockerHost
    name: str
    port: int

    def log(self) -> str:
        found = self.host.find_container(f"sparkdeploy-{self.name}")
        assert found is not None
        return b"".join(self.host.logs(found.container_id)).decode(errors="replace")

    def engine_core(self) -> int:
        """Wait for the process that computes, and return it."""
        until(lambda: bool(self._engine_cores()))
        return self._engine_cores()[0]

    def _engine_cores(self) -> list[int]:
        """Find the processes that compute, by the name that vLLM gives them."""
        found = self.host.find_container(f"sparkdeploy-{self.name}")
        assert found is not None
        guard = str(self.host.inspect(found.container_id)["State"]["Pid"])
        cores = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # It has just ended.
                title = (folder / "cmdline").read_bytes()
                if title.startswith(b"VLLM::EngineCore") and guard in _ancestors(folder.name):
                    cores.append(int(folder.name))
        return cores

    def is_healthy(self) -> bool:
        with ServedModel(f"http://127.0.0.1:{self.port}") as model:
            return model.is_healthy()

    def ask(self, **more: object) -> requests.Response:
        address = f"http://127.0.0.1:{self.port}/v1"
        model = requests.get(f"{address}/models", timeout=10).json()["data"][0]["id"]
        body = {**LONG, "model": model, **more}
        return requests.post(f"{address}/completions", json=body, timeout=300)

    @contextlib.contextmanager
    def somebody_waits(self) -> Iterator[None]:
        """Have a client wait for an answer that need not come."""

        def ask_in_vain() -> None:
            with contextlib.suppress(requests.RequestException):
                self.ask()

        asked = threading.Thread(target=ask_in_vain)
        asked.start()
        yield
        asked.join(timeout=60)

    def ended(self, *, within_s: float) -> str:
        """Wait until a hang was noticed and vllm is started anew; return the log by then."""
        hung_s = time.monotonic()
        until(lambda: '"event": "stalled"' in self.log(), timeout_s=within_s + 30)
        noticed_s = time.monotonic() - hung_s
        print(f"noticed after {noticed_s:.1f} s")
        assert noticed_s <= within_s
        until(lambda: '"event": "restart"' in self.log(), timeout_s=60)
        return self.log()

    def started_again(self, *, within_s: float) -> str:
        """Wait until a hang was noticed and the model answers again; return the log by then."""
        self.ended(within_s=within_s)
        until(self.is_healthy, timeout_s=300)
        assert self.ask(max_tokens=2).ok
        return self.log()


def _ancestors(pid: str) -> Iterator[str]:
    while pid != "0":
        pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        yield pid
