"""One checkpoint on disk: what lies there, and damage told in words."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.checkpointing import CheckpointError, RunCheckpointer
from evorl.checkpointing.storage import read_progress, read_score, read_structure, write_checkpoint


def test_a_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    state = {"w": jnp.ones((2, 2)), "large": jnp.ones(2**20)}
    write_checkpoint(tmp_path / "7", state, {"score": 2.0, "progress": {"iterations": 7}})
    assert sorted(path.name for path in (tmp_path / "7").iterdir()) == ["progress.json", "state", "structure.json"]
    leaves, offsets = read_structure(tmp_path / "7")
    assert [str(leaf) for leaf in leaves] == ["float32[1048576]", "float32[2, 2]"]
    assert offsets == {"w": 0}
    assert (read_score(tmp_path / "7"), read_progress(tmp_path / "7")) == (2.0, {"iterations": 7})


def test_what_is_no_checkpoint_has_no_score(tmp_path: Path) -> None:
    assert read_score(tmp_path) is None
    (tmp_path / "progress.json").write_text("[1]")
    assert read_score(tmp_path) is None
    with pytest.raises(CheckpointError, match=r"is damaged \(progress\.json is not as it was written\)"):
        read_progress(tmp_path)


@pytest.mark.parametrize("size", [10, 2**19])  # among the small leaves, and by itself
def test_cut_off_data_is_noticed(tmp_path: Path, size: int) -> None:
    checkpointer = RunCheckpointer(tmp_path)
    template = {"w": jnp.arange(float(size))}
    checkpointer.save(template, {"iterations": 1})
    np.testing.assert_array_equal(checkpointer.restore(template)[0]["w"], template["w"])
    for data in (tmp_path / "1" / "state").rglob("d/*"):
        data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"/1 is damaged .*start a new run"):
        checkpointer.restore(template)


def test_damaged_checkpoints_are_told_in_words(tmp_path: Path) -> None:
    checkpointer = RunCheckpointer(tmp_path)
    for step in (1, 2, 3):
        checkpointer.save({"w": jnp.arange(1000.0)}, {"iterations": step})
    template = {"w": jnp.zeros(1000)}
    for data in (tmp_path / "3" / "state").rglob("d/*"):
        data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"/3 is damaged .*restore another one: 1, 2"):
        checkpointer.restore(template)
    (tmp_path / "2" / "structure.json").unlink()
    with pytest.raises(CheckpointError, match=r"/2 is damaged \(structure.json cannot be read\)"):
        checkpointer.restore(template, 2)
    (tmp_path / "1" / "structure.json").write_text(json.dumps({"leaves": [{"shape": 1}]}))
    with pytest.raises(CheckpointError, match=r"structure\.json is not as it was written"):
        checkpointer.restore(template, 1)
