"""What an engine's image stages are made of, and the fingerprint of each. Pure."""

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import sparkdeploy
from sparkdeploy import labels
from sparkdeploy.errors import BuildError
from sparkdeploy.image import lock, templates
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.mods import ModFiles, placed
from sparkdeploy.recipe.engine import Base, Engine, SourceBuild
from sparkdeploy.recipe.image_name import ANY_IMAGE, WAYS, is_tag
from sparkdeploy.secret_shapes import text_without_secrets

BaseSource = Literal["registry", "debian"]
BASE_SOURCES: tuple[BaseSource, ...] = ("registry", "debian")
Top = Literal["plugin", "guard"]
"""What an image ends with: the plugin, or the guard alone where vLLM is left as it is."""
StageName = Literal["base", "engine", "mod", "plugin", "guard"]
UPPERMOST_FIRST = {"plugin": 0, "guard": 0, "mod": 1, "engine": 2, "base": 3}

ANY_RELEASE = "any"
"""What adopt.py takes for the release of an image of which nobody promised one."""
PLUGIN_SUFFIXES = (".py", ".cu", ".toml")
"""Of what the plugin's wheel is made of: its code, and CUDA C++ that is compiled where it runs."""
GUARD_MODULES = (
    *("__init__", "asgi", "host_middleware", "key_middleware", "template_arguments"),
    *("node_variables", "ray_head", "ray_worker"),
)
"""What a container needs of the plugin's package beside the guard, whatever it serves."""
LEFTOVER_LABEL = f"{labels.KIND}=leftover"
"""On the throw-away halves of a build, so that they are found and removed after it."""
TAG_HEX_DIGITS = 16
PACKAGE = Path(sparkdeploy.__file__).parent
SPARK_CAPABILITY = 121
"""The compute capability of GB10, 12.1."""
RDMA_PACKAGES = ("libibverbs1", "ibverbs-providers", "ibverbs-utils")
"""What Debian and Ubuntu call libibverbs, the providers, and the program that lists adapters."""
_NOT_KEPT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_TRACES = ("etc/apt/apt.conf.d/99mmdebstrap", "etc/apt/sources.list")
"""Where mmdebstrap notes this machine's mirror and certificates."""


@dataclass(frozen=True, slots=True)
class DebianRecipe:
    suite: str
    packages: tuple[str, ...]

    @property
    def options(self) -> tuple[str, ...]:
        """The options of mmdebstrap, but for those that name the mirror and certificates."""
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
    dockerfile: str
    context: tuple[ContextFile, ...]
    below: str | None
    """The tag of the stage it stands on; None for the base."""
    inputs: Mapping[str, str]
    """A digest for each thing that entered: dockerfile, context files, the stage below."""
    needs_network: bool = False
    pins: tuple[lock.PackagePin, ...] = ()
    """The distributions it installs; only their wheels travel from a wheelhouse."""
    unverified: str = ""
    """The warning about those whose content nothing is held against; empty without any."""
    python: str = ""
    architecture: str = ""
    platform: str | None = None
    """What Docker is asked to build for, such as linux/arm64; None for its own."""
    registry_image: str | None = None
    local_image: str | None = None
    """The id of an image that has to be on the machine already."""
    unpinned: str | None = None
    """The tag whose image nobody has asked for yet: neither tag nor fingerprint will stay."""
    pinned_tag: str = ""
    mod: str = ""
    mod_slug: str = ""
    """The name of its folder in the image."""
    debian: DebianRecipe | None = None
    source: SourceBuild | None = None
    compiled: Path | None = None
    """The wheel that was compiled for it; it travels with the build like those of a wheelhouse."""
    runs_on: Literal["cuda", "cpu"] | None = None
    """For what its vLLM was built; None where the finished image has nothing to prove."""

    @property
    def is_of_others(self) -> bool:
        return self.name == "engine" and self.below is None

    @property
    def update_hint(self) -> str | None:
        """Return how to get another image of the same tag, which may be repaired by now."""
        tag = self.pinned_tag
        return f"`up --update-image` asks what {tag} is today" if tag else None

    def labels(self) -> dict[str, str]:
        return {
            labels.KIND: "image",
            labels.STAGE: self.name,
            labels.ENGINE: self.engine,
            labels.FINGERPRINT: self.fingerprint,
            labels.BELOW: self.below or "",
            labels.BASE_SOURCE: self.base_source,
            labels.VERSION: sparkdeploy.__version__,
            # Containers inherit labels, and of commands the first line is the name.
            **({labels.MOD: text_without_secrets(self.mod)} if self.mod else {}),
            **{f"{labels.PREFIX}input.{name}": value for name, value in self.inputs.items()},
        }


