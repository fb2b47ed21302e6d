"""Who shares a cache with whom: what one deployment compiles, the next one on it runs."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node.container import ContainerFact, ContainerSpec, ImageFact
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import decide
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep.clean import find_leftovers
from tests.fakes.plans import DOCKER, model_fact, observed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkdeploy.node.reports import EngineInfo

TRUSTED = {
    "v2": (),
    "hybrid": (),
    "mine": (),
    "v2 with typed settings": ("serve.max_num_seqs=3", "serve.env={VLLM_X: '1'}"),
}
UNTRUSTED = {
    "theirs": (),
    "theirs too": (),
    "mine extends theirs": (),
    "mine with code of the model": (),
    "v2, its code of the model typed": ("serve.trust_remote_code=true",),
    "theirs, unsafe allowed": ("allow_unsafe=true",),
}
KINDS = {**TRUSTED, **UNTRUSTED}


@dataclass(frozen=True)
class Asked:
    """A deployment as a user asks for it: a kind of recipe, a name, a model and its owner."""

    kind: str
    name: str = "main"
    model: str = "ada--one"
    owner: int = 1000

    def may_share(self, other: Asked) -> bool:
        """Say what the rule says."""
        if (self.model, self.owner) != (other.model, other.owner):
            return False
        if {self.kind, other.kind} <= set(TRUSTED):
            return True
        # One deployment that was changed is not another one.
        is_one_file = {self.kind, other.kind} <= {"theirs", "theirs, unsafe allowed"}
        return self.name == other.name and (self.kind == other.kind or is_one_file)


EVERY = [
    Asked(*parts)
    for parts in itertools.product(
        KINDS, ("main", "beside"), ("ada--one", "ada--one-more"), (0, 1000)
    )
]


def write(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"schema: 1\nname: {path.stem}\ntitle: t\n{body}\n")
    return str(path)


@pytest.fixture
def spec_of(tmp_path: Path) -> Callable[[Asked], ContainerSpec]:
    """The container that `up` would start for a deployment, as the product decides it."""
    own = load_settings().config_dir / "recipes"
    body = "extends: v2\nserve: {max_num_seqs: 7}"
    theirs = write(tmp_path / "elsewhere" / "theirs.yaml", body)
    recipes = {
        "v2": "v2",
        "hybrid": "hybrid",
        "mine": write(own / "mine.yaml", "extends: v2"),
        "v2 with typed settings": "v2",
        "theirs": theirs,
        "theirs too": write(tmp_path / "elsewhere" / "theirs-too.yaml", body),
        "mine extends theirs": write(own / "a.yaml", f"extends: {theirs}"),
        "mine with code of the model": write(
            own / "b.yaml", "extends: v2\nserve: {trust_remote_code: true}"
        ),
        "v2, its code of the model typed": "v2",
        "theirs, unsafe allowed": theirs,
    }
    found = {
        kind: resolve(Request(recipes[kind], typed), load_settings())
        for kind, typed in KINDS.items()
    }

    @functools.cache
    def make(wanted: Asked) -> ContainerSpec:
        model = model_fact(
            name=wanted.model,
            root=Path(f"/home/ada/hub/models--{wanted.model}"),
            owner_uid=wanted.owner,
            owner_gid=wanted.owner,
        )
        plan = decide(
            found[wanted.kind],
            load_settings(),
            observed(model=model),
            Deployment(wanted.name),
        )
        assert plan.head.spec is not None
        return plan.head.spec

    return make


def writable(spec: ContainerSpec) -> list[Path]:
    return [Path(mount.source) for mount in spec.mounts if mount.mode == "rw"]


def mounted(spec: ContainerSpec) -> list[Path]:
    return [Path(mount.source) for mount in spec.mounts]


def test_only_wholly_own_recipes_of_one_model_and_user_share_a_cache(
    spec_of: Callable[[Asked], ContainerSpec],
) -> None:
    for one, other in itertools.combinations_with_replacement(EVERY, 2):
        shared = set(writable(spec_of(one))) & set(writable(spec_of(other)))
        assert bool(shared) == one.may_share(other), (one, other)


def test_what_one_may_write_lies_in_nothing_that_another_one_mounts(
    spec_of: Callable[[Asked], ContainerSpec],
) -> None:
    writes = {path for asked in EVERY for path in writable(spec_of(asked))}
    mounts = {path for asked in EVERY for path in mounted(spec_of(asked))}
    for ours, theirs in itertools.product(writes, mounts - writes):
        assert not ours.is_relative_to(theirs)
        assert not theirs.is_relative_to(ours)
    for ours, theirs in itertools.permutations(writes, 2):
        assert not ours.is_relative_to(theirs)


@pytest.mark.parametrize("place", ["state", "config", "cache", "cache/engines", "."])
def test_a_model_folder_that_holds_what_is_sparkdeploys_is_refused(
    tmp_path: Path, place: str
) -> None:
    facts = observed(model=model_fact(root=tmp_path / place))
    with pytest.raises(CheckpointError, match="must not see"):
        decide(resolve(Request("v2"), load_settings()), load_settings(), facts, Deployment("main"))


class _Engine:
    """A Docker Engine with one engine's image and one container that mounts a cache."""

    def __init__(self, spec: ContainerSpec, image: ImageFact) -> None:
        self.spec, self.image = spec, image

    def info(self) -> EngineInfo:
        return DOCKER

    def own_images(self) -> tuple[ImageFact, ...]:
        return (self.image,)

    def ended_checks(self) -> tuple[str, ...]:
        return ()

    def images_in_use(self) -> set[str]:
        return {self.image.image_id}

    def own_containers(self) -> tuple[ContainerFact, ...]:
        return (ContainerFact("c", "sparkdeploy-main", self.image.image_id, "exited", {}),)

    def mounted_from(self, container_id: str) -> tuple[str, ...]:
        assert container_id == "c"
        return tuple(mount.source for mount in self.spec.mounts)


def image_of(cache: Path) -> ImageFact:
    """The engine's image, by whose fingerprint the caches are found."""
    return ImageFact("sha256:i", (), {labels.FINGERPRINT: cache.parents[1].name}, 10)


def test_clean_takes_the_caches_of_deployments_that_are_gone_and_no_shared_one(
    spec_of: Callable[[Asked], ContainerSpec],
) -> None:
    asked = Asked("theirs")
    (used,) = writable(spec_of(asked))
    (gone,) = writable(spec_of(replace(asked, name="beside")))
    (shared,) = writable(spec_of(replace(asked, kind="v2")))
    for folder in (used, gone, shared):
        folder.mkdir(parents=True)
        (folder / "kernel").write_bytes(b"12345")
    host = _Engine(spec_of(asked), image_of(used))

    found = find_leftovers(load_settings(), host, now_s=0.0)  # type: ignore[arg-type]

    caches = {(item.name, item.size_bytes) for item in found if item.kind == "cache"}
    assert caches == {(str(gone.parent), 5)}
