"""Secrets in their usual forms are taken out everywhere, and ordinary text stays."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdeploy.bench.endpoint import endpoint_origin, engine_origin
from sparkdeploy.deploy.evidence import save_evidence
from sparkdeploy.secret_shapes import environment_secrets, text_without_secrets
from sparkdeploy.upkeep.diagnose import diagnose
from tests.fakes.containers import Crashed
from tests.unit.program import Run

S = "Pl4nted9s3cretVALUE0123"
FORMS = [
    f"AWS_SECRET_ACCESS_KEY={S}", f"aws_secret_access_key = {S}", f"Authorization: Basic {S}",
    f"Authorization: Bearer {S}", f"authorization: Token {S}", f"'Authorization': 'Bearer {S}'",
    f"Cookie: session={S}", f"Set-Cookie: id={S}; Path=/", f"github_pat_{S}", f"ghp_{S}",
    f"gho_{S}", f"glpat-{S}", f"xoxb-{S}", f"nvapi-{S}", f"hf_{S}", f"sk-{S}", f"sk-proj-{S}",
    f"https://{S}@host/x", f"https://ada:{S}@host:3128/", f"'--api-key', '{S}'",
    f"['--api-key', '{S}', '--port', '8000']", f"--api-key {S}", f"--api-key={S}",
    f"--api-key, {S}", f"--hf-token {S}", f"HF_TOKEN={S}", f"HUGGING_FACE_HUB_TOKEN: {S}",
    f'"api_key": "{S}"', f"'api_key': ['{S}']", f"api-key: {S}", f"x-api-key: {S}",
    f"password: {S}", f"DB_PASSWORD={S}", f"PGPASSWD={S}", f"passphrase={S}",
    f"client_secret = {S}", f"CLIENT_SECRET_VALUE={S}", f"secretKey: {S}", f"accessToken: {S}",
    f"refresh_token={S}", f"credentials={S}", f'"hub_token": "{S}"', f"token='{S}'",
    f"private_key={S}", f"http://h/x?api_key={S}", f"http://h/x?a=b&token={S}",
    f"http://h/x?X-Amz-Signature={S}&a=b", f"http://h/x?sig={S}",
    f"http://h/x?Signature={S}&Expires=3", f"eyJhbGciOiJIUzI1NiJ9.{S}.{S}",
    f"sk_live_{S}", f"rk_test_{S}", f"dop_v1_{S}", f"machine h login ada password {S}",
    f"curl -u ada:{S} http://h", f"curl --user 'ada:{S}' http://h",
    f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n{S}\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip
ORDINARY = [
    "/srv/models/hub/models--Qwen--Qwen3.5-122B/snapshots/0123456789abcdef",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8",
    "INFO 11-28 09:00:00 [api_server.py:1] Started server process [1]",
    "max_num_batched_tokens=2048, num_speculative_tokens: 2",
    "HF_HUB_DOWNLOAD_TIMEOUT=60 hf_hub_download_timeout",
    "eos_token='<|im_end|>' pad_token=<|endoftext|>",
    "git clone ssh://git@example.org/recipes.git",
    "http://127.0.0.1:8000/v1/models?limit=100",
    "docker run -u 1000:1000 x, docker run --user ada:100000 x",
    "tokenizer='/m/ck/v2', skip_tokenizer_init=False, api_key=None, token=null",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_in_a_usual_form_is_taken_out(form: str) -> None:
    assert S not in text_without_secrets(f"before {form} after")


def crash(folder: Path) -> str:
    """Return what is kept of containers that wrote a form each, and were given it."""
    written = [
        save_evidence(
            Crashed(log=f"before {form} after\n", record={"Config": {"Cmd": ["a", form]}}).host,
            "c1",
            folder / str(at),
            deployment="main",
            details={"plan": {"words": [form]}},
        )
        for at, form in enumerate(FORMS)
    ]
    return "".join(path.read_text() for folder in written for path in folder.iterdir())


def report(folder: Path) -> str:
    """Return all files of a report on a crash folder with a file for each form."""
    crashed = folder / "state" / "crashes" / "main-20261121T101112Z"
    crashed.mkdir(parents=True)
    for at, form in enumerate(FORMS):
        (crashed / f"{at}.log").write_text(f"before {form} after\n")
    bundle = diagnose("main", folder / "report.tar.gz")
    with tarfile.open(bundle.path) as tar:
        files = [tar.extractfile(member) for member in tar.getmembers() if member.isfile()]
        return "".join(file.read().decode() for file in files if file is not None)


def record(_: Path) -> str:
    """Return what a record says of an address and of vLLM's flags with a form in each."""
    said = []
    for form in FORMS:
        model: Any = SimpleNamespace(
            base_url=f"http://127.0.0.1/x?before={form}", name="main", version=lambda: "0.32.0"
        )
        flags = form.replace("\n", " ")
        log = f"INFO 11-28 09:00:00 [a.py:1] non-default args: {{'x': 1, {flags}}}\n"
        said += [endpoint_origin(model).url, engine_origin([log.encode()], version=None).flags]
    assert all(said)
    return "\n".join(said)


@pytest.mark.usefixtures("no_docker")
@pytest.mark.parametrize("kept", [crash, report, record])
def test_no_form_of_a_secret_is_kept(kept: Callable[[Path], str], tmp_path: Path) -> None:
    text = kept(tmp_path)
    assert text.count("before") >= len(FORMS)
    assert [line for line in text.splitlines() if S in line] == []


@pytest.mark.parametrize("key", ["description", "pre_exec", "env", "defaults", "command"])
def test_no_form_of_a_secret_is_imported(key: str, run: Run, tmp_path: Path) -> None:
    """A mod's commands alone stay as their author wrote them."""
    path = tmp_path / "theirs.yaml"
    # A line of a command is read by itself, and a line of a PEM block looks like nothing.
    for form in [it for it in FORMS if key != "command" or "\n" not in it]:
        value: Any = {
            "description": form,
            "pre_exec": [f"echo {form}"],
            "env": {"COLOUR": form},
            "defaults": {"colour": form},
            "command": f"{form}\nvllm serve a/b --served-model-name main",
        }[key]
        theirs = {"model": "a/b", "container": "vllm-node", "command": "vllm serve a/b"}
        path.write_text(json.dumps({**theirs, key: value}))
        done = run("recipe", "import", str(path), "--allow-unsafe")
        assert done.returncode == 0, done.stderr
        shown = re.sub(r"(?m)^mods: .*(?= # line)", "", done.stdout)
        assert S not in shown + done.stderr, form


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text: str) -> None:
    assert text_without_secrets(text) == text


def test_secrets_of_the_environment_are_known_by_value() -> None:
    variables = {"MY_TOKEN": S, "SSH_AUTH_SOCK": "/agent/12345", "HOME": "/root9999"}
    found = environment_secrets({**variables, "A_KEY": "8letters", "B_KEY": "7letter"})
    assert found == (S, "8letters")
