"""The rendered Dockerfiles against reviewed ones; --update-golden writes them anew."""

import re
from pathlib import Path

import pytest

from sparkdeploy.errors import BuildError
from sparkdeploy.image import templates
from sparkdeploy.image.stages import BaseSource, stages_of
from sparkdeploy.settings import resources
from tests.unit.golden import assert_golden, difference

from .conftest import LoadEngine, MakeStages
from .rendered import ADOPTED, ENGINES, rendered_dockerfiles

WHOLE = (
    *("cpu-0.32.engine", "cuda-0.19.engine", "cuda-0.25.base", "cuda-0.25.engine"),
    *("cuda-0.25.plugin", "cuda-0.25.mod", "cuda-0.25.guard"),
    *("image-digest.engine", "image-id.engine"),
)
"""The others differ from one of these in a few lines, which stand in a file of their own."""
NEEDS_BUILDKIT = {
    "RUN --mount": re.compile(r"^RUN\s+--(mount|network|security|device)", re.MULTILINE),
    "COPY --chmod": re.compile(r"^(COPY|ADD)\s.*--(chmod|link|parents|exclude)", re.MULTILINE),
    "heredoc": re.compile(r"^(RUN|COPY|ADD)\b.*<<-?[\"']?\w", re.MULTILINE),
    "syntax line": re.compile(r"^#\s*syntax\s*=", re.MULTILINE),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_stage_renders_as_committed(
    request: pytest.FixtureRequest, load: LoadEngine, name: str
) -> None:
    text = rendered_dockerfiles(load)[name]
    assert_golden(request, f"dockerfiles/{name}.Dockerfile", text)


def test_the_other_stages_differ_from_these_as_committed(
    request: pytest.FixtureRequest, load: LoadEngine
) -> None:
    rendered = rendered_dockerfiles(load)
    parts = []
    for name in sorted(rendered.keys() - set(WHOLE)):
        kind = "cpu-0.32" if name.startswith("cpu") and name.endswith("engine") else "cuda-0.25"
        known = f"{kind}.{name.rpartition('.')[2]}"
        parts.append(f"{name} and {known}\n{difference(rendered[known], rendered[name])}")
    assert_golden(request, "dockerfiles/others.diff", "\n".join(parts))


@pytest.mark.parametrize(
    ("name", "source"),
    [(name, "registry") for name in ENGINES]
    + [(name, "debian") for name in ENGINES if name != "cuda-0.19"],
)
def test_no_dockerfile_needs_buildkit(
    make_stages: MakeStages, name: str, source: BaseSource
) -> None:
    for stage in make_stages(name, base_source=source):
        found = [what for what, sign in NEEDS_BUILDKIT.items() if sign.search(stage.dockerfile)]
        assert not found, f"{stage.name} uses {found}"


@pytest.mark.parametrize("name", ENGINES)
def test_the_final_half_of_a_stage_never_sees_the_network_folder(
    make_stages: MakeStages, name: str
) -> None:
    for stage in make_stages(name):
        final = stage.dockerfile[stage.dockerfile.rindex("\nFROM ") :]
        assert "network" not in final
        assert "\nARG" not in final


def test_a_template_value_that_is_missing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.Dockerfile.j2").write_text("FROM {{ below }}\n")
    with pytest.raises(BuildError, match="below"):
        templates.render(tmp_path, "x.Dockerfile.j2")


@pytest.mark.parametrize("image", ADOPTED.values())
def test_an_existing_image_is_adopted(make_stages: MakeStages, image: str) -> None:
    adopted, plugin = make_stages("image", image=image)
    assert (adopted.below, plugin.below) == (None, adopted.tag)
    assert image in (adopted.registry_image, adopted.local_image)


def test_a_missing_lock_is_named(load: LoadEngine, tmp_path: Path) -> None:
    (tmp_path / "dockerfiles").symlink_to(resources() / "dockerfiles")
    with pytest.raises(BuildError, match=r"no lock for aarch64.*aarch64-py311\.txt"):
        stages_of(
            load("cuda-0.25"), base_source="debian", architecture="aarch64", resources=tmp_path
        )


def test_a_base_that_only_a_registry_has_is_named(make_stages: MakeStages) -> None:
    with pytest.raises(BuildError, match="can only come from a registry"):
        make_stages("cuda-0.19", base_source="debian")
