"""The recipe format: what may stand in a recipe file, and nothing else."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

Port = Annotated[int, Field(ge=1024, le=65535)]
"""Below 1024 a container without capabilities may not listen."""
PositiveInt = Annotated[int, Field(ge=1)]
# YAML 1.1 reads a bare `off` as false.
_BareOff = BeforeValidator(lambda value: "off" if value is False else value)
MAX_PATH_BYTES = 2048
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"
IMAGE_PATTERN = r"^([\w./:-]+@sha256:[0-9a-f]{64}|(sha256:)?[0-9a-f]{12,64})$"
"""A digest or a local id: what a tag means can change under a deployment."""
ImageReference = Annotated[str, Field(pattern=IMAGE_PATTERN)]


def _without_control(text: str) -> str:
    """Refuse what would move a terminal's cursor, end a line or end a C string."""
    if not text.isprintable():
        raise ValueError("control characters have no place here")
    return text


Printable = Annotated[str, AfterValidator(_without_control)]


def _fits_a_file_system(text: str) -> str:
    """Refuse what the system has no name for; asked about it, it fails instead of saying no."""
    if len(text.encode()) > MAX_PATH_BYTES or max(map(len, text.encode().split(b"/"))) > 255:
        raise ValueError("the path is too long")
    return text


HostPath = Annotated[Printable, AfterValidator(_fits_a_file_system)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/+-]*$")]
"""A value that stands behind a flag: never a flag itself."""


class Strict(BaseModel):
    """Frozen, and a misspelt key or a wrong type is an error rather than a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Model(Strict):
    """Which weights: a repository on the hub, or a folder on this machine."""

    repo: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    ]
    revision: Annotated[str, Field(pattern=r"^\w+([./-]\w+)*$")] = "main"
    served_name: Annotated[str, Field(pattern=r"^[\w./:][\w./:-]*$")] = "qwen"
    path: HostPath | None = None
    """A local folder that takes the place of the repository; relative to the recipe's file."""


class Fp8Dense(Strict):
    """How the dense layers that the INT4 checkpoint leaves in BF16 become FP8."""

    mode: Annotated[Literal["online", "prebuilt", "off"], _BareOff] = "off"
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

    rows: Annotated[int, Field(ge=64)] = 32_768
    dtype: Literal["int8"] = "int8"


class Checkpoint(Strict):
    """What is done to the downloaded weights before vLLM mounts them."""

    fp8_dense: Fp8Dense = Fp8Dense()
    mtp: Annotated[Literal["required", "off"], _BareOff] = "off"
    lm_head: Literal["int8", "bf16"] = "bf16"
    draft_lm_head: DraftLmHead | None = None


class Speculative(Strict):
    """Speculative decoding: which drafter, and how many tokens it drafts a step."""

    method: Literal["mtp", "dflash"]
    tokens: Annotated[int, Field(ge=1, le=32)]
    model: Printable | None = None


class Serve(Strict):
    """vLLM's own settings, each under its flag's name."""

    port: Port = 8000
    attention_backend: Word | None = None
    speculative: Speculative | None = None
    kv_cache_dtype: Word = "auto"
    max_model_len: PositiveInt | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.85
    reasoning_parser: Word | None = None
    tool_call_parser: Word | None = None
    enable_auto_tool_choice: bool | None = None
    load_format: Word | None = None
    max_num_batched_tokens: PositiveInt | None = None
    max_num_seqs: PositiveInt | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    chat_template: HostPath | None = None
    override_generation_config: dict[str, JsonValue] | None = None
    compilation_config: dict[str, JsonValue] | None = None
    enforce_eager: bool | None = None
    trust_remote_code: bool | None = None
    env: dict[str, Printable] = Field(default_factory=dict)
    extra_args: list[Printable] = Field(default_factory=list)


