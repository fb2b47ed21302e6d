"""What an engine's image stages are made of, and the fingerprint of each. Pure."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import sparkdeploy
from sparkdeploy import labels
from sparkdeploy.errors import BuildError
from sparkdeploy.image import lock, templates
from sparkdeploy.image.context import ContextFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sparkdeploy.recipe.schema import Base, Engine, SourceBuild

BaseSource = Literal["registry", "debian"]
StageName = Literal["base", "engine", "plugin"]

LEFTOVER_LABEL = f"{labels.KIND}=leftover"
"""On the throw-away halves of a build, so that they are found and removed after it."""
TAG_HEX_DIGITS = 16
SPARK_CAPABILITY = 121
"""The compute capability of GB10, 12.1."""
_NOT_KEPT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_TRACES = ("etc/apt/apt.conf.d/99mmdebstrap", "etc/apt/sources.list")
"""Where mmdebstrap notes this machine's mirror and certificates."""


@dataclass(frozen=True, slots=True)
class DebianRecipe:
    """A base made from Debian packages rather than from a registry's image."""

    suite: str
    packages: tuple[str, ...]

    @property
    def options(self) -> tuple[str, ...]:
        """What mmdebstrap is told, beside how to reach the mirror."""
        return (
            "--variant=minbase",
            f"--include={','.join(self.packages)}",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in _NOT_KEPT),
            # A root file system that was not finished is thrown away, so nothing is synced.
            "--dpkgopt=force-unsafe-io",
            *(f'--customize-hook=rm -f "$1/{trace}"' for trace in _TRACES),
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """One image to be: everything that goes into it, and the fingerprint of all that."""

    name: StageName
    engine: str
    base_source: BaseSource
    tag: str
    """`sparkdeploy/<stage>:<first 16 digits of the fingerprint>`."""
    fingerprint: str
    """sha256 in hex over `inputs`."""
    dockerfile: str
    context: tuple[ContextFile, ...]
    build_args: Mapping[str, str]
    below: str | None
    """The tag of the stage it stands on; None for the base."""
    inputs: Mapping[str, str]
    """A digest for each thing that entered: dockerfile, build args, context files, below."""
    needs_network: bool = False
    pins: tuple[lock.Pin, ...] = ()
    """The distributions it installs; only their wheels travel from a wheelhouse."""
    python: str = ""
    architecture: str = ""
    registry_image: str | None = None
    local_image: str | None = None
    """The id of an image that has to be on the machine already."""
    debian: DebianRecipe | None = None
    source: SourceBuild | None = None
    """What has to be compiled before the stage can be built, and what that takes."""
    compiled: Path | None = None
    """The wheel that was compiled for it; it travels with the build like those of a wheelhouse."""
    runs_on: Literal["cuda", "cpu"] | None = None
    """For what its vLLM was built; None where the finished image has nothing to prove."""

    def labels(self) -> dict[str, str]:
        """Return the labels of the image; they stay out of the fingerprint."""
        return {
            labels.KIND: "image",
            labels.STAGE: self.name,
            labels.ENGINE: self.engine,
            labels.FINGERPRINT: self.fingerprint,
            labels.BELOW: self.below or "",
            labels.BASE_SOURCE: self.base_source,
            labels.VERSION: sparkdeploy.__version__,
            **{f"{labels.PREFIX}input.{name}": value for name, value in self.inputs.items()},
        }


@dataclass(frozen=True, slots=True)
class _Draft:
    """A stage before its fingerprint is known."""

    name: StageName
    dockerfile: str
    context: tuple[ContextFile, ...] = ()
    build_args: Mapping[str, str] = field(default_factory=dict)
    needs_network: bool = False
    pins: tuple[lock.Pin, ...] = ()
    registry_image: str | None = None
    local_image: str | None = None
    debian: DebianRecipe | None = None


