"""`up --update-image`: a tag means another image when a start of that has answered, not before."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sparkdeploy.commands import known_image
from sparkdeploy.commands import up as commands_up
from sparkdeploy.commands.known_image import ImagePolicy, Known
from sparkdeploy.commands.request import Request, resolve, resolve_unasked
from sparkdeploy.commands.up import Extent
from sparkdeploy.deploy.new_meaning import NewMeaning
from sparkdeploy.deploy.recovery import recover
from sparkdeploy.errors import BuildError, UnhealthyError
from sparkdeploy.image.pins import keep, keep_contents
from sparkdeploy.recipe.settled import ImageContents, ImageLock, SettledImage
from sparkdeploy.settings import load_settings
from tests.fakes.machines import Killed, Lab, build, dies, interrupts, killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkdeploy.image.settle import Settling
    from sparkdeploy.image.stages import Stage
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.load import Library
    from sparkdeploy.settings import Settings

TAG = "lab/vllm:v1"
BEFORE = SettledImage("lab/vllm@sha256:" + "a" * 64, "2026-11-24T00:00:00+00:00")
NOW = SettledImage("lab/vllm@sha256:" + "b" * 64, "2026-11-25T00:00:00+00:00")
OLD, LATER = "serve.max_num_seqs=1", "serve.max_num_seqs=2"
CONTENTS = ImageContents("0.33.0", "2.14.0", "13.0", ["sm_121a"], {}, None)


def meaning() -> SettledImage | None:
    return ImageLock(load_settings().state_dir).settled(TAG)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, shipped: Library) -> Lab:
    """One machine that serves the old image of a tag whose image is another one by now."""
    made = build(monkeypatch, shipped, 1)
    made.up(OLD)
    made.is_answering = True
    keep(load_settings(), TAG, BEFORE)
    return made


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> Callable[..., None]:
    """`up --update-image`, and another recipe's text in the place of another image."""

    def run(extent: Extent = Extent.ANSWER) -> None:
        with monkeypatch.context() as patched:
            other = lambda plan, *_: Known(replace(plan.resolved), NewMeaning(TAG, NOW))  # noqa: E731
            patched.setattr(commands_up, "with_known_image", other)
            lab.up(LATER, extent=extent)

    return run


@pytest.mark.parametrize(
    ("wait", "error"),
    [(dies, UnhealthyError), (interrupts, KeyboardInterrupt), (killed, Killed)],
    ids=["died", "ctrl-c", "kill"],
)
def test_a_start_that_does_not_leaves_the_tag(
    lab: Lab,
    moved: Callable[..., None],
    wait: Any,
    error: type[BaseException],
    capsys: pytest.CaptureFixture[str],
) -> None:
    lab.wait = wait
    with pytest.raises(error):
        moved()
    assert meaning() == BEFORE
    if error is UnhealthyError:
        assert f"{TAG} stays what it was: {BEFORE.image}" in capsys.readouterr().err


def test_a_kill_at_any_moment_moves_tag_and_container_together(
    monkeypatch: pytest.MonkeyPatch, shipped: Library
) -> None:
    for at in range(1, 40):
        lab = build(monkeypatch, shipped, 1)
        lab.up(OLD)
        lab.is_answering = True
        keep(load_settings(), TAG, BEFORE)
        other = lambda plan, *_: Known(replace(plan.resolved), NewMeaning(TAG, NOW))  # noqa: E731
        with monkeypatch.context() as patched:
            patched.setattr(commands_up, "with_known_image", other)
            lab.kill_at = at
            with contextlib.suppress(Killed):
                lab.up(LATER)
                return
        lab.kill_at = 0
        recover(lab.nodes(frozenset()).alone(), "main", load_settings())
        assert (lab.running(), meaning()) in ((["1"], BEFORE), (["2"], NOW)), at
    pytest.fail("it never ended")


@dataclass
class _Registry:
    """Says what a tag is, and looks into it without an engine."""

    contents: ImageContents | BuildError
    settings: Settings
    architecture: str = "aarch64"
    platform: str | None = None

    def ask(self, tag: str) -> SettledImage:
        assert tag == TAG
        return NOW

    settle = ask

    def look_into(self, engine: Engine, _stage: Stage) -> ImageContents:
        assert engine.image == NOW.image
        if isinstance(self.contents, BuildError):
            raise self.contents
        keep_contents(self.settings, NOW.image, self.contents)
        return self.contents


def settled(
    policy: ImagePolicy, *assignments: str, found: ImageContents | BuildError = CONTENTS
) -> Known:
    settings = load_settings()
    request = Request("baseline", ("engine=image", f"image={TAG}", *assignments))
    load = resolve_unasked if policy is ImagePolicy.UPDATE else resolve
    return known_image.settle(
        load(request, settings),
        lambda images: resolve(request, settings, images),
        cast("Settling", _Registry(found, settings)),
        policy,
    )


@pytest.mark.parametrize("policy", list(ImagePolicy))
def test_a_first_image_that_does_not_fit_is_not_kept(policy: ImagePolicy) -> None:
    with pytest.raises(BuildError):
        settled(policy, found=BuildError("no Python in it has vLLM"))
    assert meaning() is None
    known = settled(policy)
    assert (known.resolved.engine.image, known.new, meaning()) == (NOW.image, None, NOW)


def test_another_image_is_not_kept_before_it_has_served() -> None:
    keep(load_settings(), TAG, BEFORE)
    known = settled(ImagePolicy.UPDATE)
    assert known.resolved.engine.image == NOW.image
    assert known.new == NewMeaning(TAG, NOW)
    assert meaning() == BEFORE
    assert resolve(Request("baseline", ("engine=image", f"image={TAG}")), load_settings()).image
