"""The search for the TurboQuant kernel's tile, with a card whose times are given."""

# mypy: disable-error-code="import-not-found"

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sparkdeploy_vllm import tune_head
from sparkdeploy_vllm.tune_head import AttentionShape, Served, attention_shape, served
from sparkdeploy_vllm.tuning.search import (
    CONTEXTS,
    UnsteadyCardError,
    attention_candidates,
    tune_attention,
)
from sparkdeploy_vllm.tuning.tiles import Tuned
from sparkdeploy_vllm.turboquant.tiles import (
    SHIPPED,
    AttentionKey,
    AttentionTile,
    fits,
    shared_bytes,
)

SPARK = AttentionKey("NVIDIA GB10", (12, 1), 4, 4, 256, 2, 16, 3, kernel="abc", nvrtc="13.0")
"""A 122B's attention with two drafts."""
H100 = replace(SPARK, card="NVIDIA H100", capability=(9, 0))
SHORT, LONG = CONTEXTS
FAST = AttentionTile(tokens=16, warps=4, stages=2, rows=16, heads=2)


@dataclass
class PaperStand:
    """A card whose times come from a function, and on which some tiles are wrong."""

    time_ms: Callable[[AttentionTile, int], float]
    wrong: Callable[[AttentionTile], bool] = lambda _tile: False
    timed: list[AttentionTile] = field(default_factory=list)
    shared_bytes: int = SHIPPED[12].shared_bytes

    def is_right(self, tile: AttentionTile) -> bool:
        return not self.wrong(tile)

    def times_ms(self, tiles: Sequence[AttentionTile], context: int, rounds: int) -> list[float]:
        self.timed.extend(tiles)
        return [self.time_ms(tile, context) for tile in tiles]


def winner(key: AttentionKey, stand: PaperStand) -> Tuned[AttentionTile]:
    (won,) = tune_attention(key, stand, rounds=3, say=lambda _line: None)
    return won


def flat(_tile: AttentionTile, context: int) -> float:
    return 0.01 + context / 1e6


def with_shares(short: float, long: float) -> Callable[[AttentionTile, int], float]:
    """FAST takes these shares of what all others take."""
    shares = {SHORT: short, LONG: long}
    return lambda tile, context: flat(tile, context) * (shares[context] if tile == FAST else 1)


@pytest.mark.parametrize(
    ("short", "long", "wins"),
    [(0.9, 0.9, True), (1.05, 0.8, True), (0.9, 1.2, False), (0.995, 0.995, False)],
)
def test_a_tile_must_pay_over_both_contexts_together(short: float, long: float, wins: bool) -> None:
    won = winner(SPARK, PaperStand(with_shares(short, long)))
    assert (won.tile == FAST) is wins
    if wins:
        assert won.ms == {SHORT: flat(FAST, SHORT) * short, LONG: flat(FAST, LONG) * long}
        assert won.shipped_ms == {context: flat(FAST, context) for context in CONTEXTS}


@pytest.mark.parametrize("capability", [(12, 1), (9, 0)])
@pytest.mark.parametrize("bits", [(8, 4), (4, 4), (3, 4), (3, 3)])
@pytest.mark.parametrize("heads", [(2, 16, 256), (2, 8, 256), (4, 8, 128), (1, 8, 64)])
def test_only_what_fits_is_tried_and_what_ships_is_among_it(
    capability: tuple[int, int], bits: tuple[int, int], heads: tuple[int, int, int]
) -> None:
    kv_heads, group, dim = heads
    key = replace(
        SPARK,
        capability=capability,
        key_bits=bits[0],
        value_bits=bits[1],
        head_dim=dim,
        kv_heads=kv_heads,
        group=group,
    )
    limit = SHIPPED[capability[0]].shared_bytes
    tried = list(attention_candidates(key, limit))
    assert len(tried) == len(set(tried)) <= 54
    assert set(key.shipped().tiles) <= set(tried)
    for tile in tried:
        assert fits(tile, limit, key.slot, kv_heads, key.rows)
        assert shared_bytes(tile, key.slot, kv_heads, key.rows) < limit


