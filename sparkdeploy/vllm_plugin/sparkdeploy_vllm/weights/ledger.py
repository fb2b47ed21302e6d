"""Counts what was really converted and says so once; standard library only."""

from collections.abc import Callable
from dataclasses import dataclass, field

Announce = Callable[[str], None]


class ConversionMismatchError(RuntimeError):
    """What was converted is not what the checkpoint says must be converted."""


@dataclass(slots=True, kw_only=True)
class LayerLedger:
    """Layers that were created and are not converted yet: none once the ledger is closed."""

    closed: bool = False
    fp8_modules: int = 0
    int4_modules: int = 0
    """Of shared experts; of a draft layer, layers of experts."""
    _open: dict[str, None] = field(default_factory=dict)

    def layer_created(self, name: str) -> None:
        if not self.closed:
            self._open[name] = None

    def fp8_converted(self, name: str, *, modules: int, announce: Announce) -> None:
        if name in self._open:
            self.fp8_modules += modules
            self._converted(name, announce)

    def int4_converted(self, name: str, *, modules: int = 1, announce: Announce) -> None:
        if name in self._open:
            self.int4_modules += modules
            self._converted(name, announce)

    def _converted(self, name: str, announce: Announce) -> None:
        del self._open[name]
        if not self._open:
            self._close(announce)

    def _close(self, announce: Announce) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class ConversionLedger(LayerLedger):
    """Books of one model: every layer that was created with one of our methods must be converted.

    The first time all created layers are converted the books are closed: the counts are compared
    with the checkpoint's and handed to `announce`. The target model is always complete before a
    draft model's first layer is created, so the draft (it shares the target's configuration and
    makes a second, short-lived head) never counts, and neither does a later reload of weights.

    `whole_model` is false for one stage of a pipeline, whose own counts prove nothing.
    """

    expected_fp8_modules: int | None
    head_wanted: str = "bf16"
    whole_model: bool = True
    heads: set[str] = field(default_factory=set)
    """What heads were made of, but for `bf16`."""
    expected_int4_modules: int = 0

    def head_ready(self, name: str, *, dtype: str, announce: Announce) -> None:
        if name in self._open:
            self.heads |= {dtype} - {"bf16"}
            self._converted(name, announce)

    def weights_there(self, *, announce: Announce) -> None:
        # Nothing else closes the books of a model in which no layer is ours.
        if not self.closed and not self._open:
            self._close(announce)

    def close_for_draft(self) -> None:
        """A draft model begins, which never counts; ConversionMismatchError names what is open.

        Books without an entry are not compared: a draft may have a configuration of its own.
        """
        if self._open:
            raise ConversionMismatchError(
                f"sparkdeploy: {', '.join(self._open)} never got their final weights, but the "
                "draft model is being made; this vLLM makes layers that it does not use"
            )
        self.closed = True

    def _close(self, announce: Announce) -> None:
        self.closed = True
        if self.whole_model:
            self._compare()
        head = "+".join(sorted(self.heads)) or "bf16"
        line = f"sparkdeploy: spark-hybrid active: fp8={self.fp8_modules} layers, lm_head={head}"
        if self.int4_modules:
            line += f", int4={self.int4_modules} layers of shared experts"
        announce(line)

    def _compare(self) -> None:
        if self.expected_fp8_modules not in (None, self.fp8_modules):
            raise ConversionMismatchError(
                f"sparkdeploy: the checkpoint expects {self.expected_fp8_modules} FP8 layers, "
                f"{self.fp8_modules} were converted; this vLLM names or fuses them differently"
            )
        if self.expected_int4_modules != self.int4_modules:
            raise ConversionMismatchError(
                f"sparkdeploy: the checkpoint expects {self.expected_int4_modules} layers of "
                f"shared experts to become INT4, {self.int4_modules} did; this vLLM names or fuses "
                "them differently"
            )
        if self.head_wanted != "bf16" and not self.heads:
            raise ConversionMismatchError(
                f"sparkdeploy: the checkpoint asks for an {self.head_wanted.upper()} LM head, but "
                "this vLLM never asked the plugin for one (tied embeddings?)"
            )


@dataclass(slots=True)
class DraftLedger(LayerLedger):
    """Books of a draft model whose layer becomes INT4 and FP8."""

    expected_int4_layers: int
    expected_fp8_modules: int

    def _close(self, announce: Announce) -> None:
        self.closed = True
        wanted = (self.expected_int4_layers, self.expected_fp8_modules)
        if (self.int4_modules, self.fp8_modules) != wanted:
            raise ConversionMismatchError(
                f"sparkdeploy: the checkpoint's draft layer has {wanted[0]} layers of experts to "
                f"become INT4 and {wanted[1]} matrices to become FP8; {self.int4_modules} and "
                f"{self.fp8_modules} were converted; this vLLM names or fuses them differently"
            )
        announce(
            f"sparkdeploy: draft layer active: int4={self.int4_modules} layers of experts, "
            f"fp8={self.fp8_modules} layers"
        )
