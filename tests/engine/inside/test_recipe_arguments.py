"""What passes without consent, as the parser of the real vLLM reads it."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.recipe.flags import SHORT_FORMS
from sparkdeploy.recipe.harmless import CLEAR_SHORT_FORMS, lists, questions
from tests.engine.inside.containers import python_in
from tests.engine.shipped_stages import build_all, shipped_stages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.recipe.harmless import Allowed

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800), pytest.mark.usefixtures("host")]

PARSER = """
import json, sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
OURS = ["serve", "/m/hub/model", "--served-model-name", "qwen", "--host", "127.0.0.1"]
def parsed(words):
    try:
        return {key: repr(value) for key, value in vars(parser.parse_args(OURS + words)).items()}
    except (SystemExit, ValueError, TypeError):
        return None
plain, changed = parsed([]), []
for words in json.load(open("/lab/words.json")):
    got = parsed(words)
    keys = plain.keys() | (got or {}).keys()
    changed.append(got and [key for key in keys if got.get(key) != plain.get(key)])
print(json.dumps(changed))
"""
SAMPLES = (
    *("1", "0", "64", "0.5", "true", "auto", "mp", "align", "data", "vllm", "warning", "sha256"),
    *("fcfs", "pooling", "throughput", "bfloat16", "safetensors", "qwen3", "marlin", "float32"),
)


def words_of(flag: str, row: Allowed) -> list[str]:
    """A flag as a recipe from elsewhere may write it."""
    if row.keys is not None:
        keys = lists().keys[row.keys]
        flat = {key: below for key, below in keys.items() if below.value is not None}
        return [flag, json.dumps({key: sample(flat[key]) for key in sorted(flat)[:2]})]
    return [flag] if row.value is None else [flag, sample(row)]


def sample(row: Allowed) -> str:
    return next((text for text in SAMPLES if lists().matches(row, text)), "none")


def test_a_harmless_flag_sets_itself_and_nothing_else(
    host: DockerHost, mark: str, tmp_path: Path
) -> None:
    alone = [words_of(flag, row) for flag, row in lists().flags.items()]
    chance = random.Random(7)
    joined = [[*one, *two] for one, two in (chance.sample(alone, 2) for _ in range(300))]
    respelt = [[other, *words[1:]] for words in alone for other in other_spellings(words[0])]
    assert len(respelt) > len(CLEAR_SHORT_FORMS)
    given = [words for words in (*alone, *joined, *respelt) if not list(questions(words))]
    assert len(given) > 250
    (tmp_path / "words.json").write_text(json.dumps(given))
    (tmp_path / "parser.py").write_text(PARSER)
    _, image = list(build_all(host, shipped_stages()))[-1]
    said = python_in(image.image_id, tmp_path, mark, ["/lab/parser.py"], VLLM_LOGGING_LEVEL="ERROR")
    changed = json.loads(said.splitlines()[-1])
    own = [{destination(word) for word in words if word.startswith("-")} for words in given]
    wrong = [
        (words, names)
        for words, names, allowed in zip(given, changed, own, strict=True)
        if names is not None and not set(names) <= allowed
    ]
    assert wrong == []
    taken = sum(1 for words, names in zip(alone, changed, strict=False) if names is not None)
    assert taken > len(alone) / 2, "the parser refused nearly all: the samples are wrong"


def other_spellings(flag: str) -> Iterator[str]:
    if "-" in flag.removeprefix("--"):
        yield "--" + flag.removeprefix("--").replace("-", "_")
    yield from (short for short in CLEAR_SHORT_FORMS if SHORT_FORMS[short] == flag)


def destination(flag: str) -> str:
    flag = SHORT_FORMS.get(flag, flag)
    return flag.removeprefix("--").replace("-", "_").removeprefix("no_")
