"""Who shares a cache with whom: what one deployment compiles, the next one on it runs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

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

TYPED = {
    "v2 typed": ("v2", "serve.max_num_seqs=3", "serve.env={VLLM_X: '1'}"),
    "v2 with code of the model": ("v2", "serve.trust_remote_code=true"),
    "theirs allowed": ("theirs", "allow_unsafe=true"),
}
BODIES = {
    "mine": "extends: v2",
    "mine extends theirs": "extends: {theirs}",
    "mine with code of the model": "extends: v2\nserve: {{trust_remote_code: true}}",
}
THEIRS = "extends: v2\nserve: {max_num_seqs: 7}"


class Asked(NamedTuple):
    """A deployment as a user asks for it: a kind of recipe, a name, a model and its owner."""

    kind: str
    name: str = "main"
    model: str = "ada--one"
    owner: int = 1000


V2, THEIR = Asked("v2"), Asked("theirs")
SHARED = [
    (V2, V2._replace(name="beside")),
    (V2, Asked("hybrid", "beside")),
    (Asked("mine"), Asked("v2 typed", "beside")),
    (THEIR, Asked("theirs allowed")),
]
APART = [
    (V2, V2._replace(model="ada--one-more")),
    (V2, V2._replace(owner=0)),
    (V2, THEIR),
    (V2, Asked("v2 with code of the model")),
    (Asked("mine"), Asked("mine extends theirs")),
    (Asked("mine"), Asked("mine with code of the model")),
    (THEIR, THEIR._replace(name="beside")),
    (THEIR, Asked("theirs too")),
    (THEIR, Asked("mine extends theirs")),
]


def write(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"schema: 1\nname: {path.stem}\ntitle: t\n{body}\n")
    return str(path)


@pytest.fixture
def spec_of(tmp_path: Path) -> Callable[[Asked], ContainerSpec]:
    """The container that `up` would start for a deployment, as the product decides it."""
    own = load_settings().config_dir / "recipes"
    files = {name: write(tmp_path / f"{name}.yaml", THEIRS) for name in ("theirs", "theirs-too")}
    files["theirs too"] = files.pop("theirs-too")
    for name, body in BODIES.items():
        path = own / f"{name.replace(' ', '-')}.yaml"
        files[name] = write(path, body.format(theirs=files["theirs"]))

    @functools.cache
    def make(wanted: Asked) -> ContainerSpec:
        recipe, *typed = TYPED.get(wanted.kind, (wanted.kind,))
        root = Path(f"/home/ada/hub/models--{wanted.model}")
        model = model_fact(
            name=wanted.model, root=root, owner_uid=wanted.owner, owner_gid=wanted.owner
        )
        resolved = resolve(Request(files.get(recipe, recipe), tuple(typed)), load_settings())
        deployment = Deployment(wanted.name)
        plan = decide(resolved, load_settings(), observed(model=model), deployment)
        assert plan.head.spec is not None
        return plan.head.spec

    return make


def mounted(spec: ContainerSpec, mode: str) -> set[Path]:
    return {Path(mount.source) for mount in spec.mounts if mount.mode == mode}


def test_only_wholly_own_recipes_of_one_model_and_user_share_a_cache(
    spec_of: Callable[[Asked], ContainerSpec],
) -> None:
    for pairs, is_shared in ((SHARED, True), (APART, False)):
        for one, other in pairs:
            shared = mounted(spec_of(one), "rw") & mounted(spec_of(other), "rw")
            assert bool(shared) is is_shared, (one, other)


def test_what_one_may_write_lies_in_nothing_that_another_one_mounts(
    spec_of: Callable[[Asked], ContainerSpec],
) -> None:
    specs = [spec_of(asked) for pair in (*SHARED, *APART) for asked in pair]
    writes = {path for spec in specs for path in mounted(spec, "rw")}
    mounts = {path for spec in specs for path in mounted(spec, "ro")}
    for ours, theirs in itertools.product(writes, mounts):
        assert not ours.is_relative_to(theirs)
        assert not theirs.is_relative_to(ours)
    for ours, theirs in itertools.permutations(writes, 2):
        assert not ours.is_relative_to(theirs)


@pytest.mark.parametrize(
    "place", ["state", "config", "cache", "cache/engines", "cache/engines/a/b", "."]
)
def test_a_model_folder_that_holds_what_is_sparkdeploys_is_refused(
    tmp_path: Path, place: str
) -> None:
    facts = observed(model=model_fact(root=tmp_path / place))
    with pytest.raises(CheckpointError, match=r"must not see|where containers write"):
        decide(resolve(Request("v2"), load_settings()), load_settings(), facts, Deployment("main"))


def test_clean_takes_the_caches_of_deployments_that_are_gone_and_no_shared_one(
    spec_of: Callable[[Asked], ContainerSpec],
) -> None:
    kinds = (THEIR, THEIR._replace(name="beside"), V2)
    used, gone, shared = (mounted(spec_of(asked), "rw").pop() for asked in kinds)
    for folder in (used, gone, shared):
        folder.mkdir(parents=True)
        (folder / "kernel").write_bytes(b"12345")
    image = ImageFact("sha256:i", (), {labels.FINGERPRINT: used.parents[1].name}, 10)
    host: Any = SimpleNamespace(
        info=lambda: DOCKER,
        own_images=lambda: (image,),
        ended_checks=tuple,
        images_in_use=lambda: {"sha256:i"},
        own_containers=lambda: (ContainerFact("c", "sparkdeploy-main", "i", "exited", {}),),
        mounted_from=lambda _container: tuple(it.source for it in spec_of(THEIR).mounts),
    )
    found = find_leftovers(load_settings(), host, now_s=0.0)
    caches = {(item.name, item.size_bytes) for item in found if item.kind == "cache"}
    assert caches == {(str(gone.parent), 5)}