@dataclass(frozen=True, slots=True)
class _Ground:
    """What the stages of one engine have in common."""

    engine: Engine
    base: Base | None
    base_source: BaseSource
    architecture: lock.Architecture
    resources: Path
    plugin_tree: Path

    def render(self, template: str, **values: object) -> str:
        return templates.render(
            self.resources / "dockerfiles",
            f"{template}.Dockerfile.j2",
            engine=self.engine.name,
            leftover_label=LEFTOVER_LABEL,
            **values,
        )

    def finish(self, draft: _Draft, below: Stage | None) -> Stage:
        inputs = _inputs(draft, below, self.architecture)
        mark = fingerprint(inputs)
        return Stage(
            name=draft.name,
            engine=self.engine.name,
            base_source=self.base_source,
            tag=f"sparkdeploy/{draft.name}:{mark[:TAG_HEX_DIGITS]}",
            fingerprint=mark,
            dockerfile=draft.dockerfile,
            context=draft.context,
            build_args=draft.build_args,
            below=below.tag if below else None,
            inputs=inputs,
            needs_network=draft.needs_network,
            pins=draft.pins,
            python=self.base.python if self.base is not None else "",
            architecture=self.architecture,
            registry_image=draft.registry_image,
            local_image=draft.local_image,
            debian=draft.debian,
            source=self.engine.source if draft.name == "engine" else None,
            runs_on=None if draft.name == "base" else self.engine.runs_on,
        )


def stages_of(
    engine: Engine,
    *,
    base_source: BaseSource,
    architecture: lock.Architecture,
    resources: Path,
    plugin_tree: Path | None = None,
) -> tuple[Stage, ...]:
    """Return base, engine and plugin of an engine, lowest first; an existing image has no base.

    Reads templates, locks and the plugin's sources; asks neither Docker nor the network. Raises
    BuildError for engines that this version cannot build and for a missing lock.
    """
    tree = plugin_tree or _plugin_tree()
    ground = _Ground(engine, engine.base, base_source, architecture, resources, tree)
    if engine.kind == "image":
        adopted = ground.finish(_adopted(ground), None)
        return (adopted, ground.finish(_plugin(ground, adopted), adopted))
    if engine.base is None:
        raise BuildError(
            f"engine {engine.name} of kind {engine.kind} has no base to stand on",
            hint="add `base:` to its file, like cuda-0.25 has",
        )
    base = ground.finish(_base(ground, engine.base), None)
    middle = ground.finish(_engine(ground, base), base)
    return (base, middle, ground.finish(_plugin(ground, middle), middle))


def fingerprint(inputs: Mapping[str, str]) -> str:
    """Return the sha256 over named digests, whatever their order."""
    return hashlib.sha256(json.dumps(dict(inputs), sort_keys=True).encode()).hexdigest()


def _adopted(ground: _Ground) -> _Draft:
    engine = ground.engine
    if engine.image is None:
        raise BuildError(
            f"engine {engine.name} names no image",
            hint="add --set image=sha256:... (a local id) or NAME@sha256:... (a digest)",
        )
    is_digest = "@" in engine.image
    dockerfile = ground.render(
        "engine-image",
        image=engine.image,
        is_digest=is_digest,
        vllm=engine.vllm,
        device=engine.runs_on,
    )
    return _Draft(
        "engine",
        dockerfile,
        tuple(_inside_files("adopt", "adopt.py", "adopt.sh")),
        registry_image=engine.image if is_digest else None,
        local_image=None if is_digest else engine.image,
    )


def _base(ground: _Ground, base: Base) -> _Draft:
    if ground.base_source == "registry":
        dockerfile = ground.render("base", image=base.image, packages=base.packages)
        return _Draft("base", dockerfile, needs_network=True, registry_image=base.image)
    if base.debian is None:
        raise BuildError(
            f"the base of engine {ground.engine.name} can only come from a registry:"
            f" {base.image} has no Debian counterpart"
        )
    made = DebianRecipe(base.debian.suite, tuple(base.packages))
    text = f"# Not from a Dockerfile: mmdebstrap makes Debian {made.suite} with\n" + "".join(
        f"#   {option}\n" for option in made.options
    )
    return _Draft("base", text, debian=made)


