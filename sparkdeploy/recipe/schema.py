"""The recipe format: what may stand in a recipe file, and nothing else."""

from typing import Annotated, Literal

from pydantic import Field

from sparkdeploy.about import about
from sparkdeploy.recipe.fields import (
    NAME_PATTERN,
    Decimal,
    FormatVersion,
    ImageReference,
    OrBareOff,
    PositiveInt,
    Printable,
    Strict,
    Text,
    VllmRelease,
)
from sparkdeploy.recipe.serve import LoraAdapter, Serve, Speculative
from sparkdeploy.recipe.weights import Checkpoint, DraftLmHead, Fp8Dense, Model, Weights

__all__ = [
    "Backends",
    "Checkpoint",
    "Cluster",
    "DraftLmHead",
    "Expect",
    "Fp8Dense",
    "Limits",
    "LoraAdapter",
    "Mod",
    "Model",
    "Recipe",
    "Serve",
    "Speculative",
    "Subject",
    "Weights",
]


class Cluster(Strict):
    """Several machines; read only with --cluster. The three sizes multiplied are the GPUs of all
    nodes."""

    tensor_parallel: Annotated[
        PositiveInt,
        about(
            "Parts that every layer is divided into.", 2, unit="GPUs", flag="--tensor-parallel-size"
        ),
    ] = 2
    pipeline_parallel: Annotated[
        PositiveInt,
        about(
            "Parts that the row of layers is divided into.",
            2,
            unit="GPUs",
            flag="--pipeline-parallel-size",
        ),
    ] = 1
    data_parallel: Annotated[
        PositiveInt,
        about(
            "Copies of the whole model; each answers requests of its own.",
            2,
            unit="copies",
            flag="--data-parallel-size",
        ),
    ] = 1
    min_nodes: Annotated[
        PositiveInt | None, about("Fewer are refused.", 2, unit="nodes", unset="1")
    ] = None
    max_nodes: Annotated[
        PositiveInt | None, about("More are refused.", 4, unit="nodes", unset="no limit")
    ] = None
    backend: Annotated[
        Literal["native", "ray"],
        about(
            "How the nodes meet: by vLLM's own means, or in a Ray cluster.",
            "native",
            flag="--distributed-executor-backend",
            consent="Ray listens on every address, without a key",
        ),
    ] = "native"
    speculative: Annotated[
        OrBareOff[Speculative | Literal["off"] | None],
        about(
            "In the place of `serve.speculative` on several nodes, with the same keys; or `off`.",
            "off",
            flag="--speculative-config",
            unset="as `serve.speculative` says",
        ),
    ] = None

    @property
    def least_nodes(self) -> int:
        return self.min_nodes or 1


class Limits(Strict):
    """Limits that the guard and `up` enforce."""

    memory_floor_gib: Annotated[
        Decimal,
        Field(ge=0, le=512),
        about(
            "The guard ends vLLM when the machine has less memory available.",
            4,
            unit="GiB",
            consent="below 4 GiB the guard may come too late to save the machine",
        ),
    ] = 4.0
    startup_timeout_s: Annotated[
        Decimal,
        Field(gt=0, allow_inf_nan=False),
        about("From the start of the containers to the first answer.", 3600, unit="seconds"),
    ] = 1800.0
    stall_s: Annotated[
        Decimal,
        Field(ge=0, allow_inf_nan=False),
        about(
            "So long without progress while requests run, and the guard ends vLLM; 0: never.",
            300,
            unit="seconds",
        ),
    ] = 120.0
    canary_idle_s: Annotated[
        Annotated[Decimal, Field(ge=60, allow_inf_nan=False)] | None,
        about(
            "After so long without a request the guard asks for a token itself.",
            600,
            unit="seconds",
            unset="it does not ask",
        ),
    ] = None
    idle_stop_s: Annotated[
        Annotated[Decimal, Field(ge=10, allow_inf_nan=False)] | None,
        about(
            "After so long without a request the deployment stops, on one machine.",
            1800,
            unit="seconds",
            unset="it does not stop",
        ),
    ] = None


Subject = Literal["attention", "moe", "linear", "kv_cache", "speculation", "graphs", "transport"]
"""What vLLM chooses while it starts, or NCCL below it, and tells in its log."""


class Backends(Strict):
    """What vLLM's log is compared with after a start; another choice of vLLM's is a warning.

    Attention, the KV cache's format and drafts are compared as `serve` names them. Here stands
    what has no flag of its own.
    """

    moe: Annotated[
        Annotated[str, Field(pattern=r"^[\w ]+$")] | None,
        about(
            "The kernel of the experts, by its name in the log.", "MARLIN", unset="not looked at"
        ),
    ] = None
    linear: Annotated[
        Annotated[str, Field(pattern=r"^\w+$")] | None,
        about(
            "A kernel that some linear layer must have got.",
            "MarlinLinearKernel",
            unset="not looked at",
        ),
    ] = None
    graphs: Annotated[
        OrBareOff[Literal["full", "piecewise", "off"] | None],
        about(
            "The least that must be captured as CUDA graphs.", "piecewise", unset="not looked at"
        ),
    ] = None
    warn_only: Annotated[
        list[Subject],
        about(
            "`transport` lets NCCL use sockets, which stops a start otherwise.",
            ["transport"],
            unset="none",
        ),
    ] = Field(default_factory=list)