class Cluster(Strict):
    """Read only with --cluster. The three sizes multiplied are the GPUs of all nodes."""

    tensor_parallel: PositiveInt = 2
    """Parts that every layer is divided into."""
    pipeline_parallel: PositiveInt = 1
    """Parts that the row of layers is divided into."""
    data_parallel: PositiveInt = 1
    """Copies of the whole model; each answers requests of its own."""
    min_nodes: PositiveInt | None = None
    max_nodes: PositiveInt | None = None
    backend: Literal["native", "ray"] = "native"
    speculative: Annotated[Speculative | Literal["off"] | None, _BareOff] = None


class Limits(Strict):
    memory_floor_gib: Annotated[float, Field(ge=0, le=512, strict=False)] = 4.0
    startup_timeout_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] = 1800.0


Subject = Literal["attention", "moe", "linear", "kv_cache", "speculation", "graphs", "transport"]
"""What vLLM chooses while it starts, or NCCL below it, and tells in its log."""


class Backends(Strict):
    """What the log must show after a start; another choice of vLLM's is a failure.

    `serve` names the attention back end, the KV cache's format and the drafter; these are held
    against the log anyway. Here stands what has no flag, and what is only worth a warning.
    """

    moe: Annotated[str, Field(pattern=r"^[\w ]+$")] | None = None
    linear: Annotated[str, Field(pattern=r"^\w+$")] | None = None
    """A kernel that some linear layer must have got."""
    graphs: Annotated[Literal["full", "piecewise", "off"], _BareOff] | None = None
    """The least that is captured as CUDA graphs."""
    warn_only: list[Subject] = Field(default_factory=list)


class Expect(Strict):
    """What others reported for this recipe, and where."""

    end_to_end_tok_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)]
    """Tokens of an answer a second with prefill and HTTP in it, as `bench` takes suite five."""
    hardware: Printable
    engine: Printable
    source: Printable


class Recipe(Strict):
    """One recipe with everything it inherits filled in."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    title: Printable
    extends: Printable | None = None
    engine: Annotated[str, Field(pattern=NAME_PATTERN)]
    image: ImageReference | None = None
    """For an engine of kind `image`: which one, by digest or local id."""
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


class DebianBase(Strict):
    """The base stage made from Debian packages where no registry answers."""

    suite: Annotated[str, Field(pattern=r"^[a-z]+$")]


class Base(Strict):
    """The lowest image stage: a registry image, and the distribution packages added to it."""

    image: Annotated[str, Field(pattern=r"^[\w][\w./:@-]*$")]
    packages: list[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]]
    debian: DebianBase | None = None
    python: Annotated[str, Field(pattern=r"^3\.\d+$")]


class SourceBuild(Strict):
    """vLLM compiled rather than installed: from what, and what the machine must have for it."""

    sdist_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    ref: Annotated[str, Field(pattern=r"^\w+([./-]\w+)*$")] | None = None
    """A git ref of vLLM's repository that takes the place of the sdist."""
    disk_gb: PositiveInt
    memory_gib: PositiveInt


class Engine(Strict):
    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    title: Printable
    kind: Literal["wheel", "source", "image", "cpu"]
    vllm: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    torch: Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")] | None = None
    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    base: Base | None = None
    lock: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """The engine whose lock this one uses; its own when left out."""
    image: ImageReference | None = None
    """For kind `image`: an existing one, by digest or local id."""
    device: Literal["cuda", "cpu"] | None = None
    """What an existing image runs on; a CPU build of torch is refused for `cuda`, the default."""
    torch_arch_list: Annotated[str, Field(pattern=r"^[0-9a-z.; +]+$")] | None = None
    source: SourceBuild | None = None
    """For kind `source`."""
    build_bytes: Annotated[int, Field(ge=0)] | None = None
    """What all stages take on Docker's disk at the height of a build, as measured."""
    note: Printable | None = None

    @property
    def runs_on(self) -> Literal["cuda", "cpu"]:
        return self.device or ("cpu" if self.kind == "cpu" else "cuda")