@dataclass(frozen=True, slots=True)
class _StageMaker:
    engine: Engine
    base_source: BaseSource
    architecture: lock.Architecture
    resources: Path
    plugin_tree: Path

    def render(self, template: str, **values: object) -> str:
        return templates.render(
            self.resources / "dockerfiles",
            f"{template}.Dockerfile.j2",
            engine=self.engine.name,
            vllm=self.engine.vllm,
            leftover_label=LEFTOVER_LABEL,
            **values,
        )

    def stage(
        self,
        name: StageName,
        dockerfile: str,
        context: Iterable[ContextFile] = (),
        *,
        below: Stage | None = None,
        **further: str,
    ) -> Stage:
        files = tuple(context)
        inputs = {
            "dockerfile": _sha256(dockerfile),
            "architecture": self.architecture,
            # No stage has arguments of its own; images that were built once keep their names.
            "build-args": _sha256("{}"),
            **{file.path: file.digest() for file in files},
            **further,
        }
        if below is not None:
            inputs["below"] = below.fingerprint
        mark = fingerprint(inputs)
        return Stage(
            name=name,
            engine=self.engine.name,
            base_source=self.base_source,
            tag=f"sparkdeploy/{name}:{mark[:TAG_HEX_DIGITS]}",
            fingerprint=mark,
            dockerfile=dockerfile,
            context=files,
            below=below.tag if below else None,
            inputs=inputs,
            python=self.engine.base.python if self.engine.base is not None else "",
            architecture=self.architecture,
            source=self.engine.source if name == "engine" else None,
            runs_on=None if name in ("base", "guard") else self.engine.runs_on,
        )


def stages_of(  # noqa: PLR0913 - each says one thing of the image
    engine: Engine,
    *,
    base_source: BaseSource,
    architecture: lock.Architecture,
    resources: Path,
    plugin_tree: Path | None = None,
    mods: Iterable[ModFiles] = (),
    top: Top = "plugin",
) -> tuple[Stage, ...]:
    """Return base, engine, mods and what tops them, lowest first; an existing image has no base.

    Reads templates, locks and the plugin's sources; asks neither Docker nor the network. Raises
    BuildError for engines that this version cannot build and for a missing lock.
    """
    tree = plugin_tree or PACKAGE / "vllm_plugin"
    maker = _StageMaker(engine, base_source, architecture, resources, tree)
    if engine.kind == "image":
        made = [_adopted(maker)]
    elif engine.base is None:
        raise BuildError(
            f"engine {engine.name} of kind {engine.kind} has no base to stand on",
            hint="add `base:` to its file, like cuda-0.25 has",
        )
    else:
        base = _base(maker, engine.base)
        made = [base, _engine(maker, base)]
    for mod in placed(mods):
        made.append(_mod(maker, made[-1], mod))
    return (*made, _top(maker, made[-1], top))


def fingerprint(inputs: Mapping[str, str]) -> str:
    return _sha256(json.dumps(dict(inputs), sort_keys=True))


def _adopted(maker: _StageMaker) -> Stage:
    engine = maker.engine
    if engine.image is None:
        raise BuildError(
            f"engine {engine.name} names no image",
            hint=f"write `image:` into its file, which is {WAYS}; or name a recipe: `sparkdeploy"
            f" image build RECIPE --set engine={engine.name} --set image=NAME:TAG`",
        )
    is_digest = "@" in engine.image
    dockerfile = maker.render(
        "engine-image",
        image=engine.image,
        is_digest=is_digest,
        device=engine.runs_on,
        # What an engine file promises is held; of any other image it is read (image_pins.py).
        promised=ANY_RELEASE if engine.name == ANY_IMAGE else engine.vllm,
    )
    stage = maker.stage("engine", dockerfile, _inside_files("adopt", "adopt.py", "adopt.sh"))
    if is_tag(engine.image):
        return replace(stage, unpinned=engine.image)
    registry_image, local_image = (engine.image, None) if is_digest else (None, engine.image)
    return replace(stage, registry_image=registry_image, local_image=local_image)


