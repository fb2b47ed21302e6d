"""A worker extension: makes the served model's INT4 shared experts anew, right or wrong on purpose.

For the test of `bench quality`; vLLM mixes the class into its worker (`--worker-extension-cls`).
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors import safe_open
from sparkdeploy_vllm import int4_linear
from sparkdeploy_vllm.int4_linear import Int4SharedExpertMethod
from sparkdeploy_vllm.int4_maths import fit_groups
from torch import Tensor
from torch.nn import Module, Parameter

PACKED = ("qweight", "scales", "qzeros", "g_idx")
PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
Fit = Callable[[Tensor], tuple[Tensor, Tensor]]


def swap_one(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The first output's two groups, each with the other's scale."""
    codes, scales = fit_groups(weight)
    scales[0] = scales[0].flip(0)
    return codes, scales


def swap_all(weight: Tensor) -> tuple[Tensor, Tensor]:
    """As `swap_one`, for every output."""
    codes, scales = fit_groups(weight)
    return codes, scales.flip(1)


FITS: dict[str, Fit] = {"right": fit_groups, "one": swap_one, "all": swap_all}


class SharedExpertSwaps:
    """A method that `/collective_rpc` calls."""

    model_config: Any
    model_runner: Any

    def swap_scales(self, kind: str) -> int:
        """Serve with one of `FITS` from now on; return how many layers of vLLM's were made."""
        made = 0
        with mock.patch.object(int4_linear, "fit_groups", FITS[kind]):
            for layer, method in self._converted():
                self._make_anew(layer, method)
                made += 1
        return made

    def _converted(self) -> Iterator[tuple[Module, Int4SharedExpertMethod]]:
        for layer in self.model_runner.model.modules():
            method = getattr(layer, "quant_method", None)
            if isinstance(method, Int4SharedExpertMethod):
                yield layer, method

    def _make_anew(self, layer: Any, method: Int4SharedExpertMethod) -> None:
        for name in PACKED:
            if hasattr(layer, name):
                delattr(layer, name)
        layer.register_parameter("weight", Parameter(self._exact(method.name), requires_grad=False))
        outputs = list(getattr(layer, "output_partition_sizes", [layer.output_size]))
        method.sizes = (layer.input_size_per_partition, outputs, layer.input_size, sum(outputs))
        method.process_weights_after_loading(layer)

    def _exact(self, name: str) -> Tensor:
        """Return the 16-bit weight of vLLM's module as the checkpoint has it."""
        found = re.search(r"(layers\.\d+\.mlp\.shared_expert\.)(\w+)", name)
        assert found is not None
        wanted = [f"model.language_model.{found[1]}{part}.weight" for part in PARTS[found[2]]]
        tensors: dict[str, Tensor] = {}
        for path in sorted(Path(self.model_config.model).glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                tensors |= {it: file.get_tensor(it) for it in file.keys() if it in wanted}  # noqa: SIM118 - no mapping
        return torch.cat([tensors[it] for it in wanted])
