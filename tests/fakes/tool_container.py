"""A container in which `vllm bench serve` runs, and what it reports of a load."""

from __future__ import annotations

import json
from typing import Any

REPORT = {
    # `vllm bench serve` 0.32.0 of a twin; lists left out.
    "duration": 20.0,
    "completed": 9,
    "failed": 1,
    "max_concurrent_requests": 4,
    "total_input_tokens": 900,
    "total_output_tokens": 3600,
    "request_goodput": 0.4,
    "request_throughput": 0.45,
    "output_throughput": 180.0,
    **{
        f"{which}_{name}_ms": middle * factor
        for name, middle in (("ttft", 120.0), ("tpot", 21.0), ("itl", 30.0), ("e2el", 9000.0))
        for which, factor in (("p50", 1), ("p95", 2), ("p99", 3), ("p100", 4), ("mean", 1.5))
    },
}


class Host:
    """A Docker Engine whose container answers each run of the tool in turn."""

    def __init__(self, *answers: dict[str, Any] | BaseException) -> None:
        self.answers = list(answers)
        self.run: list[list[str]] = []
        self.texts = ""

    def inspect(self, _id: str) -> dict[str, Any]:
        return {"Args": ["serve", "/m/ck/twin"]}

    @property
    def asked(self) -> list[list[str]]:
        return [argv for argv in self.run if "vllm bench serve" in " ".join(argv[:3])]

    def exec(self, _id: str, argv: list[str]) -> tuple[int, str]:
        self.run.append(argv)
        if argv[0] == "vllm":
            return 0, "0.32.0\n"
        script = argv[2]
        if script.startswith("printf"):
            assert len(argv[5]) < 128 * 1024
            self.texts += argv[5]
        elif "vllm bench serve" in script:
            if isinstance(end := self.answers[0], BaseException):
                raise end
        elif script.startswith("cat"):
            return 0, json.dumps(self.answers.pop(0))
        return 0, ""
