"""What a deployment answers: the kinds of requests that vLLM has routes for with its model.

It is decided once, by vLLM's own rule for architectures, when a plan is made, and corrected by the
routes of the server that answers. Whoever wants to know reads that one value.
"""

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from sparkdeploy.recipe.serve import Serve

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION = "Which city is the capital of France?"
STATEMENT = "Paris is the capital of France."


class Task(Enum):
    """A kind of request."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    CLASSIFY = "classify"
    POOLING = "pooling"
    """Vectors or scores of each token, and of reward models."""
    TRANSCRIPTIONS = "transcriptions"

    @property
    def path(self) -> str:
        """Return the route that most clients use."""
        return ROUTES[self][0]

    def body(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return a request for texts, without the model's name; transcriptions take a file."""
        match self:
            case Task.CHAT:
                return {"messages": [{"role": "user", "content": text} for text in texts]}
            case Task.COMPLETIONS:
                return {"prompt": texts[0], "max_tokens": 16}
            case Task.RERANK:
                return {"query": QUESTION, "documents": list(texts)}
            case Task.SCORE:
                return {"text_1": QUESTION, "text_2": list(texts)}
        return {"input": list(texts)}

    def example(self, model: str) -> dict[str, Any]:
        """Return the body of a request that somebody may try."""
        text = {Task.CHAT: "Hello", Task.COMPLETIONS: "The capital of France is"}.get(self)
        return {"model": model, **self.body([text or STATEMENT])}


ROUTES: Mapping[Task, tuple[str, ...]] = {
    Task.CHAT: (CHAT, "/v1/responses", "/v1/messages"),
    Task.COMPLETIONS: (COMPLETIONS,),
    Task.EMBEDDINGS: ("/v1/embeddings", "/v2/embed"),
    Task.RERANK: ("/rerank", "/v1/rerank", "/v2/rerank"),
    Task.SCORE: ("/score", "/v1/score"),
    Task.CLASSIFY: ("/classify",),
    Task.POOLING: ("/pooling",),
    Task.TRANSCRIPTIONS: ("/v1/audio/transcriptions", "/v1/audio/translations"),
}
"""As vLLM 0.25.1, 0.32.0 and 0.33.0 have them; a model with embeddings has scores as well."""
WITHOUT_TEXT = (Task.EMBEDDINGS, Task.RERANK, Task.SCORE, Task.CLASSIFY, Task.POOLING)
"""In the order in which a server that writes no text is asked; the first that it has is its own."""
_ASKED = (Task.COMPLETIONS, *WITHOUT_TEXT, Task.TRANSCRIPTIONS)


def curl_line(base_url: str, task: Task, model: str, key_file: Path | None = None) -> str:
    """Return a request that somebody may try, as it would be typed in a shell.

    The key goes through a pipe: what stands in arguments, every user of the machine reads.
    """
    words = ["curl", "-s", f"{base_url}{task.path}"]
    if task is Task.TRANSCRIPTIONS:
        words += ["-F", "file=@recording.wav", "-F", f"model={model}"]
    else:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(task.example(model))]
    if key_file is None:
        return shlex.join(words)
    header = 'header = "Authorization: Bearer %s"\\n'
    return f"printf '{header}' \"$(cat {shlex.quote(str(key_file))})\" | {shlex.join(words)} -K -"


def task_of(path: str) -> Task | None:
    """Return what a request's path asks for; None for a route that needs no kind of model."""
    return next((task for task, paths in ROUTES.items() if path in paths), None)


@dataclass(frozen=True, slots=True)
class Answers:
    """What a deployment answers; the first is what its model is for."""

    tasks: tuple[Task, ...]

    @property
    def main(self) -> Task:
        return self.tasks[0]

    @property
    def writes_text(self) -> bool:
        return Task.COMPLETIONS in self.tasks

    def has(self, path: str) -> bool:
        """Say whether the model has the route of a request's path."""
        task = task_of(path)
        return task is None or task in self.tasks

    def describe(self) -> str:
        return ", ".join(task.value for task in self.tasks)

    def as_label(self) -> str:
        return ",".join(task.value for task in self.tasks)

    @classmethod
    def of_label(cls, text: str) -> "Answers":
        """Return what a label says; text where it says nothing that is known."""
        known = {task.value: task for task in Task}
        tasks = tuple(known[it] for it in dict.fromkeys(text.split(",")) if it in known)
        return cls(tasks) if tasks else TEXT

    @property
    def first_asked(self) -> Task:
        """Return what the first request of a start finds, which tries one route after another."""
        return next(task for task in _ASKED if task in self.tasks)

    def corrected(self, routes: Iterable[str]) -> "Answers":
        """Return what a server with these routes answers, in this order where both agree."""
        served = {task for path in routes if (task := task_of(path)) is not None}
        order = (*self.tasks, *(task for task in Task if task not in self.tasks))
        return Answers(tuple(task for task in order if task in served)) if served else self