def _engine(ground: _Ground, below: Stage) -> _Draft:
    files = lock.lock_files(
        ground.engine, architecture=ground.architecture, resources=ground.resources
    )
    context = [ContextFile(f"lock/{name}", path.read_bytes()) for name, path in files.all()]
    pins = [pin for file in context for pin in lock.read_pins(_text(file))]
    if ground.engine.kind == "cpu":
        fixups = ground.plugin_tree / "cpu_fixups" / "cpu_engine_fixups.py"
        context.append(ContextFile("cpu_engine_fixups.py", _read(fixups)))
    if ground.engine.kind == "source":
        return _compiled(ground, below, tuple(context))
    if ground.engine.kind == "wheel":
        context += _inside_files("inside", "trim.py", "toolkit.sh")
    dockerfile = ground.render(
        "engine-wheel",
        below=below.tag,
        kind=ground.engine.kind,
        vllm=ground.engine.vllm,
        python=lock.python_of(ground.engine),
        capability=SPARK_CAPABILITY,
    )
    return _Draft("engine", dockerfile, tuple(context), needs_network=True, pins=tuple(pins))


def _compiled(ground: _Ground, below: Stage, locks: tuple[ContextFile, ...]) -> _Draft:
    engine = ground.engine
    if engine.source is None or engine.torch_arch_list is None:
        raise BuildError(
            f"engine {engine.name} does not say what to compile",
            hint="add `source:` and `torch_arch_list:` to its file, like cuda-0.19 has",
        )
    text = source_text(engine.vllm, engine.source, arch_list=engine.torch_arch_list)
    context = (
        *locks,
        *_inside_files("compile", "compile.sh"),
        ContextFile("compile/source", text.encode()),
        *_inside_files("inside", "trim.py"),
    )
    dockerfile = ground.render(
        "engine-source",
        below=below.tag,
        vllm=engine.vllm,
        arch_list=engine.torch_arch_list,
        python=lock.python_of(engine),
        capability=SPARK_CAPABILITY,
    )
    pins = tuple(pin for file in locks for pin in lock.read_pins(_text(file)))
    return _Draft("engine", dockerfile, context, needs_network=True, pins=pins)


def source_text(vllm: str, source: SourceBuild, *, arch_list: str) -> str:
    """Return what is compiled, as a shell file; it is part of the fingerprint."""
    values = {
        "VLLM_VERSION": vllm,
        "VLLM_REF": source.ref or "",
        "SDIST_SHA256": source.sdist_sha256,
        "TORCH_CUDA_ARCH_LIST": arch_list,
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def _plugin(ground: _Ground, below: Stage) -> _Draft:
    dockerfile = ground.render("plugin", below=below.tag)
    return _Draft("plugin", dockerfile, tuple(_plugin_files(ground.plugin_tree)))


def _plugin_files(tree: Path) -> Iterable[ContextFile]:
    """Give the sources rather than a wheel: a zip's bytes depend on who compressed it."""
    found = [tree / "pyproject.toml", tree / "wheel_backend.py"]
    found += sorted((tree / "sparkdeploy_vllm").rglob("*.py"))
    for path in found:
        yield ContextFile(f"plugin/{path.relative_to(tree).as_posix()}", _read(path))


def _inputs(draft: _Draft, below: Stage | None, architecture: str) -> dict[str, str]:
    entered = {
        "dockerfile": _sha256(draft.dockerfile),
        "architecture": architecture,
        "build-args": _sha256(json.dumps(dict(draft.build_args), sort_keys=True)),
        **{file.path: file.digest() for file in draft.context},
    }
    if below is not None:
        entered["below"] = below.fingerprint
    return entered


def _plugin_tree() -> Path:
    return Path(sparkdeploy.__file__).parent / "vllm_plugin"


def _inside_files(folder: str, *names: str) -> list[ContextFile]:
    """Give programs that run inside a build their places in its context."""
    inside = Path(sparkdeploy.__file__).parent / "image" / "inside"
    return [ContextFile(f"{folder}/{name}", _read(inside / name)) for name in names]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror}") from error


def _text(file: ContextFile) -> str:
    with file.open() as stream:
        return stream.read().decode()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
