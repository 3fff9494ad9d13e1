"""One checkpoint on disk: its files, and errors for damage."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.runs import storage
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.files import RunFolderError
from evorl.runs.manifest import write_manifest
from evorl.runs.storage import check_checkpoint, read_about, read_structure, write_checkpoint
from evorl.runs.structure import CheckpointError
from evorl.types import State
from tests.support.errors import raises_naming


def test_a_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    state = {"w": jnp.ones((2, 2)), "large": jnp.ones(2**20)}
    write_checkpoint(tmp_path / "7", state, {"iterations": 7, "score": 2.0, "progress": {"a": 1}})
    names = ["manifest.json", "progress.json", "state", "structure.json"]
    assert sorted(path.name for path in (tmp_path / "7").iterdir()) == names
    leaves, offsets = read_structure(tmp_path / "7")
    assert [str(leaf) for leaf in leaves] == ["float32[1048576]", "float32[2, 2]"]
    assert offsets == {"w": 0}
    assert read_about(tmp_path / "7") == {"iterations": 7, "score": 2.0, "progress": {"a": 1}}


def test_processes_that_share_no_disk_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "is_first", lambda: False)  # the first process created the folder elsewhere
    with raises_naming(RunFolderError, tmp_path / "7", "first process", "runs_folder", "disk"):
        write_checkpoint(tmp_path / "7", {"w": jnp.ones(2)}, {"iterations": 7})
    assert not (tmp_path / "7").exists()


def sign(path: Path) -> None:
    """Write a manifest for the present files, as for a manually written checkpoint."""
    (path / "manifest.json").unlink(missing_ok=True)
    write_manifest(path, int(path.name))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[1]", ("progress.json", "describe a run")),
        ('{"score": "high", "progress": {}}', ("score", "'high'")),
        ("{", ("progress.json", "valid JSON")),
        ("[" * 100_000, ("progress.json", "valid JSON")),
    ],
)
def test_what_describes_no_run_is_told_in_words(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    path = tmp_path / "1"
    path.mkdir()
    with raises_naming(CheckpointError, "/1 is corrupted", "progress.json", "cannot be read"):
        read_about(path)
    (path / "progress.json").write_text(text)
    sign(path)
    with raises_naming(CheckpointError, *parts):
        read_about(path)


@pytest.mark.parametrize("size", [10, 2**19])  # among the small leaves, and separate
def test_arrays_that_the_store_refuses_are_told_in_words(tmp_path: Path, size: int) -> None:
    checkpointer = RunCheckpointer(tmp_path)
    template = {"w": jnp.arange(float(size))}
    checkpointer.save(template, {"iterations": 1})
    np.testing.assert_array_equal(checkpointer.restore(template)[0]["w"], template["w"])
    for data in (tmp_path / "1" / "state").rglob("d/*"):
        data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    sign(tmp_path / "1")
    with raises_naming(CheckpointError, "/1 is corrupted", "Error"):
        checkpointer.restore(template)


def test_a_structure_that_describes_no_state_is_told_in_words(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "1", {"w": jnp.zeros(3)}, {"iterations": 1, "score": None, "progress": {}})
    check_checkpoint(tmp_path / "1")
    (tmp_path / "1" / "structure.json").write_text(json.dumps({"leaves": [{"shape": 1}]}))
    with raises_naming(CheckpointError, "structure.json", "digest"):
        check_checkpoint(tmp_path / "1")
    sign(tmp_path / "1")
    with raises_naming(CheckpointError, "structure.json", "describe a state"):
        read_structure(tmp_path / "1")


@pytest.mark.parametrize("name", ["[x]", "a*", "what?", "back\\slash", "josé, #1 {y}"])
def test_a_folder_may_have_any_name(name: str, tmp_path: Path) -> None:
    """Folder names may contain any characters, including pattern characters of Orbax."""
    (tmp_path / "ab" / "1").mkdir(parents=True)  # matches ``a*``
    state = {"w": jnp.arange(4.0), "large": jnp.ones(2**20)}
    checkpointer = RunCheckpointer(tmp_path / name / "checkpoints")
    checkpointer.save(State(state), {"iterations": 1, "timesteps": 1}, None)
    checkpointer.close()
    restored, _ = RunCheckpointer(tmp_path / name / "checkpoints").restore(State(state))
    np.testing.assert_array_equal(restored.w, state["w"])
    np.testing.assert_array_equal(restored.large, state["large"])
    assert {path.name for path in tmp_path.iterdir()} == {"ab", name}


def test_several_processes_name_a_folder_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "is_multiprocess", lambda: True)
    with raises_naming(RunFolderError, "several processes", "runs_folder"):
        write_checkpoint(tmp_path / "[x]" / "1", {"w": jnp.ones(2)}, {"iterations": 1})


def test_several_processes_that_read_a_folder_name_it_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(w=jnp.ones(2))
    checkpointer = RunCheckpointer(tmp_path / "[x]")
    checkpointer.save(state, {"iterations": 1, "timesteps": 1}, None)
    checkpointer.close()
    monkeypatch.setattr(storage, "is_multiprocess", lambda: True)
    with raises_naming(RunFolderError, "several processes", "runs_folder", "[ \\ ]") as raised:
        RunCheckpointer(tmp_path / "[x]").restore(state)
    assert "corrupted" not in str(raised.value)
