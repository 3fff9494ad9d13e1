"""Checkpoints: exact round trips, retention, kills, and errors for mismatches."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.runs import checkpointer as module
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.files import RunFolderError
from evorl.runs.structure import CheckpointError
from evorl.types import PyTreeData, PyTreeDict, State
from tests.support.errors import assert_names, raises_naming

SMALL = {"w": jnp.arange(3.0)}


class Pair(PyTreeData):
    first: jax.Array
    second: jax.Array


def make_state(seed: int = 0) -> State:
    key = jax.random.key(seed)
    return State(
        key=key,
        env_keys=jax.random.split(key, 4),
        other_keys=jax.random.split(jax.random.key(seed, impl="rbg"), 2),
        no_keys=jax.random.split(key, 4)[:0],
        params=PyTreeDict(kernel=jax.random.normal(key, (5, 3)), half=jnp.ones(7, jnp.bfloat16) / 3),
        pair=Pair(first=jnp.array([True, False]), second=jnp.int32(-7)),
        words=jnp.array([0, 2**32 - 1], jnp.uint32),
        strange=jnp.array([jnp.nan, jnp.inf, -0.0]),
        empty=jnp.zeros((0, 4)),
        nothing=None,
        pixels=jnp.zeros((2, 2), jnp.uint8),
        large=jax.random.normal(key, (600, 600)),
    )


def assert_same_bits(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype, path
        assert x.shape == y.shape, path
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> RunCheckpointer:
    """Create a folder with one checkpoint of ``make_state()``, which tests only read."""
    checkpointer = RunCheckpointer(tmp_path_factory.mktemp("run") / "checkpoints")
    checkpointer.save(make_state(), {"iterations": 12, "means": {"train/loss": 0.1}}, score=1.5)
    return checkpointer


@pytest.mark.parametrize("abstract", [False, True])
def test_round_trip_is_exact(saved: RunCheckpointer, abstract: bool) -> None:
    template = jax.eval_shape(make_state) if abstract else make_state(seed=1)
    state, progress = saved.restore(template)
    assert_same_bits(make_state(), state)
    assert progress == {"iterations": 12, "means": {"train/loss": 0.1}}


def test_restored_keys_draw_the_same_numbers(saved: RunCheckpointer) -> None:
    state, _ = saved.restore(jax.eval_shape(make_state))
    np.testing.assert_array_equal(jax.random.normal(state.key, (3,)), jax.random.normal(make_state().key, (3,)))


def test_python_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    checkpointer = RunCheckpointer(tmp_path)
    checkpointer.save({"a": 3, "b": 2.5, "c": True, "d": np.uint64(2**60)}, {"iterations": 1})
    state, _ = checkpointer.restore({"a": 0, "b": 0.0, "c": False, "d": np.uint64(0)})
    assert state == {"a": 3, "b": 2.5, "c": True, "d": 2**60}
    assert [type(value) for value in (state["a"], state["b"], state["c"])] == [int, float, bool]


def test_a_part_is_restored_without_the_rest(saved: RunCheckpointer) -> None:
    whole = make_state()
    part, _ = saved.restore(State(params=whole.params, key=whole.key), partial=True)
    assert_same_bits(State(params=whole.params, key=whole.key), part)
    with raises_naming(CheckpointError, "1 missing: absent"):
        saved.restore(State(absent=jnp.zeros(2)), partial=True)


def test_leaves_go_where_the_template_asks_on_any_number_of_devices(saved: RunCheckpointer) -> None:
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("envs",), axis_types=(jax.sharding.AxisType.Auto,))
    replicated = jax.NamedSharding(mesh, jax.P())
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), jax.eval_shape(make_state)
    )
    state, _ = saved.restore(template)
    placed = [leaf for leaf in jax.tree.leaves(state) if leaf.size]
    assert all(leaf.sharding.is_equivalent_to(replicated, leaf.ndim) for leaf in placed)
    assert_same_bits(make_state(), state)


def test_a_sharded_state_is_restored_as_one(tmp_path: Path) -> None:
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("envs",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jnp.arange(len(devices) * 300_000.0)  # large enough for storage shard by shard
    checkpointer = RunCheckpointer(tmp_path)
    checkpointer.save({"rows": jax.device_put(rows, jax.NamedSharding(mesh, jax.P("envs")))}, {"iterations": 1})
    state, _ = checkpointer.restore({"rows": jax.ShapeDtypeStruct(rows.shape, rows.dtype)})
    np.testing.assert_array_equal(state["rows"], rows)


def test_saving_does_not_stand_in_the_way_of_donation(tmp_path: Path) -> None:
    step = jax.jit(lambda x: x.at[0].add(1.0), donate_argnums=0)
    x = step(jnp.zeros(500_000))
    before = x.unsafe_buffer_pointer()
    RunCheckpointer(tmp_path).save({"x": x}, {"iterations": 1})
    assert step(x).unsafe_buffer_pointer() == before


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpointer = RunCheckpointer(tmp_path, max_to_keep=2)
    scores = {1: 0.5, 2: 9.0, 3: None, 4: 9.0, 5: float("nan"), 6: 1.0, 7: None}
    for step, score in scores.items():
        checkpointer.save({"w": jnp.float32(step)}, {"iterations": step}, score)
    assert checkpointer.steps == (4, 6, 7)
    assert (checkpointer.best_step, checkpointer.best_score) == (4, 9.0)
    for which, step in (("latest", 7), ("best", 4), (6, 6), ("6", 6)):
        state, progress = checkpointer.restore({"w": jnp.float32(0)}, which)
        assert (float(state["w"]), progress["iterations"]) == (step, step)


def test_so_many_of_the_best_are_kept(tmp_path: Path) -> None:
    checkpointer = RunCheckpointer(tmp_path, max_to_keep=1, best_to_keep=3)
    for step, score in enumerate([1.0, 5.0, 3.0, 4.0, 2.0], start=1):
        assert checkpointer.wants(score) == (step != 5)
        checkpointer.save(SMALL, {"iterations": step}, score)
    assert not checkpointer.wants(3.0)  # an equal score alone does not request a save
    checkpointer.save(SMALL, {"iterations": 6}, 3.0)  # the later one of equal scores
    checkpointer.save(SMALL, {"iterations": 7}, None)
    assert checkpointer.steps == (2, 4, 6, 7)
    assert checkpointer.best_step == 2
    assert [checkpointer.available(which) for which in ("best", "latest", 4)] == ["best", "latest", 4]
    assert RunCheckpointer(tmp_path / "empty").available("best") == "latest"
    assert not checkpointer.wants(None)
    assert not checkpointer.wants(float("nan"))
    assert not RunCheckpointer(tmp_path).has_rules


def test_a_state_is_wanted_after_so_many_seconds(tmp_path: Path) -> None:
    now = [100.0]
    checkpointer = RunCheckpointer(tmp_path, max_to_keep=1, seconds=30.0, clock=lambda: now[0])
    wanted = []
    for step in range(1, 9):
        now[0] += 10.0
        wanted.append(checkpointer.wants(None))
        if wanted[-1]:
            checkpointer.save(SMALL, {"iterations": step})
    assert wanted == [False, False, True, False, False, True, False, False]
    assert checkpointer.has_rules
    assert [path.name for path in tmp_path.iterdir()] == ["6"]


def test_saving_an_iteration_again_keeps_its_score(tmp_path: Path) -> None:
    checkpointer = RunCheckpointer(tmp_path)
    checkpointer.save(SMALL, {"iterations": 3}, 2.0)
    checkpointer.save(SMALL, {"iterations": 3, "again": True}, None)
    assert checkpointer.best_score == 2.0
    assert checkpointer.restore(SMALL)[1]["again"]


def test_resume_at_an_earlier_iteration_forgets_the_later_ones(tmp_path: Path) -> None:
    checkpointer = RunCheckpointer(tmp_path, max_to_keep=5)
    for step in (2, 4, 10):
        checkpointer.save(SMALL, {"iterations": step})
    checkpointer.resume_at(4)
    assert checkpointer.steps == (2, 4)


def test_a_kill_while_saving_leaves_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointer = RunCheckpointer(tmp_path)
    checkpointer.save(SMALL, {"iterations": 1})

    def write_half(path: Path, *_: Any) -> None:
        (path / "state").mkdir(parents=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_checkpoint", write_half)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before cleaning up
        with pytest.raises(KeyboardInterrupt):
            checkpointer.save(SMALL, {"iterations": 2})
    assert checkpointer.steps == (1,)
    assert len(list(tmp_path.iterdir())) == 2
    checkpointer.save(SMALL, {"iterations": 3})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]


def test_a_kill_while_replacing_a_checkpoint_leaves_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointer = RunCheckpointer(tmp_path)
    checkpointer.save(SMALL, {"iterations": 1})

    def delete(path: Path) -> None:
        if "removed" in path.name:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_delete", delete)
        with pytest.raises(KeyboardInterrupt):
            checkpointer.save(SMALL, {"iterations": 1, "again": True})
    assert checkpointer.restore(SMALL)[1]["again"]


@pytest.mark.parametrize("text", ["No space left on device", "Read-only file system"])
def test_a_full_or_read_only_disk_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    checkpointer = RunCheckpointer(tmp_path)
    checkpointer.save(SMALL, {"iterations": 1})

    def fail(*_: Any) -> None:
        raise ValueError(f"RESOURCE_EXHAUSTED: Error writing: {text} [os_error_code='28']")

    monkeypatch.setattr(module, "write_checkpoint", fail)
    with raises_naming(RunFolderError, f"write to {tmp_path}", "checkpoints are kept"):
        checkpointer.save(SMALL, {"iterations": 2})
    assert checkpointer.steps == (1,)


def test_another_structure_is_told_in_words(saved: RunCheckpointer) -> None:
    template = make_state()
    template.params.kernel = jnp.zeros((5, 4))
    template.extra = jnp.zeros(2)
    del template.words
    kernel = "params/kernel (saved float32[5, 3], expected float32[5, 4])"
    with raises_naming(CheckpointError, "1 missing: extra", "1 not expected: words", kernel, "config of the run"):
        saved.restore(template)


def test_missing_checkpoints_are_told_in_words(tmp_path: Path, saved: RunCheckpointer) -> None:
    with raises_naming(CheckpointError, tmp_path / "nowhere", "not exist"):
        RunCheckpointer(tmp_path / "nowhere").restore(SMALL)
    with raises_naming(CheckpointError, tmp_path, "complete checkpoint"):
        RunCheckpointer(tmp_path).restore(SMALL)
    with raises_naming(CheckpointError, "'lates'", "latest, best", "one of 12"):
        saved.restore(SMALL, "lates")
    unscored = RunCheckpointer(tmp_path)
    unscored.save(SMALL, {"iterations": 1})
    with raises_naming(CheckpointError, "evaluation score", "restore 'latest'"):
        unscored.restore(SMALL, "best")
    assert unscored.best_score is None


def test_arguments_are_checked(tmp_path: Path) -> None:
    with raises_naming(ValueError, "max_to_keep", "got 0"):
        RunCheckpointer(tmp_path, max_to_keep=0)
    with raises_naming(ValueError, "'iterations'", "has: steps"):
        RunCheckpointer(tmp_path).save(SMALL, {"steps": 1})


def test_saving_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture) -> None:
    level = logging.getLogger("absl").level
    checkpointer = RunCheckpointer(tmp_path)
    checkpointer.save(SMALL, {"iterations": 1})
    checkpointer.restore(SMALL)
    checkpointer.wait()
    checkpointer.close()
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert logging.getLogger("absl").level == level
    assert checkpointer.save_seconds > 0


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture
def three(tmp_path: Path) -> RunCheckpointer:
    """Save checkpoints of the iterations 1 to 3; iteration 2 has the best score."""
    checkpointer = RunCheckpointer(tmp_path / "checkpoints")
    for step in (1, 2, 3):
        checkpointer.save({"w": np.full(4, step)}, {"iterations": step}, score=5.0 - abs(step - 2))
    return checkpointer


def test_a_damaged_checkpoint_is_passed_over_in_words(three: RunCheckpointer) -> None:
    template = {"w": np.zeros(4, int)}
    three.restore(template)
    assert three.notices == []
    flip_a_byte(three.folder / "3" / "structure.json")
    assert three.restore(template)[1]["iterations"] == 2
    first, second = three.notices
    assert_names(first, "/3 is corrupted", "structure.json", "digest")
    assert_names(second, "checkpoint of iteration 2")
    with raises_naming(CheckpointError, "/3 is corrupted", "1, 2."):
        three.restore(template, 3)
    for step in (1, 2):
        flip_a_byte(three.folder / str(step) / "progress.json")
    with raises_naming(CheckpointError, "/3 is corrupted", "/2 is corrupted", "/1 is corrupted", "new run"):
        three.restore(template)


@pytest.mark.parametrize("name", ["progress.json", "manifest.json", "structure.json"])
def test_a_damaged_best_one_is_passed_over_in_words(three: RunCheckpointer, name: str) -> None:
    (three.folder / "2" / name).write_text("{}")
    assert three.restore({"w": np.zeros(4, int)}, "best")[1]["iterations"] == 3  # equal to 1, and later
    assert "/2 is corrupted: " in three.notices[0]


def test_a_copy_under_a_later_name_is_not_taken_for_the_newest(three: RunCheckpointer) -> None:
    shutil.copytree(three.folder / "1", three.folder / "99999999")
    assert three.steps == (1, 2, 3)
    assert three.restore({"w": np.zeros(4, int)})[1]["iterations"] == 3
    assert "/99999999 is corrupted: its manifest.json belongs to the checkpoint of iteration 1." in three.notices[0]
    three.save({"w": np.full(4, 4)}, {"iterations": 4})
    assert (three.folder / "99999999").is_dir()  # copies by the user are kept


def test_a_checkpoint_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with raises_naming(RunFolderError, "checkpoints", "symbolic link"):
        RunCheckpointer(tmp_path / "checkpoints").save(SMALL, {"iterations": 1})
    assert list((tmp_path / "elsewhere").iterdir()) == []
    checkpointer = RunCheckpointer(tmp_path / "real")
    checkpointer.save(SMALL, {"iterations": 1})
    for name in ("2", ".unfinished-2"):
        (checkpointer.folder / name).symlink_to(tmp_path / "elsewhere")
    checkpointer.save(SMALL, {"iterations": 2})
    assert sorted(path.name for path in checkpointer.folder.iterdir()) == ["1", "2"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_files_along_with_the_run_are_as_long_as_they_were(tmp_path: Path) -> None:
    csv, jsonl = tmp_path / "metrics.csv", tmp_path / "metrics.jsonl"
    csv.write_text("a\n1\n")
    checkpointer = RunCheckpointer(tmp_path / "checkpoints", records=(csv, jsonl))
    checkpointer.save(SMALL, {"iterations": 1})
    assert checkpointer.differing_records(1) == []
    csv.write_text("a\n")
    (difference,) = checkpointer.differing_records(1)
    assert_names(difference, "metrics.csv has 2 bytes", "had 4")
    csv.unlink()
    assert_names(checkpointer.differing_records(1)[0], "metrics.csv has 0 bytes", "had 4")
