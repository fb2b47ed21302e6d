"""Flags, choices and names, held against the very release that a recipe's engine has."""

from __future__ import annotations

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.arguments import release_of
from sparkdeploy.recipe.flags import given_flags, value_of
from sparkdeploy.recipe.load import Library, load_recipe


def refusal(shelf: Library, *settings: str) -> str:
    with pytest.raises(RecipeError) as refused:
        load_recipe(shelf, "baseline", settings)
    return str(refused.value.detail)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("serve.tool_call_parser=qwen3_codr", "no such tool parser; did you mean qwen3_coder?"),
        ("serve.attention_backend=FLASHINFR", "did you mean FLASHINFER?"),
        ("serve.quantization=fp88", "no such quantization; did you mean fp8?"),
        ("serve.extra_args=[--moe-backend, marlon]", "did you mean marlin?"),
        ("serve.extra_args=[--max-loras, many]", "a whole number is expected"),
        ("serve.extra_args=[--seed]", "it needs a value"),
        ("serve.extra_args=[--kv-cache-memory-bytes, 4GiB]", "such as 4096 or 64K"),
        ("serve.extra_args=[--pooler-config, '{\"pooling\": 1}']", "has no key pooling"),
        ("serve.extra_args=[--seed, '1', '2']", "it takes one value, and 2 follows as well"),
        ("serve.extra_args=[--async-scheduling=1]", "it takes no value, and 1 follows"),
        ("serve.extra_args=[--async-schedulng]", "did you mean --async-scheduling?"),
        ("serve.extra_args=[--watchdog-config, '{}']", "set engine to cuda-0.33"),
        ("serve.extra_args=['--attention-config.backnd', x]", "did you mean backend?"),
        ("serve.compilation_config={cudagraph_mod: FULL}", "did you mean cudagraph_mode?"),
        ("serve.speculative={method: mpt, tokens: 2}", "method; did you mean mtp?"),
        ("serve.speculative={method: ngram, tokens: 2, moe_backed: x}", "no key moe_backed"),
        ("serve.load_format=instanttensor", "cuda-0.25 does not hold; set engine to cuda-0.33"),
    ],
)
def test_what_the_release_would_refuse_is_said_before(
    shipped: Library, setting: str, words: str
) -> None:
    assert words in refusal(shipped, setting)


@pytest.mark.parametrize(
    "setting",
    [
        *("serve.extra_args=[--moe-backend, marlin]", "serve.extra_args=[--block_size=32]"),
        "serve.extra_args=[-cc.mode, '0', -O3]",
        "serve.extra_args=[--cudagraph-capture-sizes, '1', '2', '4']",
        "serve.extra_args=[--max-logprobs, '-1']",
        "serve.extra_args=[--kv-cache-memory-bytes, 10G]",
        "serve.extra_args=[--default-chat-template-kwargs.a=1, --default-chat-template-kwargs.b=2]",
        *("serve.attention_backend=flashinfer", "serve.attention_backend=auto"),
        "serve.extra_args=[--mamba-block-size, None]",
        "serve.extra_args=['-cc.custom_ops+', +rms_norm]",
        *("serve.extra_args=[--allowed-origins, '[\"*\"]']", "serve.max_model_len=auto"),
        "serve.extra_args=[--tool-parser-plugin, /x.py, --enable-log-requests]",
    ],
)
def test_what_the_release_takes_passes(shipped: Library, setting: str) -> None:
    load_recipe(shipped, "baseline", [setting])


def test_an_image_of_others_is_warned_about_alone(shipped: Library) -> None:
    wanted = ["engine=image", "image=a/b:latest", "serve.extra_args=[--of-a-fork]"]
    resolved = load_recipe(shipped, "baseline", wanted)
    assert any("has no flag --of-a-fork" in line for line in resolved.warnings)
    release, is_its_own = release_of(resolved.engine)
    assert (release.vllm, is_its_own) == ("0.33.0", False)


@pytest.mark.parametrize(
    "words",
    [
        ["--block-size", "16", "--block_size=32"],
        ["--block-size=32"],
        ["--x", "-1", "--block-size", "32"],
    ],
)
def test_a_flag_is_read_in_every_spelling_and_its_last_one_counts(words: list[str]) -> None:
    assert value_of(words, "--block-size") == "32"
    assert value_of(words, "--other") is None


def test_a_switch_that_another_flag_follows_has_no_value() -> None:
    assert value_of(["--block-size", "--x", "1"], "--block-size") is None


def test_a_flag_keeps_the_words_that_were_written() -> None:
    words = ["--seed", "-1", "--watchdog=2", "--log_level", "debug"]
    found = [" ".join(it.words) for it in given_flags(words)]
    assert found == ["--seed -1", "--watchdog=2", "--log_level debug"]


@pytest.mark.parametrize(
    "setting",
    [
        *("serve.extra_args=[--moe-backend, b12x]", "serve.extra_args=[--linear-backend=b12x]"),
        *("serve.attention_backend=B12X", "serve.attention_backend=b12x"),
        "serve.speculative.moe_backend=b12x",
    ],
)
def test_b12x_is_where_its_package_is(shipped: Library, setting: str) -> None:
    assert load_recipe(shipped, "qwen3.6-35b-nvfp4", [setting]).engine.name == "cuda-0.33"
    with pytest.raises(RecipeError) as refused:
        load_recipe(shipped, "qwen3.6-35b-nvfp4", ["engine=cuda-0.25", setting])
    assert "cuda-0.33" in (refused.value.detail or "")
