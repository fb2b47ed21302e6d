"""The program that asks a vLLM for its arguments, on a parser made like vLLM's."""

from __future__ import annotations

import argparse
import json
from enum import Enum

from sparkdeploy.image.inside.arguments import as_text, flags


class Kind(Enum):
    ONE = "one"
    TWO = "two"


def number_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def told() -> dict[str, dict[str, object]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--count", "-c", type=int)
    parser.add_argument("--share", type=float)
    parser.add_argument("--config", type=json.loads)
    parser.add_argument("--length", type=number_or_auto)
    parser.add_argument("--name", type=str)
    parser.add_argument("--kind", type=Kind, choices=list(Kind))
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--on", action="store_true")
    parser.add_argument("--both", action=argparse.BooleanOptionalAction)
    return flags(parser._option_string_actions)


def test_each_flag_says_what_it_takes() -> None:
    rows = told()
    assert rows["--count"] == {"takes": "one", "type": "int", "aliases": ["-c"]}
    assert rows["--share"]["type"] == "float"
    assert rows["--config"]["type"] == "json"
    assert rows["--length"]["type"] == "auto"
    assert rows["--name"]["type"] == "text"
    assert rows["--kind"] == {"takes": "one", "choices": ["one", "two"]}
    assert rows["--sizes"] == {"takes": "many", "type": "int"}
    assert rows["--on"] == {"takes": "none"}
    assert rows["--both"] == {"takes": "none", "aliases": ["--no-both"]}
    assert "model" not in rows


def test_a_row_stands_on_a_line() -> None:
    text = as_text("1.2.3", {"flags": told()})
    assert json.loads(text) == {"vllm": "1.2.3", "flags": told()}
    assert sum(line.startswith('  "--') for line in text.splitlines()) == len(told())
