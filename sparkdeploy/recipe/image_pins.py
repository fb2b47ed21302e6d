"""What the tag of an image of others was pinned to on this machine, and what the image holds.

A tag may be another image tomorrow. `up` asks once what it is, and writes that here: the digest in
image-lock.json of the state folder, and what the image holds beside it, in image-contents/, a file
by digest. A plan reads both and asks nobody. A new digest of a tag replaces the old one only when
`up --update-image` asks for it.
"""

import functools
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.image_name import ANY_IMAGE, is_pinned, is_tag, stated_release
from sparkdeploy.recipe.releases import Release
from sparkdeploy.stored_json import MAX_BYTES, read_bytes

LOCK_FILE = "image-lock.json"
CONTENTS_FOLDER = "image-contents"
_NUMBER = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class ImageContents:
    """What was found in an image: versions, kernels, and what its `vllm serve` takes."""

    vllm: str
    """As the package says it: `0.33.0`, `0.34.0.dev12+g0123abc`."""
    torch: str | None
    cuda: str | None
    """torch.version.cuda; None for a CPU build."""
    kernels: Sequence[str]
    """For which GPUs vLLM's own libraries have code: sm_120f."""
    rdma_missing: Mapping[str, str]
    """What NCCL would look for and not find, with the reason; empty where libibverbs is whole."""
    release: Release | None
    """None where its own argument parser could not be asked."""

    @property
    def release_number(self) -> str | None:
        """The three numbers; None for a build that has others."""
        match = _NUMBER.match(self.vllm)
        return match[0] if match else None

    def describe(self) -> str:
        parts = [f"vLLM {self.vllm}", f"torch {self.torch or 'unknown'}"]
        parts += [f"CUDA {self.cuda}" if self.cuda else "for CPUs"]
        if self.kernels:
            parts.append(f"kernels {' '.join(self.kernels)}")
        if self.cuda:
            parts.append("no libibverbs" if self.rdma_missing else "libibverbs")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ImagePin:
    image: str
    """NAME@sha256:..., or a local id."""
    pinned_at: str

    def __post_init__(self) -> None:
        if not is_pinned(self.image):
            raise ValueError(f"{self.image[:80]!r} is neither a digest nor an id")


class InspectedEngine(Engine):
    contents: ImageContents


def is_unknown(engine: Engine) -> bool:
    """Say whether nobody knows which release an image holds: neither its tag nor who looked."""
    if isinstance(engine, InspectedEngine):
        return engine.contents.release_number is None
    is_any = engine.kind == "image" and engine.name == ANY_IMAGE
    return is_any and stated_release(engine.image or "") is None


@dataclass(frozen=True, slots=True)
class PinFile:
    schema: Literal[1]
    images: Mapping[str, ImagePin]
    """By the name that was asked for."""


@dataclass(frozen=True, slots=True)
class ImageLock:
    """The pinned images of a state folder; RecipeError names a file that is not ours."""

    state_dir: Path
    trying: Mapping[str, ImagePin] = field(default_factory=dict)
    """What tags are taken for by this command, whatever the file says."""
    found: Mapping[str, ImageContents] = field(default_factory=dict)
    """What this command found in images, by digest or id."""

    @property
    def path(self) -> Path:
        return self.state_dir / LOCK_FILE

    def contents_path(self, image: str) -> Path:
        """Return where the contents of a digest or an id stand, whatever repository it is of."""
        mark = hashlib.sha256(image.rpartition("@")[2].encode()).hexdigest()[:32]
        return self.state_dir / CONTENTS_FOLDER / f"{mark}.json"

    def pin_of(self, reference: str) -> ImagePin | None:
        return self.trying.get(reference) or self.all().get(reference)

    def all(self) -> Mapping[str, ImagePin]:
        try:
            return pins_adapter().validate_json(read_bytes(self.path, MAX_BYTES)).images
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            reason = error if isinstance(error, OSError) else "it holds something else than images"
            raise RecipeError(
                f"{self.path} cannot be used: {reason}",
                hint=f"rm {shlex.quote(str(self.path))}: "
                "`up` then asks the registry again what each tag is",
            ) from error

    def contents(self, image: str) -> ImageContents | None:
        """Return what was found in an image; None without a look, or for a damaged note."""
        if image in self.found:
            return self.found[image]
        path = self.contents_path(image)
        try:
            return contents_adapter().validate_json(read_bytes(path, MAX_BYTES))
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise RecipeError(
                f"{path} cannot be read: {error.strerror}", hint=f"rm -r {shlex.quote(str(path))}"
            ) from error


def pinned_engine(engine: Engine, lock: ImageLock | None) -> Engine:
    """Return the engine of what its image was pinned to; as it is where nobody has asked yet."""
    if engine.image is None or lock is None:
        return engine
    pin = lock.pin_of(engine.image)
    changes: dict[str, Any] = {"image": pin.image if pin is not None else engine.image}
    contents = None if is_tag(changes["image"]) else lock.contents(changes["image"])
    if contents is None:
        return engine.model_copy(update=changes)
    if engine.name == ANY_IMAGE and contents.release_number is not None:
        # An engine file of the user's own says which release it is for, and is held to it.
        changes["vllm"] = contents.release_number
    values = {name: getattr(engine, name) for name in Engine.model_fields}
    return InspectedEngine.model_construct(**(values | changes), contents=contents)


@functools.cache
def pins_adapter() -> TypeAdapter[PinFile]:
    return TypeAdapter(PinFile)


@functools.cache
def contents_adapter() -> TypeAdapter[ImageContents]:
    return TypeAdapter(ImageContents)