TokensPerSecond = Annotated[Decimal, Field(gt=0, allow_inf_nan=False)]


class Expect(Strict):
    """What others measured with this recipe: one of the two figures, and its source."""

    end_to_end_tok_s: Annotated[
        TokensPerSecond | None,
        about(
            "Tokens a second with prefill and HTTP in it, as in `bench --suite five`.",
            51.6,
            unit="tokens a second",
            unset="none",
        ),
    ] = None
    stream_decode_tok_s: Annotated[
        TokensPerSecond | None,
        about(
            "Tokens a second of one stream, prefill left out; no floor for `bench --gate`.",
            59.0,
            unit="tokens a second",
            unset="none",
        ),
    ] = None
    hardware: Annotated[Printable, about("The machine.", "DGX Spark")]
    engine: Annotated[Printable, about("The vLLM.", "vLLM 0.19.1")]
    source: Annotated[Printable, about("Who reported it.", "albond, v2")]

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

    folder: Annotated[
        Printable | None,
        about("The folder with its `run.sh`.", "mods/fix-parser", unset="`run` is needed"),
    ] = None
    run: Annotated[
        Text | None,
        about("Commands of a shell.", "pip install numba==0.61", unset="`folder` is needed"),
    ] = None
    network: Annotated[
        bool,
        about(
            "Whether they may fetch while the image is built; what they fetch is in no "
            "fingerprint.",
            example=True,
        ),
    ] = False

    @property
    def name(self) -> str:
        return self.folder or (self.run or "").strip().partition("\n")[0]


class Recipe(Strict):
    """One recipe with everything it inherits filled in."""

    schema_version: FormatVersion
    name: Annotated[
        str, Field(pattern=NAME_PATTERN), about("Small letters, digits, `.`, `_` and `-`.", "mine")
    ]
    title: Annotated[Printable, about("One line for people.", "A model of my own")]
    source: Annotated[
        Printable | None,
        about("Whose settings they are, where they are another's.", "albond, v2", unset="yours"),
    ] = None
    preview: Annotated[
        Printable | None,
        about(
            "The fork or unreleased build of vLLM that it needs.",
            "a fork of vLLM with GLM-5.3",
            unset="none",
        ),
    ] = None
    least_vllm: Annotated[
        VllmRelease | None,
        about(
            "The first release that serves it; an older one is refused.",
            "0.33.0",
            unset="what the model's family needs",
        ),
    ] = None
    extends: Annotated[
        Printable | None,
        about("The recipe that this one changes, by its name or by its file.", "v2", unset="none"),
    ] = None
    engine: Annotated[
        str,
        Field(pattern=NAME_PATTERN),
        about("Where vLLM comes from; `sparkdeploy list` shows them.", "cuda-0.33"),
    ]
    image: Annotated[
        ImageReference | None,
        about(
            "For an engine of kind `image`: which one, by digest, local id or tag. `up` pins a "
            "tag to its digest.",
            "vllm/vllm-openai:v0.33.0",
            unset="what the engine's file names",
            consent="an image is code of others, and vLLM's image is built upon it and run",
        ),
    ] = None
    mods: list[Mod] = Field(default_factory=list)
    allow_known_bad: Annotated[
        bool,
        about(
            "Serve with a vLLM release that is known to fail on a Spark; `--allow-known-bad` sets "
            "it.",
            example=True,
        ),
    ] = False
    allow_unsafe: Annotated[
        bool,
        about(
            "Take settings that load code or move files; only `--allow-unsafe` sets it.",
            example=True,
        ),
    ] = False
    model: Model
    checkpoint: Checkpoint = Checkpoint()
    serve: Serve = Serve()
    cluster: Cluster = Cluster()
    backends: Backends = Backends()
    limits: Limits = Limits()
    expect: Expect | None = None

    @property
    def needs_plugin(self) -> bool:
        """Whether vLLM has to be taught something: a conversion, or TurboQuant with its mends."""
        return self.checkpoint.converts or self.serve.kv_cache_dtype.startswith("turboquant")

    @property
    def companions(self) -> tuple[Weights, ...]:
        """What is mounted beside the model: the drafter, if there is one, and the adapters."""
        speculative = self.serve.speculative
        drafter = speculative.drafter if speculative is not None else None
        return (*(() if drafter is None else (drafter,)), *self.serve.lora)
