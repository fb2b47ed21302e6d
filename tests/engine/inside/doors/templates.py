"""Runs inside an engine's image: what a chat template of a foreign model gets at.

The argument is JSON: templates by name. Each is rendered as vLLM renders it, in a process of its
own with a limit on time and memory. Prints JSON: for each name what came of it.
"""

import json
import multiprocessing
import os
import resource
import sys

import jinja2
from transformers.utils import chat_template_utils

SECONDS = 2
MEMORY_BYTES = 2 << 30
if "WITHOUT_SANDBOX" in os.environ:
    chat_template_utils.ImmutableSandboxedEnvironment = jinja2.Environment
CHAT = [{"role": "user", "content": "hello"}]


def render(template: str, answer: multiprocessing.SimpleQueue) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [CHAT], chat_template=template, tools=None, add_generation_prompt=True
        )
        answer.put(f"text {texts[0][:2000]}")
    except BaseException as error:  # noqa: BLE001 - whatever ends it is the answer
        answer.put(f"{type(error).__name__} {error}"[:2000])


def outcome(template: str) -> str:
    answer = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=render, args=(template, answer))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return "goes on"
    return answer.get()


print(json.dumps({name: outcome(text) for name, text in json.loads(sys.argv[1]).items()}))
