"""Recipes of others that somebody damaged, or made to do harm: a recipe, or exit 3."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy import yaml_text
from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.foreign.report import recipe_text
from sparkdeploy.recipe.load import Library, load_recipe
from tests.examples import examples
from tests.unit.conftest import REPOSITORY
from tests.unit.recipe.foreign.samples import V1, V2, WITH_WORDS

SHELF = Library((REPOSITORY / "recipes",))
SAMPLES = (V1, V2, WITH_WORDS)
SPLINTERS = (
    *("{", "}", "{{", "}}", "[", "]", '"', "'", "\\", "|", "&a", "*a", "<<: *a", "!!python/x", "#"),
    *("$(id)", "`id`", ";", "&&", "| sh", "> /etc/x", "${HOME}", "../..", "~", "/etc/passwd"),
    *("null", "true", "1e309", "-1", "9" * 50, "\t", "\x1b[2J", "\u202e", "\ud7ff", "\x85", "-"),
    *("--trust-remote-code", "--middleware evil.X", "--served-model-name", "-tp", "--x.y.z=1"),
    *(
        "{port}",
        "{model}",
        "{missing}",
        "vllm serve",
        "bash -c",
        "a: b",
        "- a",
        ": ",
        "\n",
        "x" * 999,
    ),
)
HARM = "touch /tmp/sparkdeploy-was-here"


def damaged(text: str, seed: int) -> str:
    """Return the text with some of its lines or characters replaced, doubled or left out."""
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 6)):
        lines = text.split("\n")
        at = chance.randrange(len(lines))
        kind = chance.randrange(6)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[chance.randrange(len(lines))])
        elif kind == 2:
            lines[at] = " " * chance.randrange(5) + lines[at].strip()
        elif kind == 3:
            key, colon, _ = lines[at].partition(":")
            lines[at] = f"{key}{colon} {chance.choice(SPLINTERS)}"
        else:
            place = chance.randrange(len(lines[at]) + 1)
            cut = place + chance.randrange(3)
            lines[at] = lines[at][:place] + chance.choice(SPLINTERS) + lines[at][cut:]
        text = "\n".join(lines)
    return text


@given(st.sampled_from(SAMPLES), st.integers(0, 2**32))
@settings(max_examples=examples(600), deadline=None)
def test_a_damaged_recipe_is_a_recipe_or_a_mistake(
    tmp_path_factory: pytest.TempPathFactory, sample: str, seed: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes(damaged(sample, seed).encode("utf-8", "surrogatepass"))
    try:
        resolved = load_recipe(SHELF, str(path), ["allow_unsafe=true"])
    except RecipeError:
        return
    translation = resolved.translation
    if translation is not None:
        written = yaml_text.load(recipe_text(translation), "what was written")
        content = translation.document.content
        assert written == {key: value for key, value in content.items() if key != "allow_unsafe"}


@pytest.mark.parametrize(
    "text",
    [
        V1.replace("bird/Parrot-35B-FP8", f"$({HARM})"),
        V1.replace("name: Parrot 35B (FP8)", f"name: 'a; {HARM}'"),
        V1.replace("container: vllm-node", f"container: 'x/y; {HARM}'"),
        V1.replace("port: 8001", f"port: '8001; {HARM}'"),
        V1.replace("--async-scheduling", f"; {HARM} ;"),
        V1.replace("VLLM_MARLIN_USE_ATOMIC_ADD: 1", f"BASH_ENV: '{HARM}'"),
        V1.replace("mods: []", f"mods: ['; {HARM}']"),
        V1.replace("qwen3 ", "/etc/passwd "),
        V2.replace("recipe_version:", f"pre_exec: ['{HARM}']\nrecipe_version:"),
        V2.replace("post_exec:", f"post_commands: ['{HARM}']\npost_exec:"),
        V2.replace("model: bird/Crow-8B", "model: /etc"),
        V2.replace("kv_cache_dtype: fp8", "middleware: evil.Run"),
        V2.replace("kv_cache_dtype: fp8", "tool_parser_plugin: /tmp/x.py"),
        V2.replace("kv_cache_dtype: fp8", "worker_cls: evil.Run"),
        V2.replace("kv_cache_dtype: fp8", "hf_token: hf_secret"),
        V2.replace("NCCL_IB_HCA: mlx5_0", "LD_PRELOAD: /tmp/x.so"),
    ],
)
def test_a_hostile_recipe_gets_nothing_without_consent(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    try:
        resolved = load_recipe(SHELF, str(path))
    except RecipeError:
        return
    # What passed is what nobody could make use of.
    told = repr((resolved.recipe, resolved.engine))
    assert HARM not in told
    assert "evil" not in told
    assert "hf_secret" not in told
    assert "LD_PRELOAD" not in told
