"""Repositories of recipes for tests, and what was taken of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sparkdeploy.recipe.sources import Sources
from sparkdeploy.settings import load_settings

OURS = """\
schema: 1
name: {name}
title: {title}
engine: cuda-0.25
model: {{repo: {repo}}}
serve: {{max_model_len: {tokens}}}
cluster: {{min_nodes: {nodes}}}
"""
THEIRS = """\
recipe_version: "1"
name: Their Owl
model: bird/Owl-1B
container: vllm-node
mods: [mods/fix-owl]
defaults: {port: 8000, host: 0.0.0.0}
command: |
  vllm serve bird/Owl-1B --host {host} --port {port} --chat-template owl.jinja
"""


def recipe(name: str, **values: object) -> str:
    told = {"title": name, "repo": "bird/Owl-1B", "tokens": 4096, "nodes": 1, **values}
    return OURS.format(name=name, **told)


def run_git(folder: Path, *words: str, stdin: str = "") -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.autocrlf=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def commit(folder: Path, texts: dict[str, str]) -> str:
    write(folder, texts)
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--message", "more")
    return run_git(folder, "rev-parse", "HEAD")


def taken(name: str) -> set[str]:
    folder = Sources.below(load_settings().state_dir).files_of(name)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