def test_the_served_cache_and_drafts_are_read_from_the_container_s_command() -> None:
    plain = b"vllm\0serve\0/m/ck/qwen\0"
    drafting = plain + (
        b"--kv-cache-dtype\0turboquant_4bit_nc\0"
        b'--speculative-config\0{"method":"mtp","num_speculative_tokens":2}\0'
    )
    assert served(plain) == Served(Path("/m/ck/qwen"))
    assert served(drafting) == Served(Path("/m/ck/qwen"), 1, "turboquant_4bit_nc", 3)


def test_attention_is_what_a_rank_has_of_a_checkpoint() -> None:
    text = {"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256, "hidden_size": 64}
    launch = Served(Path("/m"), 1, "turboquant_k8v4", 3)
    found = attention_shape({"text_config": text}, launch)
    assert found == AttentionShape("turboquant_k8v4", 32, 2, 256, 3)
    both = attention_shape(text, replace(launch, ranks=2))
    assert both == AttentionShape("turboquant_k8v4", 16, 1, 256, 3)
    four = attention_shape(text, replace(launch, ranks=4))
    assert four == AttentionShape("turboquant_k8v4", 8, 1, 256, 3)
    plain = {"num_attention_heads": 32, "hidden_size": 4096}
    assert attention_shape(plain, launch) == AttentionShape("turboquant_k8v4", 32, 32, 128, 3)
    for cache_dtype in ("auto", "fp8"):
        assert attention_shape({}, replace(launch, cache_dtype=cache_dtype)) is None
    with pytest.raises(ValueError, match="num_attention_heads"):
        attention_shape({}, launch)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the command searches for; nothing is run."""
    done: list[object] = []
    monkeypatch.setattr(tune_head, "_tune_head", lambda shape, _options: done.append(shape))
    monkeypatch.setattr(tune_head, "_tune_attention", lambda shape, _options: done.append(shape))
    return done


CONFIG = """{"vocab_size": 512, "hidden_size": 4096, "num_attention_heads": 32,
 "num_key_value_heads": 4, "head_dim": 128}"""


def test_the_same_command_tunes_head_and_attention(tmp_path: Path, searches: list[object]) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    model = ["--model", str(tmp_path)]
    assert tune_head.main(model) == 0
    assert searches == [(512, 4096, "int8")]
    cache = ["--kv-cache-dtype", "turboquant_3bit_nc", "--query-tokens", "2"]
    assert tune_head.main([*model, *cache]) == 0
    attention = AttentionShape("turboquant_3bit_nc", 32, 4, 128, 2)
    assert searches[1:] == [(512, 4096, "int8"), attention]


def test_what_is_served_is_tuned(
    tmp_path: Path, searches: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    command = tmp_path / "cmdline"
    words = ["vllm", "serve", str(tmp_path), "--tensor-parallel-size", "2"]
    command.write_text("\0".join([*words, "--kv-cache-dtype", "turboquant_4bit_nc", ""]))
    monkeypatch.setattr(tune_head, "FIRST_PROCESS", command)
    assert tune_head.main([]) == 0
    assert searches == [(256, 4096, "int8"), AttentionShape("turboquant_4bit_nc", 16, 2, 128, 1)]


def test_a_search_that_fails_keeps_no_other_from_being_done(
    tmp_path: Path,
    searches: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text(CONFIG)

    def fail(*_shape: object) -> None:
        raise UnsteadyCardError("the card is busy")

    monkeypatch.setattr(tune_head, "_tune_head", fail)
    model = ["--model", str(tmp_path), "--kv-cache-dtype", "turboquant_4bit_nc"]
    assert tune_head.main(model) == 1
    assert searches == [AttentionShape("turboquant_4bit_nc", 32, 4, 128, 1)]
    assert "tune_head: the card is busy; nothing was written" in capsys.readouterr().err