def _base(maker: _StageMaker, base: Base) -> Stage:
    if maker.base_source == "registry":
        dockerfile = maker.render("base", image=base.image, packages=base.packages)
        stage = maker.stage("base", dockerfile)
        return replace(stage, needs_network=True, registry_image=base.image)
    if base.debian is None:
        raise BuildError(
            f"the base of engine {maker.engine.name} can only come from a registry:"
            f" {base.image} has no Debian counterpart"
        )
    made = DebianRecipe(base.debian.suite, tuple(base.packages))
    options = "".join(f"#   {option}\n" for option in made.options)
    text = f"# Not from a Dockerfile: mmdebstrap makes Debian {made.suite} with\n{options}"
    return replace(maker.stage("base", text), debian=made)


def _engine(maker: _StageMaker, below: Stage) -> Stage:
    engine = maker.engine
    files = lock.lock_files(engine, architecture=maker.architecture, resources=maker.resources)
    texts = {name: path.read_bytes() for name, path in files.items()}
    context = [ContextFile(f"lock/{name}", content) for name, content in texts.items()]
    match engine.kind:
        case "cpu":
            fixups = maker.plugin_tree / "cpu_fixups" / "cpu_engine_fixups.py"
            context.append(ContextFile("cpu_engine_fixups.py", _read(fixups)))
        case "source":
            context += _compiled_files(engine)
        case _:
            context += _inside_files("inside", "trim.py", "toolkit.sh")
    dockerfile = maker.render(
        "engine-source" if engine.kind == "source" else "engine-wheel",
        below=below.tag,
        kind=engine.kind,
        arch_list=engine.torch_arch_list,
        python=lock.python_of(engine),
        capability=SPARK_CAPABILITY,
    )
    packages = [it for content in texts.values() for it in lock.read_packages(content.decode())]
    return replace(
        maker.stage("engine", dockerfile, context, below=below),
        needs_network=True,
        pins=tuple(package.pin for package in packages),
        unverified=lock.unverified(maker.architecture, packages),
    )


def _compiled_files(engine: Engine) -> Iterable[ContextFile]:
    if engine.source is None or engine.torch_arch_list is None:
        raise BuildError(
            f"engine {engine.name} does not say what to compile",
            hint="add `source:` and `torch_arch_list:` to its file, like cuda-0.19 has",
        )
    compiled = {
        "VLLM_VERSION": engine.vllm,
        "VLLM_REF": engine.source.ref or "",
        "SDIST_SHA256": engine.source.sdist_sha256,
        "VLLM_TARGET_DEVICE": engine.runs_on,
        "TORCH_CUDA_ARCH_LIST": engine.torch_arch_list,
    }
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in compiled.items())
    yield from _inside_files("compile", "compile.sh")
    yield ContextFile("compile/source", text.encode())
    yield from _inside_files("inside", "trim.py")


def _top(maker: _StageMaker, below: Stage, top: Top) -> Stage:
    tree = maker.plugin_tree
    package = tree / "sparkdeploy_vllm"
    if top == "plugin":
        paths = sorted((tree / "dist-info").iterdir())
        paths += sorted(path for path in package.rglob("*") if path.suffix in PLUGIN_SUFFIXES)
    else:
        # The first process of the container, and the key's check; nothing that vLLM would load.
        paths = [package / f"{name}.py" for name in GUARD_MODULES]
        paths += sorted((package / "guard").rglob("*.py"))
    files = (
        ContextFile(f"{top}/{path.relative_to(tree).as_posix()}", _read(path)) for path in paths
    )
    return maker.stage(top, maker.render(top, below=below.tag), files, below=below)


def _mod(maker: _StageMaker, below: Stage, mod: ModFiles) -> Stage:
    """Known by one hash of all its files: a mod may have hundreds."""
    # Nothing of its title: the same folder may be named in several ways.
    dockerfile = maker.render(
        "mod", below=below.tag, name=mod.slug, needs_network=mod.needs_network
    )
    stage = maker.stage(
        "mod", dockerfile, _inside_files("apply", "apply_mod.py"), below=below, mod=mod.digest()
    )
    files = tuple(replace(file, path=f"mod/{file.path}") for file in mod.files)
    return replace(
        stage,
        context=(*stage.context, *files),
        mod=mod.title,
        mod_slug=mod.slug,
        needs_network=mod.needs_network,
    )


def _inside_files(folder: str, *names: str) -> list[ContextFile]:
    inside = PACKAGE / "image" / "inside"
    return [ContextFile(f"{folder}/{name}", _read(inside / name)) for name in names]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror}") from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
