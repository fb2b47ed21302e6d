"""Counts what was really converted and says so once; standard library only."""

from collections.abc import Callable
from dataclasses import dataclass, field


class ConversionMismatchError(RuntimeError):
    """What was converted is not what the checkpoint says must be converted."""


@dataclass(slots=True)
class ConversionLedger:
    """Books of one model: every layer that was created with one of our methods must be converted.

    The first time all created layers are converted the books are closed: the counts are compared
    with the checkpoint's and handed to `announce`. The target model is always complete before a
    draft model's first layer is created, so the draft (it shares the target's configuration and
    makes a second, short-lived head) never counts, and neither does a later reload of weights.

    `whole_model` is false for one stage of a pipeline, whose own counts prove nothing.
    """

    expected_fp8_modules: int | None
    int8_head_wanted: bool
    whole_model: bool = True
    fp8_modules: int = 0
    int8_heads: int = 0
    closed: bool = False
    _open: dict[str, None] = field(default_factory=dict)
    """Layers that are not converted yet; none once the books are closed."""

    def layer_created(self, name: str) -> None:
        if not self.closed:
            self._open[name] = None

    def fp8_converted(self, name: str, *, modules: int, announce: Callable[[str], None]) -> None:
        if name in self._open:
            self.fp8_modules += modules
            self._settle(name, announce)

    def head_ready(self, name: str, *, is_int8: bool, announce: Callable[[str], None]) -> None:
        if name in self._open:
            self.int8_heads += is_int8
            self._settle(name, announce)

    def weights_there(self, *, announce: Callable[[str], None]) -> None:
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

    def _settle(self, name: str, announce: Callable[[str], None]) -> None:
        del self._open[name]
        if not self._open:
            self._close(announce)

    def _close(self, announce: Callable[[str], None]) -> None:
        self.closed = True
        if self.whole_model:
            self._compare()
        head = "int8" if self.int8_heads else "bf16"
        announce(f"sparkdeploy: spark-hybrid active: fp8={self.fp8_modules} layers, lm_head={head}")

    def _compare(self) -> None:
        if self.expected_fp8_modules not in (None, self.fp8_modules):
            raise ConversionMismatchError(
                f"sparkdeploy: the checkpoint expects {self.expected_fp8_modules} FP8 layers, "
                f"{self.fp8_modules} were converted; this vLLM names or fuses them differently"
            )
        if self.int8_head_wanted and not self.int8_heads:
            raise ConversionMismatchError(
                "sparkdeploy: the checkpoint asks for an INT8 LM head, but this vLLM never asked "
                "the plugin for one (tied embeddings?)"
            )
