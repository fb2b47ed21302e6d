"""Cases for a lent GPU: published models by their configurations, and small ones of all families.

`python -m tests.gpu.families .gpu/cases` writes large.json, whose models have weights of 20 GB and
more and measure what is left for their cache, and small-N.json, whose pools are fixed. On the GPU
`tests/engine/vllm/inside/log_of_family.py CASES RESULTS` starts them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.families import config
from tests.families.cases import CASES

PARTS = 3
"""Programs that share the card with small models."""

LARGE = json.loads(Path(__file__).with_name("large_models.json").read_text())
"""Sizes of published config.json files, over the further keys of a small one of the family."""


def large_config(name: str) -> dict[str, Any]:
    return {**config(LARGE[name]["family"]), **LARGE[name]["sizes"]}


def _large_cases() -> list[dict[str, Any]]:
    arguments = {"gpu_memory_utilization": 0.9, "max_num_seqs": 256}
    return [{"name": name, "config": large_config(name), "arguments": arguments} for name in LARGE]


def _small_cases() -> list[dict[str, Any]]:
    shared = {"gpu_memory_utilization": 0.1}
    return [
        {**made, "arguments": {**made["arguments"], **shared}}
        for made in (case.as_dict() for case in CASES)
    ]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "large.json").write_text(json.dumps(_large_cases()), encoding="utf-8")
    small = _small_cases()
    for part in range(PARTS):
        text = json.dumps(small[part::PARTS])
        (folder / f"small-{part}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
