"""The format's part on serving: vLLM's own settings, each under its flag's name."""

import os
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from sparkdeploy.about import about
from sparkdeploy.recipe.fields import (
    SUBFOLDER,
    WORKSPACE_TEMPLATE,
    Fraction,
    HostPath,
    Port,
    PositiveInt,
    Printable,
    Revision,
    ServedName,
    Strict,
    Tokens,
    Word,
)
from sparkdeploy.recipe.paths import is_folder
from sparkdeploy.recipe.weights import Drafter, Weights

SPECULATIVE_CONFIG = "--speculative-config"
IMAGE_FOLDERS = "/workspace/"
"""Where mods make folders in the image (image/inside/apply_mod.py)."""


class Speculative(Strict):
    """Speculative decoding: which drafter, and how many tokens it drafts a step.

    Any further key is one of vLLM's own, such as `draft_sample_method` or `moe_backend`.
    """

    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[str, JsonValue]

    method: Annotated[
        Word | None,
        about(
            "How it drafts, by one of vLLM's own names.",
            "mtp",
            flag=f"{SPECULATIVE_CONFIG}, `method`",
            unset="vLLM reads it from the drafter",
            consent="this method names code, or writes files",
        ),
    ] = None
    tokens: Annotated[
        int,
        Field(ge=1, le=64),
        about(
            "How many tokens are drafted a step.",
            2,
            unit="tokens",
            flag=f"{SPECULATIVE_CONFIG}, `num_speculative_tokens`",
        ),
    ]
    model: Annotated[
        HostPath | None,
        about(
            "The drafter, where it is a model of its own: ORG/NAME, or a folder, which begins with "
            "`/`, `~` or `.`.",
            "z-lab/Qwen3.5-122B-A10B-DFlash",
            flag=f"{SPECULATIVE_CONFIG}, `model`",
            unset="the served model's own layer drafts",
            consent="the container reads this folder",
        ),
    ] = None
    revision: Annotated[Revision, about("Of the drafter, as `model.revision`.", "main")] = "main"

    subfolder: Annotated[
        Annotated[str, Field(pattern=SUBFOLDER)] | None,
        about(
            "The folder of `model` that holds the drafter.",
            "dflash",
            unset="the drafter is all of `model`",
        ),
    ] = None

    @property
    def is_in_image(self) -> bool:
        """Whether the drafter is a folder of the image, which a mod makes: nothing is mounted."""
        named = self.model or ""
        return named.startswith(IMAGE_FOLDERS) and not os.path.isdir(named)  # noqa: PTH112 - never raises

    @property
    def is_mtp(self) -> bool:
        """Whether the served model's own layer drafts: `deepseek_mtp` is vLLM's older name."""
        by_method = self.method == "mtp" or (self.method or "").endswith("_mtp")
        return by_method and self.model is None

    @property
    def drafter(self) -> Drafter | None:
        """The model that drafts, where it is one of its own and not in the image."""
        if self.model is None or self.is_in_image:
            return None
        # Whether it is a repository is held when it is looked for, as for every word of a hub.
        path, repo = (self.model, None) if is_folder(self.model) else (None, self.model)
        return Drafter.model_construct(
            repo=repo, revision=self.revision, path=path, subfolder=self.subfolder
        )

    @property
    def further(self) -> dict[str, JsonValue]:
        return dict(self.__pydantic_extra__)


class LoraAdapter(Weights):
    """A LoRA adapter, which clients ask for by its name: `repo` or `path` says where it is."""

    name: Annotated[ServedName, about("What clients ask for.", "sql", flag="--lora-modules")]