TEXT = Answers((Task.CHAT, Task.COMPLETIONS))
UNTRAINED_TEXT = Answers((Task.COMPLETIONS, Task.CHAT))
"""Of a model without a chat template: vLLM has the route, and refuses what it is asked there."""
EMBEDDINGS = Answers((Task.EMBEDDINGS, Task.SCORE, Task.RERANK, Task.POOLING))
LATE_INTERACTION = Answers((Task.RERANK, Task.SCORE, Task.POOLING))
RERANKER = Answers((Task.RERANK, Task.SCORE, Task.CLASSIFY, Task.POOLING))
CLASSES = Answers((Task.CLASSIFY, Task.POOLING))
OF_TOKENS = Answers((Task.POOLING,))
SPEECH = Answers((Task.TRANSCRIPTIONS,))
SPEECH_AND_TEXT = Answers((Task.TRANSCRIPTIONS, Task.CHAT, Task.COMPLETIONS))
TEXT_AND_SPEECH = Answers((*TEXT.tasks, Task.TRANSCRIPTIONS))

POOLED_FILE = "modules.json"
"""Of sentence-transformers: vLLM then pools, whatever the architecture is."""
_POOLS = re.compile(
    r"(Embedding|Embed|Bidirectional|Reward|Classification)Model$|EmbeddingGemma"
    r"|For(Sequence|Token|Audio|Image|Video)Classification$"
    r"|For(MaskedLM|TextEncoding|RewardModel|RewardModeling|ProcessRewardModel|Retrieval|Ranking)$"
    r"|^(HF_|Ops)?Col[A-Z]|GeoSpatialMAE|Terratorch|ForJointSchema$"
    r"|(?<!LMHead)(?<!Chat)(?<!ChatGLM)(?<!DashengLM)(?<!MossAudio)(?<!Ultravox)(?<!Omni)Model$"
)
"""Architectures that vLLM's registry has for embeddings, scores and classes, and its rule for those
that it has not."""
_CLASSIFIES = re.compile(
    r"For(Sequence|Audio|Image|Video)Classification$|ClassificationModel$|JinaVLForRanking"
)
_INTERACTS_LATE = re.compile(r"^(HF_|Ops)?Col[A-Z]|^JinaForRanking|NemotronEmbed")
_OF_TOKENS = re.compile(r"ForTokenClassification$|For(Process)?RewardModel$|ForJointSchema$")
_SPEECH = re.compile(r"Whisper|Cohere(ASR|Asr)|FireRed|FunASR|MossTranscribe")
_SPEECH_AND_TEXT = re.compile(r"ASR|Asr[A-Z]|Transcrib|VoxtralRealtime")
_TEXT_AND_SPEECH = re.compile(r"Voxtral|GraniteSpeech|Gemma3n|Qwen3OmniMoe|MoonshotKimia")


def planned_answers(
    serve: Serve,
    config: Mapping[str, Any],
    files: Collection[str] = (),
    *,
    has_template: bool = True,
) -> Answers:
    """Return what a model with this config.json and these files answers as a recipe serves it."""
    config = {**config, **(serve.hf_overrides or {})}
    named = config.get("architectures")
    architectures = [str(it) for it in named] if isinstance(named, list) else []

    def is_any(pattern: re.Pattern[str]) -> bool:
        return any(map(pattern.search, architectures))

    pools = POOLED_FILE in files or is_any(_POOLS)
    if serve.runner == "pooling" or (pools and serve.runner != "generate"):
        if serve.convert == "classify" or (serve.convert in {None, "auto"} and is_any(_CLASSIFIES)):
            return RERANKER if _label_count(config, architectures) == 1 else CLASSES
        if is_any(_INTERACTS_LATE):
            return LATE_INTERACTION
        return OF_TOKENS if is_any(_OF_TOKENS) else EMBEDDINGS
    for pattern, answers in (
        (_SPEECH, SPEECH),
        (_SPEECH_AND_TEXT, SPEECH_AND_TEXT),
        (_TEXT_AND_SPEECH, TEXT_AND_SPEECH),
    ):
        if is_any(pattern):
            return answers
    return TEXT if has_template or serve.chat_template else UNTRAINED_TEXT


def _label_count(config: Mapping[str, Any], architectures: Sequence[str]) -> int:
    """Return the number of classes; a model with one gives scores, as vLLM sees it."""
    if any(name.endswith("ForRanking") for name in architectures):
        return 1
    if isinstance(tokens := config.get("classifier_from_token"), list) and tokens:
        # Of two tokens, such as no and yes, one is the score.
        return 1 if len(tokens) == 2 else len(tokens)
    count = config.get("num_labels")
    labels = config.get("id2label")
    if isinstance(count, int) and not isinstance(count, bool):
        return count
    # The default of transformers is two.
    return len(labels) if isinstance(labels, dict) and labels else 2
