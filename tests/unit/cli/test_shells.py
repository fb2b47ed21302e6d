"""Real shells: what Tab makes of a line, by what the program is then called with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.typed import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.outside

NODES = "cluster:\n  nodes: [{name: spark-1, ssh: a.local}, {name: spark-2, ssh: b.local}]\n"


# fish starts slowest by far.
SHELLS = ["bash", "zsh", pytest.param("fish", marks=pytest.mark.slow)]


@pytest.fixture(params=SHELLS)
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    config = tmp_path / "config"
    (config / "recipes").mkdir(parents=True)
    (config / "config.yaml").write_text(NODES)
    runs = tmp_path / "state" / "bench"
    runs.mkdir(parents=True)
    (runs / "20261121T085134Z-v2-five.json").write_text(
        '{\n "run_id": "20261121T085134Z-v2-five",\n "label": "before-update",\n'
    )
    (tmp_path / "notes.yaml").touch()
    with Terminal(request.param, tmp_path) as opened:
        yield opened


def test_tab_completes_commands_options_and_names(terminal: Terminal) -> None:
    typed = {
        "sparkdeploy roll\t": ["rollback"],
        "sparkdeploy checkpoint pu\tx\t": ["checkpoint", "pull", "x"],
        "sparkdeploy plan v2-tq-3\t--har\th1": ["plan", "v2-tq-3bit", "--hardware", "h1"],
        "sparkdeploy plan --show docker\t": ["plan", "--show", "dockerfile"],
        "sparkdeploy --on spark-2\tstatus": ["--on", "spark-2", "status"],
        "sparkdeploy bench show 2026\t": ["bench", "show", "20261121T085134Z-v2-five"],
        "sparkdeploy up ./not\t": ["up", "./notes.yaml"],
    }
    assert {keys: terminal.run(keys) for keys in typed} == typed


def test_tab_shows_what_there_is_to_choose_from(terminal: Terminal) -> None:
    terminal.type("sparkdeploy plan --show \t\t")
    terminal.until("dockerfile", "args", "container", "mods")
