"""The recipe format: what may stand in a recipe file, and nothing else."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from sparkdeploy.recipe.fields import (
    NAME_PATTERN,
    WORKSPACE_TEMPLATE,
    BareOff,
    HostPath,
    ImageReference,
    Port,
    PositiveInt,
    Printable,
    Repository,
    Revision,
    ServedName,
    Strict,
    Text,
    Tokens,
    VllmRelease,
    Word,
)
from sparkdeploy.recipe.paths import is_folder


class Weights(Strict):
    """A repository on the hub, or a folder on this machine, which goes before it."""

    repo: Repository | None = None
    """A repository on the hub."""
    revision: Revision = "main"
    """A branch, a tag or a commit; `up` pins the commit that it was."""
    path: HostPath | None = None
    """A folder of this machine in its place; relative to the recipe's file."""

    @property
    def source(self) -> str:
        """Where they come from, as the recipe names it."""
        return self.path or self.repo or ""

    @property
    def known_as(self) -> str:
        """The name under which others know them, whether they lie in a folder or not."""
        return self.repo or self.source


class Model(Weights):
    """Which weights are served, and under which names."""

    served_name: ServedName | Annotated[list[ServedName], Field(min_length=1)] | None = None
    """What clients call it, the first of several counts; left out: the repository's name, or the
    folder's."""

    @property
    def served_names(self) -> tuple[str, ...]:
        if self.served_name is None:
            return (self.repo or self.source.rstrip("/").rpartition("/")[2],)
        return (self.served_name,) if isinstance(self.served_name, str) else (*self.served_name,)


class Fp8Dense(Strict):
    """How the dense layers that the INT4 checkpoint leaves in BF16 become FP8."""

    mode: Annotated[Literal["online", "prebuilt", "off"], BareOff] = "off"
    layers: Literal["shared_expert"] = "shared_expert"
    source: HostPath | None = None
    """ORG/NAME[@REVISION], or a folder: what begins with `/`, `~` or `.`, as for `model.path`."""
    from_: Annotated[Literal["source", "hub", "folder"], Field(alias="from")] = "source"
    """For mode prebuilt. `source`: the FP8 tensors are fetched from there. `hub`, `folder`: the
    model itself is a finished hybrid, from the hub or in `model.path`."""

    @property
    def is_finished(self) -> bool:
        """Whether the model brings its FP8 weights under their own names."""
        return self.mode == "prebuilt" and self.from_ != "source"


class DraftLmHead(Strict):
    """An LM head of the draft model's own, over its most frequent tokens."""

    rows: Annotated[int, Field(ge=64)] = 65_536
    """How many tokens the draft head knows, the most frequent ones."""
    dtype: Literal["int8"] = "int8"


class Checkpoint(Strict):
    """What is done to the downloaded weights before vLLM mounts them."""

    fp8_dense: Fp8Dense = Fp8Dense()
    mtp: Annotated[Literal["required", "off"] | None, BareOff] = None
    """Whether the draft layer has to be there; null leaves that to vLLM."""
    mtp_weights: Literal["int4-fp8", "bf16"] = "bf16"
    """What the plugin makes of the draft layer while it is loaded: of its experts INT4 in groups
    of 128, of its other matrices FP8. The model verifies every draft."""
    lm_head: Literal["int8", "int4", "bf16"] = "bf16"
    """What the plugin makes of the LM head while it is loaded; the logits of `int8` and `int4` are
    FP32."""
    shared_experts: Literal["int4", "bf16"] = "bf16"
    """What the plugin makes of the shared experts while they are loaded: INT4 in groups of 128."""
    draft_lm_head: DraftLmHead | None = None


class Speculative(Strict):
    """Speculative decoding: which drafter, and how many tokens it drafts a step.

    Any further key is one of vLLM's own, such as `draft_sample_method` or `moe_backend`.
    """

    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[str, JsonValue]

    method: Word | None = None
    """One of vLLM's own names; left out, vLLM tells it from the drafter."""
    tokens: Annotated[int, Field(ge=1, le=64)]
    """Drafted a step: vLLM's `num_speculative_tokens`."""
    model: HostPath | None = None
    """The drafter, where it is a model of its own: ORG/NAME, or a folder: what begins with `/`, `~`
    or `.`, as for `model.path`."""
    revision: Revision = "main"
    """Of the drafter."""

    @property
    def is_mtp(self) -> bool:
        """Whether the served model's own layer drafts: `deepseek_mtp` is vLLM's older name."""
        by_method = self.method == "mtp" or (self.method or "").endswith("_mtp")
        return by_method and self.model is None

    @property
    def drafter(self) -> Weights | None:
        """The model that drafts, where it is one of its own."""
        if self.model is None:
            return None
        if is_folder(self.model):
            return Weights.model_construct(repo=None, revision=self.revision, path=self.model)
        # Whether it is a repository is held when it is looked for, as for every word of a hub.
        return Weights.model_construct(repo=self.model, revision=self.revision, path=None)

    @property
    def further(self) -> dict[str, JsonValue]:
        return dict(self.__pydantic_extra__)


