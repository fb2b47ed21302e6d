"""What runs beside two real vLLM servers by our files: LiteLLM, and Prometheus with its dashboard.

One server is a rehearsal; the other asks for a key.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.error import HTTPError

import pytest

from tests.engine.conftest import free_port, until
from tests.engine.neighbours import (
    dashboard_expressions,
    exporter,
    get,
    litellm,
    post,
    prometheus,
    promtool_checks,
    without_data,
)
from tests.engine.vllm.twin_user import TWIN_RECIPE, twin_user, unique_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.program import Program

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("host"),
    pytest.mark.runs("checkpoint", "down", "export", "rehearse", "up"),
]
KEYED, REHEARSED = unique_name("keyed"), unique_name("beside")
MODEL = "with-a-key"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    made = twin_user(tmp_path_factory.mktemp("beside"), port=free_port())
    named = f"model.served_name={MODEL}"
    done = made.run("up", TWIN_RECIPE, "--name", KEYED, "--public", "--yes", "--set", named)
    assert done.returncode == 0, done.stderr
    made.answer("rehearse", "mtp-2", "--keep", "--name", REHEARSED)
    yield made
    made.run("down", KEYED)
    made.run("down", REHEARSED)


@pytest.fixture(scope="module")
def gateway(program: Program) -> Iterator[tuple[str, str]]:
    """LiteLLM's address, and the key of its clients."""
    folder, port = program.root / "gateway", free_port()
    done = program.run(
        *("export", "litellm", KEYED, REHEARSED, "--port", str(port), "-o", str(folder))
    )
    assert done.returncode == 0, done.stderr
    key = (program.root / "state" / "keys" / ".litellm").read_text().strip()
    with litellm(folder, port) as url:
        yield url, key


def test_both_models_answer_on_one_port(gateway: tuple[str, str]) -> None:
    url, key = gateway
    answers = {
        model: post(f"{url}/v1/chat/completions", key, model=model, **HELLO)
        for model in (MODEL, model_of_the_rehearsal(url, key))
    }
    assert len(answers) == 2
    assert all(told["usage"]["completion_tokens"] == 8 for told in answers.values())
    with pytest.raises(HTTPError) as refused:
        post(f"{url}/v1/chat/completions", "sk-wrong", model=MODEL, **HELLO)
    with refused.value:
        assert refused.value.code in {400, 401, 403}


def model_of_the_rehearsal(url: str, key: str) -> str:
    (other,) = {it["id"] for it in get(f"{url}/v1/models", key)["data"]} - {MODEL}
    return str(other)


def test_every_expression_of_the_dashboard_has_data(
    program: Program, gateway: tuple[str, str]
) -> None:
    folder = program.root / "watch"
    done = program.run("export", "prometheus", KEYED, REHEARSED, "-o", str(folder))
    assert done.returncode == 0, done.stderr
    promtool_checks("config", folder / "prometheus.yml")
    promtool_checks("rules", folder / "rules.yml")
    url, key = gateway
    models = (MODEL, model_of_the_rehearsal(url, key))
    waiting = dashboard_expressions()
    with under_load(url, key, models), exporter(folder) as port, prometheus(folder, port) as told:

        def is_whole() -> bool:
            waiting[:] = without_data(told, waiting)
            return not waiting

        with contextlib.suppress(AssertionError):
            until(is_whole)
    assert waiting == []


@contextlib.contextmanager
def under_load(url: str, key: str, models: tuple[str, ...]) -> Iterator[None]:
    """Each model is asked the same again and again, so that prefixes are found too."""
    is_over = threading.Event()

    def ask(model: str) -> None:
        while not is_over.is_set():
            post(f"{url}/v1/chat/completions", key, model=model, **HELLO)

    with ThreadPoolExecutor(len(models)) as pool:
        for model in models:
            pool.submit(ask, model)
        try:
            yield
        finally:
            is_over.set()
