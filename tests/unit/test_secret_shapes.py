"""Secrets in their usual forms are taken out everywhere, and ordinary text stays."""

from __future__ import annotations

import pytest

from sparkdeploy.recipe.foreign.secrets import masked
from sparkdeploy.secret_shapes import environment_secrets, text_without_secrets

S = "Pl4nted9s3cretVALUE0123"
FORMS = [
    f"AWS_SECRET_ACCESS_KEY={S}",
    f"aws_secret_access_key = {S}",
    f"Authorization: Basic {S}",
    f"Authorization: Bearer {S}",
    f"authorization: Token {S}",
    f"'Authorization': 'Bearer {S}'",
    f"Cookie: session={S}",
    f"Set-Cookie: id={S}; Path=/",
    f"github_pat_{S}",
    f"ghp_{S}",
    f"gho_{S}",
    f"glpat-{S}",
    f"xoxb-{S}",
    f"nvapi-{S}",
    f"hf_{S}",
    f"sk-{S}",
    f"sk-proj-{S}",
    f"https://{S}@host/x",
    f"https://ada:{S}@host:3128/",
    f"'--api-key', '{S}'",
    f"['--api-key', '{S}', '--port', '8000']",
    f"--api-key {S}",
    f"--api-key={S}",
    f"--hf-token {S}",
    f"HF_TOKEN={S}",
    f"HUGGING_FACE_HUB_TOKEN: {S}",
    f'"api_key": "{S}"',
    f"'api_key': ['{S}']",
    f"api-key: {S}",
    f"x-api-key: {S}",
    f"password: {S}",
    f"DB_PASSWORD={S}",
    f"PGPASSWD={S}",
    f"passphrase={S}",
    f"client_secret = {S}",
    f"CLIENT_SECRET_VALUE={S}",
    f"secretKey: {S}",
    f"accessToken: {S}",
    f"refresh_token={S}",
    f"credentials={S}",
    f"private_key={S}",
    f"http://h/x?api_key={S}",
    f"http://h/x?a=b&token={S}",
    f"http://h/x?X-Amz-Signature={S}&a=b",
    f"http://h/x?sig={S}",
    f"http://h/x?Signature={S}&Expires=3",
    f"eyJhbGciOiJIUzI1NiJ9.{S}.{S}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n{S}\n-----END RSA PRIVATE KEY-----",
]
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
]


@pytest.mark.parametrize("take_out", [text_without_secrets, masked])
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_in_a_usual_form_is_taken_out(form: str, take_out) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    assert S not in take_out(f"before {form} after")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text: str) -> None:
    assert text_without_secrets(text) == text


def test_secrets_of_the_environment_are_known_by_value() -> None:
    variables = {"MY_TOKEN": S, "SSH_AUTH_SOCK": "/agent/12345", "HOME": "/root9999"}
    found = environment_secrets(variables)

    assert found == (S,)
