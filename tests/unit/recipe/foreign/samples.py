"""Recipes in the formats of others, written for these tests: every key that the field uses."""

from __future__ import annotations

from pathlib import Path

from sparkdeploy import yaml_text
from sparkdeploy.recipe.load import Resolved
from tests.unit.conftest import SHIPPED

FOLDER = Path(__file__).parent
CASES = yaml_text.load_file(FOLDER / "cases.yaml")
V1 = (FOLDER / "eugr-v1.yaml").read_text()
V2 = (FOLDER / "several-nodes-v2.yaml").read_text()
"""Without a command: it is made from the defaults."""

WITH_WORDS = """\
recipe_version: "2"
model: bird/Owl-1B
container: example.org/owl@sha256:{digest}
volumes: [~/no:/model/owls/ow, ~/all:/model, "~/models:/model/owls:ro"]
pre_exec:
  - pip install {{package}}
defaults: {{package: owl-kernels}}
command: |
  export CUDA_HOME="${{CUDA_HOME:-/usr/local/cuda}}";
  pip install more;
  OMP_NUM_THREADS=4 exec /usr/local/bin/vllm serve /model/owls/owl \\
    --served-model-name owl \\{blank}
    --max-num-seqs 4  # a word of the author's
""".format(digest="a" * 64, blank="  ")
"""Words before vLLM, a blank behind a backslash, a comment, a folder that is mounted."""

SHELF = SHIPPED
ALLOWED = "allow_unsafe=true"


def left_out(resolved: Resolved) -> dict[str, str]:
    assert resolved.translation is not None
    return {note.theirs.partition(":")[0]: note.outcome for note in resolved.translation.dropped}