class LoraAdapter(Weights):
    """A LoRA adapter, which clients ask for by its name."""

    name: ServedName
    """What clients ask for."""


class Serve(Strict):
    """vLLM's own settings, each under its flag's name."""

    port: Port = 8000
    """On loopback; on every address with `--public`."""
    attention_backend: Word | None = None
    speculative: Speculative | None = None
    kv_cache_dtype: Word = "auto"
    mamba_ssm_cache_dtype: Word | None = None
    """Of the states of Gated DeltaNet and Mamba: `float32`, `bfloat16`, `float16`; left out, what
    the model's config.json says."""
    quantization: Word | None = None
    max_model_len: Tokens | Literal["auto"] | None = None
    """In tokens; `64k` is 64,000 and `64K` is 65,536, as for vLLM. `auto`: what memory allows."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.85
    reasoning_parser: Word | None = None
    tool_call_parser: Word | None = None
    enable_auto_tool_choice: bool | None = None
    load_format: Word | None = None
    max_num_batched_tokens: Tokens | None = None
    max_num_seqs: PositiveInt | None = None
    runner: Word | None = None
    """`pooling` serves embeddings, scores and classes instead of text."""
    convert: Word | None = None
    generation_config: Word | None = None
    """`auto`: the model's own sampling defaults; `vllm`: none."""
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    enable_expert_parallel: bool | None = None
    chat_template: HostPath | None = None
    """A file beside the recipe, instead of the model's own template."""
    chat_template_of_mod: Annotated[str, Field(pattern=WORKSPACE_TEMPLATE)] | None = None
    """A template that one of the recipe's mods brings: its place below /workspace in the image.
    Without mods the model's own is used."""
    default_chat_template_kwargs: dict[str, JsonValue] | None = None
    hf_overrides: dict[str, JsonValue] | None = None
    override_generation_config: dict[str, JsonValue] | None = None
    compilation_config: dict[str, JsonValue] | None = None
    enforce_eager: bool | None = None
    trust_remote_code: bool | None = None
    lora: list[LoraAdapter] = Field(default_factory=list)
    env: dict[str, Printable] = Field(default_factory=dict)
    """Variables of the container."""
    extra_args: list[Printable] = Field(default_factory=list)
    """Flags of vLLM's that have no field, word by word."""

    @property
    def context_limit(self) -> int | None:
        """In tokens; None where vLLM decides."""
        return self.max_model_len if isinstance(self.max_model_len, int) else None


class Cluster(Strict):
    """Read only with --cluster. The three sizes multiplied are the GPUs of all nodes."""

    tensor_parallel: PositiveInt = 2
    """Parts that every layer is divided into."""
    pipeline_parallel: PositiveInt = 1
    """Parts that the row of layers is divided into."""
    data_parallel: PositiveInt = 1
    """Copies of the whole model; each answers requests of its own."""
    min_nodes: PositiveInt | None = None
    """Fewer are refused."""
    max_nodes: PositiveInt | None = None
    """More are refused."""
    backend: Literal["native", "ray"] = "native"
    """How the nodes meet: by vLLM's own means, or in a Ray cluster."""
    speculative: Annotated[Speculative | Literal["off"] | None, BareOff] = None

    @property
    def least_nodes(self) -> int:
        return self.min_nodes or 1


class Limits(Strict):
    memory_floor_gib: Annotated[float, Field(ge=0, le=512, strict=False)] = 4.0
    """The guard ends vLLM before the machine has less memory than that."""
    startup_timeout_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] = 1800.0
    """From the start of the containers to the first answer."""
    stall_s: Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)] = 120.0
    """Requests that move nothing for so long are a hung engine, which the guard ends; 0: never."""
    canary_idle_s: Annotated[float, Field(ge=60, strict=False, allow_inf_nan=False)] | None = None
    """After so long without a request the guard asks for a token itself; null: it does not."""


