"""Names of archives in configs."""

from __future__ import annotations

import pytest

from evorl.config.defaults import plain_value
from evorl.ec.archives import Archive, CentroidArchive, GridArchive
from evorl.ec.archives.registry import ARCHIVES, archive_name, named_archive


class MyGrid(GridArchive):
    """A user's archive."""


def test_a_config_names_the_archive() -> None:
    assert named_archive(Archive, {"name": "grid", "bins": [2]}, "archive") == (GridArchive, {"bins": [2]})
    with pytest.raises(ValueError, match="centroid"):
        named_archive(Archive, {"name": "centroids"}, "archive")


def test_an_archive_has_the_name_that_selects_it() -> None:
    assert {name: archive_name(kind()) for name, kind in ARCHIVES.items()} == {name: name for name in ARCHIVES}
    assert archive_name(MyGrid()) == f"{__name__}:MyGrid"
    assert plain_value(CentroidArchive())["name"] == "centroid"
