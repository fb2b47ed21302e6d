"""What a client and a foreign model's chat template get at, in the real vLLM's own code.

No server is started: the programs in vllm_doors run in the CPU engine's image, without network.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkdeploy.node.host import DockerHost
from sparkdeploy.plan.launch import serve_argv, serve_env
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.settings import resources
from tests.engine.inside.containers import python_in
from tests.engine.shipped_stages import build_all, shipped_stages

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

PROGRAMS = Path(__file__).parent / "doors"
CANARY = "planted-8f21c0"
GOES_ON = "goes on"

LEAKING: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("leaking_templates.yaml").read_text()
)
CHANGING = {
    "append": "{{ messages.append({'role': 'x'}) }}",
    "update": "{{ messages[0].update({'content': 'changed'}) }}",
}
COSTLY = {
    "range": ("{% for i in range(10**9) %}{% endfor %}", "OverflowError"),
    "macro": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    "loop": ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "RecursionError"),
    "raise_exception": ("{{ raise_exception('no') }}", "TemplateError no"),
    # Nothing in the sandbox stops these: the guard does when memory runs out, and vLLM's own
    # limit of 30 s on a template where it has one.
    "text": ("{{ ('x' * 10**10)|length }}", "MemoryError"),
    "width": ("{{ '%10000000000d' % 1 }}", "MemoryError"),
    "nested": (
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}"
        "{% endfor %}{% endfor %}",
        GOES_ON,
    ),
}


@pytest.fixture(scope="module")
def inside(host: DockerHost) -> Callable[..., Any]:
    """Run a program in the CPU engine's image and return the JSON that it prints last."""
    _, image = build_all(host, shipped_stages())[-1]

    def run(program: str, argument: object, **env: str) -> Any:
        command = ["-I", f"/lab/{program}", json.dumps(argument)]
        said = python_in(image.image_id, PROGRAMS, "doors", command, CANARY=CANARY, **env)
        return json.loads(said.splitlines()[-1])

    return run


def argv_of(*typed: str) -> list[str]:
    """The argument list of a launch of ours."""
    resolved = load_recipe(Library((resources() / "recipes",)), "v2", typed)
    return list(serve_argv(resolved.recipe, "/m"))


# The golden argument lists hold what we say; what vLLM makes of it changes with an engine.
@pytest.mark.slow
def test_vllm_fetches_nothing_for_a_client_by_our_launch(inside: Callable[..., Any]) -> None:
    resolved = load_recipe(Library((resources() / "recipes",)), "v2")
    redirects = "VLLM_MEDIA_URL_ALLOW_REDIRECTS"
    kinds = [
        *("loopback", "name", "number", "login", "backslash", "capitals", "redirect", "file"),
        "data",
    ]
    allowed = argv_of("serve.extra_args=[--allowed-media-domains, 127.0.0.1]")
    bare = [word for word in argv_of() if not word.startswith("--allowed-media-domains")]
    told = inside(
        "media.py",
        {
            "ours": (argv_of(), kinds),
            "allowed": (allowed, ["redirect"]),
            "bare": (bare, ["loopback"]),
        },
        **{redirects: serve_env(resolved.recipe, resolved.engine)[redirects]},
    )
    ours = told["ours"]["results"]
    assert len(ours) == 6 * (len(kinds) - 1) + 2
    for attempt, came in ours.items():
        expected = "fetched " if attempt.endswith(" data") else ("ValueError", "RuntimeError")
        assert came.startswith(expected), (attempt, came)
    assert told["ours"]["asked"] == []
    # An allowed domain may not send the server on, and without our words it fetches anything.
    assert set(told["allowed"]["asked"]) == {"127.0.0.1/redirect"}
    assert told["bare"]["results"]["fetch_image loopback"].startswith("fetched")


def test_a_foreign_chat_template_reads_and_changes_nothing(inside: Callable[..., Any]) -> None:
    found = inside("templates.py", {**LEAKING, **CHANGING})
    for name, came in found.items():
        assert came.startswith(("text", "SecurityError", "TypeError")), (name, came)
        for secret in (CANARY, "<class", "<module", "root:", "builtins", "PATH"):
            assert secret not in came, (name, came)
    for name in CHANGING:
        assert found[name].startswith("SecurityError"), found[name]


def test_what_a_foreign_chat_template_can_waste(inside: Callable[..., Any]) -> None:
    found = inside("templates.py", {name: template for name, (template, _) in COSTLY.items()})
    for name, (_, expected) in COSTLY.items():
        assert found[name].startswith(expected), (name, found[name])


def test_the_sandbox_is_what_keeps_a_template_from_reading(inside: Callable[..., Any]) -> None:
    """Without it the same template reads the environment: the tests above could fail."""
    found = inside("templates.py", {"lipsum": LEAKING["lipsum"]}, WITHOUT_SANDBOX="1")
    assert CANARY in found["lipsum"]
