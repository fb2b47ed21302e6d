"""A request goes where it was sent: no call of the HTTP library follows redirects by itself."""

from __future__ import annotations

import ast
from pathlib import Path

import sparkdeploy

PACKAGE = Path(sparkdeploy.__file__).parent
CALLS = {"request", "get", "options", "head", "post", "put", "patch", "delete"}
COUNTED_BY_HAND = {"checkpoint/answers.py"}
"""Its session finds no redirect's target; `open_answer` follows them, the token left behind."""


def sent_by_requests(tree: ast.AST) -> list[ast.Call]:
    """Return the calls that send a request: of the module, or of something called a session."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        call
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in CALLS
        and ast.unparse(call.func.value).split(".")[-1].strip("_") in {"requests", "session"}
    ]


def follows(call: ast.Call) -> bool:
    stated = [ast.unparse(it.value) for it in call.keywords if it.arg == "allow_redirects"]
    return stated != ["False"]


def test_every_request_says_that_it_follows_no_redirect() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        calls = sent_by_requests(ast.parse(path.read_text(encoding="utf-8")))
        if calls and name not in COUNTED_BY_HAND:
            found[name] = [follows(call) for call in calls]
    assert "server/client.py" in found
    assert not [name for name, followed in found.items() if any(followed)]


def test_a_call_that_does_not_say_so_is_seen() -> None:
    calls = sent_by_requests(
        ast.parse(
            "requests.get(u)\nself._session.post(u, allow_redirects=True)\n"
            "session.request('GET', u, allow_redirects=False)\nmapping.get(u)"
        )
    )
    assert [follows(call) for call in calls] == [True, True, False]