Subject = Literal["attention", "moe", "linear", "kv_cache", "speculation", "graphs", "transport"]
"""What vLLM chooses while it starts, or NCCL below it, and tells in its log."""


class Backends(Strict):
    """What the log must show after a start; another choice of vLLM's is a failure.

    `serve` names the attention back end, the KV cache's format and the drafter; these are held
    against the log anyway. Here stands what has no flag, and what is only worth a warning.
    """

    moe: Annotated[str, Field(pattern=r"^[\w ]+$")] | None = None
    """The kernel of the experts, by its name in the log."""
    linear: Annotated[str, Field(pattern=r"^\w+$")] | None = None
    """A kernel that some linear layer must have got."""
    graphs: Annotated[Literal["full", "piecewise", "off"], BareOff] | None = None
    """The least that is captured as CUDA graphs."""
    warn_only: list[Subject] = Field(default_factory=list)
    """Where another choice is told, and fails nothing."""


TokensPerSecond = Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)]


class Expect(Strict):
    """What others reported for this recipe, and where."""

    end_to_end_tok_s: TokensPerSecond | None = None
    """Tokens of an answer a second with prefill and HTTP in it, as `bench` takes suite five."""
    stream_decode_tok_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = (
        None
    )
    """Tokens a second of one stream once it runs; no floor for `bench --gate`."""
    hardware: Printable
    engine: Printable
    source: Printable
    """Who reported it."""

    @property
    def tok_s(self) -> float:
        """Whichever figure is told."""
        return self.end_to_end_tok_s or self.stream_decode_tok_s or 0.0

    @property
    def figure(self) -> Literal["end to end", "decode"]:
        return "decode" if self.end_to_end_tok_s is None else "end to end"


class Mod(Strict):
    """A change to an engine's image that others wrote: a folder of theirs, or commands.

    Both run as root while the image is built, so both need consent.
    """

    folder: Printable | None = None
    """As its author names it, `mods/NAME`."""
    run: Text | None = None
    """Commands of a shell."""
    network: bool = False
    """Whether they may fetch while the image is built; what they fetch is in no fingerprint."""

    @property
    def name(self) -> str:
        return self.folder or (self.run or "").strip().partition("\n")[0]


class Recipe(Strict):
    """One recipe with everything it inherits filled in."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    """1, the version of this format."""
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Small letters, digits, `.`, `_` and `-`."""
    title: Printable
    """One line for people."""
    source: Printable | None = None
    """Whose settings they are, where they are another's."""
    preview: Printable | None = None
    """The fork or the unreleased build of vLLM that it needs; an engine of ours is no such one."""
    least_vllm: VllmRelease | None = None
    """The first release that serves it; an older one is refused."""
    extends: Printable | None = None
    """The recipe that this one changes, by its name or by its file."""
    engine: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Where vLLM comes from; `sparkdeploy list` shows them."""
    image: ImageReference | None = None
    """For an engine of kind `image`: which one, by digest, local id or tag. `up` asks once what a
    tag is, and keeps to that."""
    mods: list[Mod] = Field(default_factory=list)
    """Changes to the engine's image that others wrote, in this order, each a stage of its own."""
    allow_known_bad: bool = False
    """Serve with a vLLM release that is known to fail on a Spark; `--allow-known-bad` sets it."""
    allow_unsafe: bool = False
    """Take settings that load code or move files; only `--allow-unsafe` sets it."""
    model: Model
    checkpoint: Checkpoint = Checkpoint()
    serve: Serve = Serve()
    cluster: Cluster = Cluster()
    backends: Backends = Backends()
    limits: Limits = Limits()
    expect: Expect | None = None

    @property
    def needs_plugin(self) -> bool:
        """Whether vLLM has to be taught something: a treatment, or TurboQuant with its mends."""
        is_treated = self.checkpoint.fp8_dense.mode != "off" or self.checkpoint.lm_head != "bf16"
        is_treated = is_treated or self.checkpoint.draft_lm_head is not None
        is_treated = is_treated or self.checkpoint.mtp_weights != "bf16"
        is_treated = is_treated or self.checkpoint.shared_experts != "bf16"
        return is_treated or self.serve.kv_cache_dtype.startswith("turboquant")

    @property
    def companions(self) -> tuple[Weights, ...]:
        """What is mounted beside the model: the drafter, if there is one, and the adapters."""
        speculative = self.serve.speculative
        drafter = speculative.drafter if speculative is not None else None
        return (*(() if drafter is None else (drafter,)), *self.serve.lora)