class Serve(Strict):
    """vLLM's own settings, each under its flag's name.

    A flag that has no field goes into `extra_args`.
    """

    port: Annotated[
        Port,
        about(
            "On loopback; on every address with `--public`. `up --port` sets it.",
            8001,
            unit="port",
            flag="--port",
        ),
    ] = 8000
    attention_backend: Annotated[Word | None, about("The attention kernels.", "FLASHINFER")] = None
    speculative: Annotated[
        Speculative | None,
        about(
            "The drafter, and how many tokens it drafts; its keys stand below.",
            {"method": "mtp", "tokens": 2},
            flag=SPECULATIVE_CONFIG,
            unset="no drafts",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Word, about("How the KV cache is stored; a smaller format holds more requests.", "fp8")
    ] = "auto"
    mamba_ssm_cache_dtype: Annotated[
        Word | None,
        about(
            "How states of Gated DeltaNet and Mamba are stored: `float32`, `bfloat16`, `float16`.",
            "bfloat16",
            unset="what the model's config.json says",
        ),
    ] = None
    quantization: Annotated[
        Word | None,
        about(
            "How the weights are quantised, where the model does not say it itself.",
            "modelopt_fp4",
            unset="what the model's config.json says",
        ),
    ] = None
    max_model_len: Annotated[
        Tokens | Literal["auto"] | None,
        about(
            "The longest request, its answer included; `64K` is 65,536 and `64k` 64,000, as for "
            "vLLM. `auto`: what memory allows. `up --max-len` sets it.",
            "64K",
            unit="tokens",
            unset="what the model's config.json allows",
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        Fraction,
        about(
            "How much of the GPU's memory vLLM may use; on a Spark that is the machine's.",
            0.85,
            unit="share of 1",
        ),
    ] = 0.85
    reasoning_parser: Annotated[
        Word | None,
        about("The parser of reasoning.", "qwen3", unset="reasoning stays in the answer's text"),
    ] = None
    tool_call_parser: Annotated[
        Word | None,
        about(
            "The parser of tool calls.",
            "qwen3_coder",
            unset="calls stay in the text",
        ),
    ] = None
    enable_auto_tool_choice: Annotated[
        bool | None,
        about("Whether the model may call tools; needs `tool_call_parser`.", example=True),
    ] = None
    load_format: Annotated[
        Word | None,
        about(
            "How weights are read from disk.",
            "instanttensor",
            consent="a format with pickles in it runs code of whoever wrote the weights",
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        Tokens | None,
        about(
            "How many tokens one step computes, of all requests together: more shorten the wait "
            "for the first token and lengthen the gaps of others.",
            8192,
            unit="tokens",
        ),
    ] = None
    max_num_seqs: Annotated[
        PositiveInt | None,
        about(
            "How many requests are answered at the same time; more wait in a queue.",
            4,
            unit="requests",
        ),
    ] = None
    runner: Annotated[
        Word | None,
        about("`pooling` serves embeddings, scores and classes instead of text.", "pooling"),
    ] = None
    convert: Annotated[
        Word | None, about("What a model of texts is turned into for `pooling`.", "embed")
    ] = None
    generation_config: Annotated[
        Word | None,
        about("`auto`: sampling that no request names is the model's own. `vllm`: vLLM's.", "vllm"),
    ] = None
    enable_chunked_prefill: Annotated[
        bool | None,
        about("Whether long prompts are read in parts, beside others' answers.", example=True),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        about("Whether the beginning of a prompt that was read before is kept.", example=True),
    ] = None
    enable_expert_parallel: Annotated[
        bool | None,
        about("Whether ranks share out whole experts instead of parts of each.", example=True),
    ] = None
    chat_template: Annotated[
        HostPath | None,
        about(
            "A file beside the recipe, which ends in `.jinja`.",
            "templates/mine.jinja",
            flag="--chat-template",
            consent="vLLM reads this file, and whoever asks the model may see what it says",
            unset="the model's own",
        ),
    ] = None
    chat_template_of_mod: Annotated[
        Annotated[str, Field(pattern=WORKSPACE_TEMPLATE)] | None,
        about(
            "A template that one of the recipe's mods brings: its place below /workspace in the "
            "image. Without mods the model's own is used.",
            "templates/theirs.jinja",
            flag="--chat-template",
            unset="the model's own",
        ),
    ] = None
    default_chat_template_kwargs: Annotated[
        dict[str, JsonValue] | None,
        about(
            "Values that the chat template gets where a request names none.",
            {"enable_thinking": False},
            consent="the model's chat template and its tokenizer take this value",
        ),
    ] = None
    hf_overrides: Annotated[
        dict[str, JsonValue] | None,
        about(
            "Values in the place of config.json's.",
            {"max_position_embeddings": 65536},
            consent="another configuration may load other code for the model",
        ),
    ] = None
    override_generation_config: Annotated[
        dict[str, JsonValue] | None,
        about(
            "Sampling where a request names none.",
            {"temperature": 0.6, "top_p": 0.95},
            consent="it is no setting of sampling",
        ),
    ] = None
    compilation_config: Annotated[
        dict[str, JsonValue] | None,
        about(
            "How vLLM compiles and captures CUDA graphs.",
            {"cudagraph_mode": "PIECEWISE"},
            consent="a compiler's setting may name a module or a folder",
        ),
    ] = None
    enforce_eager: Annotated[
        bool | None,
        about("No compiling and no CUDA graphs: starts sooner, runs slower.", example=True),
    ] = None
    trust_remote_code: Annotated[
        bool | None,
        about(
            "Whether Python of the model's repository is run.",
            example=True,
            consent="the model's repository runs Python of its own, beside your key",
        ),
    ] = None
    lora: list[LoraAdapter] = Field(default_factory=list)
    env: Annotated[
        dict[str, Printable],
        about(
            "Variables of the container.",
            {"VLLM_LOGGING_LEVEL": "DEBUG"},
            unset="none beside ours",
            consent="a variable that nobody has judged; some name code, a file or a host",
        ),
    ] = Field(default_factory=dict)
    extra_args: Annotated[
        list[Printable],
        about(
            "Flags of vLLM's that have no field, word by word.",
            ["--seed", "1"],
            flag="these flags",
            unset="none",
            consent="a flag that nobody has judged; some load code or open a port",
        ),
    ] = Field(default_factory=list)

    @property
    def context_limit(self) -> int | None:
        """In tokens; None where vLLM decides."""
        return self.max_model_len if isinstance(self.max_model_len, int) else None
