"""What is kept and sent holds no secret, and everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.deploy.evidence import (
    known_secrets,
    record_without_secrets,
    value_without_secrets,
)
from sparkdeploy.secret_shapes import text_without_secrets

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = "Pl4nted-s3cret_value"


def test_a_deployments_key_is_known_by_its_value(tmp_path: Path) -> None:
    (tmp_path / "main").write_text(f"{PLANTED}\n")
    (tmp_path / "short").write_text("a\n")

    known = known_secrets(tmp_path)

    assert known == (PLANTED,)
    assert known_secrets(tmp_path / "missing") == ()
    assert text_without_secrets(f"a {PLANTED} b", known) == "a (removed) b"


def test_variables_of_a_container_are_emptied_by_name() -> None:
    record = {"Config": {"Env": ["HF_TOKEN=abc", "VLLM_API_KEY=def", "HOME=/cache", "BARE"]}}

    kept = record_without_secrets(record)

    assert kept["Config"]["Env"] == [
        "HF_TOKEN=(removed)",
        "VLLM_API_KEY=(removed)",
        "HOME=/cache",
        "BARE",
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_a_known_secret_is_nowhere_in_any_value(value: object) -> None:
    hidden = {"plan": [value, f"x{PLANTED}y", {"token": PLANTED}]}

    assert PLANTED not in repr(value_without_secrets(hidden, (PLANTED,)))
