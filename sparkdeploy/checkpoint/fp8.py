"""The FP8 tensors of the shared experts: which there must be, and where a repository has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.contents import ModelSizes, shared_expert_shapes, summary
from sparkdeploy.checkpoint.ranges import RangeSource, read_remote_header
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sparkdeploy.checkpoint.safetensors import Header, TensorInfo

BLOCK = 128
"""Rows and columns that share one scale."""
WEIGHT_DTYPES = frozenset({"F8_E4M3"})
SCALE_DTYPES = frozenset({"BF16", "F32"})
WEIGHT_SUFFIX, SCALE_SUFFIX = ".weight", ".weight_scale_inv"
OWN_SUFFIXES: Mapping[str, str] = {WEIGHT_SUFFIX: ".fp8_weight", SCALE_SUFFIX: ".fp8_scale_inv"}
"""What the tensors are called beside the BF16 ones of the untouched download."""

_RELATED = re.compile(
    r"model\.language_model\.layers\.\d+\.mlp\.shared_expert\.(?:gate|up|down)_proj\..+"
)


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    name: str
    dtypes: frozenset[str]
    shape: tuple[int, ...]

    @property
    def is_weight(self) -> bool:
        return self.dtypes == WEIGHT_DTYPES

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def own_name(self) -> str:
        """Its name beside the untouched download."""
        return self.module + OWN_SUFFIXES[self.name.removeprefix(self.module)]

    def fits(self, info: TensorInfo) -> bool:
        return info.dtype in self.dtypes and info.shape == self.shape


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A tensor in a file of a repository; `begin` and `end` count from the file's beginning."""

    info: TensorInfo
    file: str
    begin: int
    end: int


def expected_fp8(sizes: ModelSizes) -> tuple[ExpectedTensor, ...]:
    """Three weights for each layer, each with its scales: 288 tensors for 48 layers."""
    return tuple(
        expected
        for name, (rows, columns) in shared_expert_shapes(sizes)
        for expected in (
            ExpectedTensor(name, WEIGHT_DTYPES, (rows, columns)),
            ExpectedTensor(
                name.removesuffix(WEIGHT_SUFFIX) + SCALE_SUFFIX,
                SCALE_DTYPES,
                (-(-rows // BLOCK), -(-columns // BLOCK)),
            ),
        )
    )


def expected_bytes(sizes: ModelSizes) -> int:
    """Bytes of the tensors, with scales of two bytes."""
    return sum(
        item.shape[0] * item.shape[1] * (1 if item.is_weight else 2) for item in expected_fp8(sizes)
    )


class Mismatch(Enum):
    """What becomes of a repository that does not hold exactly the expected tensors."""

    REFUSE = "refuse"
    LEAVE = "leave"
    """Take the modules that fit; the others stay at 16 bits."""


def find_fp8(
    source: RangeSource,
    sizes: ModelSizes,
    indexed: Mapping[str, str],
    mismatch: Mismatch = Mismatch.REFUSE,
) -> tuple[tuple[ExpectedTensor, FoundTensor], ...]:
    """Find every expected tensor by the headers of the files that `indexed` (name to file) names.

    Raises CheckpointError naming what is missing, extra, or has another dtype or shape, unless
    that is to be left.
    """
    expected = expected_fp8(sizes)
    files = sorted({file for name, file in indexed.items() if is_related(name)})
    found = _related_tensors({file: read_remote_header(source, file) for file in files})
    if mismatch is Mismatch.LEAVE:
        # Modules whose weight and scales both are as expected.
        unfit = {
            item.module
            for item in expected
            if item.name not in found or not item.fits(found[item.name].info)
        }
        expected = tuple(item for item in expected if item.module not in unfit)
    else:
        check_fp8(source.name, expected, {name: item.info for name, item in found.items()})
    return tuple((item, found[item.name]) for item in expected)


def check_fp8(
    place: str,
    expected: Iterable[ExpectedTensor],
    found: Mapping[str, TensorInfo],
    hint: str = "use the FP8 repository of the same model, or mode online",
) -> None:
    """Hold related tensors against the expected ones; CheckpointError names every difference."""
    wanted = {item.name: item for item in expected}
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    lines = [f"missing: {summary(missing)}"] if missing else []
    lines += [f"extra: {summary(extra)}"] if extra else []
    lines += [
        f"{name} is {info.dtype} {list(info.shape)}, expected "
        f"{' or '.join(sorted(wanted[name].dtypes))} {list(wanted[name].shape)}"
        for name, info in found.items()
        if name in wanted and not wanted[name].fits(info)
    ]
    if lines:
        raise CheckpointError(
            f"{place} does not hold the FP8 shared experts of this model: {lines[0]}",
            detail="\n".join(lines[:50]),
            hint=hint,
        )


def is_related(name: str) -> bool:
    return _RELATED.fullmatch(name) is not None


def _related_tensors(headers: Mapping[str, Header]) -> dict[str, FoundTensor]:
    found: dict[str, FoundTensor] = {}
    for file, header in headers.items():
        for name, info in header.tensors.items():
            if not is_related(name):
                continue
            if name in found:
                raise CheckpointError(f"{name} stands in both {found[name].file} and {file}.")
            begin = header.data_offset + info.begin
            found[name] = FoundTensor(info, file, begin, header.data_offset + info.end)
    return found
