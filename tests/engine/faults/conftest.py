"""What tests of faults share: a user on an engine that may be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import free_port
from tests.engine.ground import Ground, ground


@pytest.fixture(scope="package")
def place(
    host: DockerHost, python_base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    """A user with the stand-in, on an engine that may be killed."""
    root = tmp_path_factory.mktemp("faults")
    with ground(host, python_base_image, root, free_port()) as made:
        yield made


@pytest.fixture
def deployed(place: Ground) -> Ground:
    """The same, with a healthy deployment that answers `old`."""
    code, said = place.up("old")
    assert code == 0, said
    return place
