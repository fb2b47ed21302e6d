"""The format's part on weights: which are served, and what is done to them before."""

from typing import Annotated, Literal

from pydantic import Field

from sparkdeploy.about import about
from sparkdeploy.recipe.fields import HostPath, OrBareOff, Repository, Revision, ServedName, Strict


class Weights(Strict):
    """A repository on the hub, or a folder on this machine, which goes before it."""

    repo: Annotated[
        Repository | None,
        about("A repository on the hub.", "Qwen/Qwen3-8B", unset="needed, unless `path` is given"),
    ] = None
    revision: Annotated[
        Revision, about("A branch, a tag or a commit; `up` pins the commit that it was.", "main")
    ] = "main"
    path: Annotated[
        HostPath | None,
        about(
            "A folder of this machine in its place; relative to the recipe's file.",
            "~/models/qwen3-8b",
            unset="the repository's download",
            consent="the container reads this folder",
        ),
    ] = None

    @property
    def source(self) -> str:
        return self.path or self.repo or ""

    @property
    def known_as(self) -> str:
        """The name under which others know them, whether they lie in a folder or not."""
        return self.repo or self.source


class Drafter(Weights):
    """What drafts; in a repository or folder of more it is one folder."""

    subfolder: str | None = None


class Model(Weights):
    """Which weights are served, and under which names: `repo` or `path` is needed.

    vLLM gets their folder inside the container, as `vllm serve FOLDER`.
    """

    served_name: Annotated[
        ServedName | Annotated[list[ServedName], Field(min_length=1)] | None,
        about(
            "What clients call it; of several, the first counts.",
            "qwen",
            flag="--served-model-name",
            unset="the repository's name, or the folder's",
        ),
    ] = None

    @property
    def served_names(self) -> tuple[str, ...]:
        if self.served_name is None:
            return (self.repo or self.source.rstrip("/").rpartition("/")[2],)
        return (self.served_name,) if isinstance(self.served_name, str) else (*self.served_name,)


class Fp8Dense(Strict):
    """How dense layers that a checkpoint leaves at 16 bits become FP8; of any checkpoint.

    `online` takes AutoRound, GPTQ, AWQ, FP8, NVFP4, MXFP4 and 16 bits alike. What the checkpoint
    quantises, norms, routers, gates, convolutions, embeddings and towers are never touched.
    """

    mode: Annotated[
        OrBareOff[Literal["online", "prebuilt", "off"]],
        about("`online`: while vLLM loads. `prebuilt`: from tensors that are FP8.", "online"),
    ] = "off"
    layers: Annotated[
        Literal["shared_expert", "all"] | None,
        about(
            "Which layers these are. `all`: attention, Gated DeltaNet and Mamba projections, "
            "shared experts and dense MLPs.",
            "all",
            unset="`all` for mode online, `shared_expert` for mode prebuilt",
        ),
    ] = None
    kernel: Annotated[
        Literal["fused", "vllm"],
        about(
            "For up to eight rows. `fused`: a shared expert in two launches, its inputs at 16 "
            "bits; where that does not give vLLM's result, and on CPUs, vLLM's. `vllm`: always.",
            "vllm",
        ),
    ] = "fused"
    source: Annotated[
        HostPath | None,
        about(
            "Where FP8 tensors are: ORG/NAME[@REVISION], or a folder, which begins with `/`, `~` "
            "or `.`.",
            "Qwen/Qwen3.5-122B-A10B-FP8",
            unset="needed for mode prebuilt, and refused otherwise",
            consent="the container reads this folder",
        ),
    ] = None
    from_: Annotated[
        Literal["source", "hub", "folder"],
        Field(alias="from"),
        about(
            "For mode prebuilt. `source`: the FP8 tensors are fetched from there. `hub`, "
            "`folder`: the model itself is a finished hybrid, from the hub or in `model.path`.",
            "source",
        ),
    ] = "source"

    @property
    def takes_all(self) -> bool:
        """Whether it is for every dense layer at 16 bits, not for shared experts alone."""
        return self.mode == "online" and self.layers != "shared_expert"

    @property
    def is_finished(self) -> bool:
        """Whether the model brings its FP8 weights under their own names."""
        return self.mode == "prebuilt" and self.from_ != "source"


class DraftLmHead(Strict):
    """The part of the LM head that drafts ask: its most frequent tokens.

    For MTP layers, and for drafters that use the model's head (EAGLE, EAGLE3, DFlash); tied
    embeddings are a head, too. The model itself verifies every draft with its whole head.
    """

    rows: Annotated[
        int,
        Field(ge=64),
        about("How many tokens the draft head knows, the most frequent ones.", 65_536, unit="rows"),
    ] = 65_536
    dtype: Annotated[Literal["int8"], about("Of its matrix.", "int8")] = "int8"


class Checkpoint(Strict):
    """What is done to the downloaded weights before vLLM mounts them; the plugin does it while it
    loads, and the downloads stay as they are."""

    fp8_dense: Fp8Dense = Fp8Dense()
    mtp: Annotated[
        OrBareOff[Literal["required", "off"] | None],
        about("Whether the draft layer has to be there.", "required", unset="left to vLLM"),
    ] = None
    mtp_weights: Annotated[
        Literal["int4-fp8", "bf16"],
        about(
            "What becomes of the draft layer: of its experts INT4 in groups of 128, of its other "
            "matrices FP8. The model verifies every draft.",
            "int4-fp8",
        ),
    ] = "bf16"
    lm_head: Annotated[
        Literal["int8", "int4", "bf16"],
        about(
            "What becomes of the LM head, where it is no tied embeddings; logits of `int8` and "
            "`int4` are FP32.",
            "int8",
        ),
    ] = "bf16"
    shared_experts: Annotated[
        Literal["int4", "bf16"],
        about("What becomes of the shared experts: INT4 in groups of 128.", "int4"),
    ] = "bf16"
    draft_lm_head: DraftLmHead | None = None
    routing: Annotated[
        Literal["fused", "vllm"],
        about(
            "For up to eight rows of a converted model with experts. `fused`: chosen and sorted in "
            "one launch, where that gives vLLM's choice; never on CPUs. `vllm`: in its four.",
            "vllm",
        ),
    ] = "fused"

    @property
    def converts(self) -> bool:
        """Whether the plugin makes anything of the weights that the checkpoint does not have."""
        kept = {self.lm_head, self.mtp_weights, self.shared_experts} == {"bf16"}
        return self.fp8_dense.mode != "off" or not kept or self.draft_lm_head is not None
