"""Names of archives in configs."""

from __future__ import annotations

from typing import Any

import pytest

from evorl.config.nodes import plain_value
from evorl.ec.archives import Archive, CentroidArchive, GridArchive
from evorl.ec.archives.registry import ARCHIVES, archive_name, named_archive
from tests.support.errors import raises_naming


class MyGrid(GridArchive):
    """A user's archive."""


def test_a_config_names_the_archive() -> None:
    assert named_archive(Archive, "grid", "archive") == (GridArchive, {})
    with pytest.raises(ValueError, match="centroid"):
        named_archive(Archive, "centroids", "archive")


def test_an_archive_has_the_name_that_selects_it() -> None:
    assert {name: archive_name(kind()) for name, kind in ARCHIVES.items()} == {name: name for name in ARCHIVES}
    assert archive_name(MyGrid()) == f"{__name__}:MyGrid"
    assert plain_value(CentroidArchive())["name"] == "centroid"


@pytest.mark.parametrize("name", [["grid"], {"grid": 1}, 3, None, True], ids=str)
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    with raises_naming(ValueError, "archive.name", "grid, centroid"):
        named_archive(Archive, name, "archive")
