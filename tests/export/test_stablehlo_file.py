"""StableHLO: one file for any batch size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jax import export

from evorl.export.stablehlo_file import stablehlo_bytes
from evorl.export.stored_policy import LoadedPolicy
from tests.support.errors import raises_naming
from tests.support.portable import stored


def test_one_file_is_for_any_number_of_rows(tmp_path: Path) -> None:
    policy = stored("dqn_convolutional", tmp_path).policy
    exported = export.deserialize(bytearray(stablehlo_bytes(policy)))
    assert exported.platforms == ("cpu", "cuda", "tpu")
    act = LoadedPolicy(policy)
    rng = np.random.default_rng(0)
    for num_rows in (1, 300):  # on both sides of the threshold where layers change their product
        obs = (rng.random((num_rows, 10, 10, 4)) < 0.3).astype(policy.observations[0].dtype)
        np.testing.assert_array_equal(exported.call({"obs": obs})["action"], act(obs))


def test_inputs_are_named(tmp_path: Path) -> None:
    exported = export.deserialize(bytearray(stablehlo_bytes(stored("r2d2", tmp_path).policy)))
    with pytest.raises(ValueError, match=r"obs"):
        exported.call({"observation": np.zeros((1, 4), np.float32)})


def test_without_flatbuffers_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object) -> bytes:
        raise ImportError("no flatbuffers")

    monkeypatch.setattr(export.Exported, "serialize", missing)
    with raises_naming(ImportError, "format=jax", "pip install flatbuffers"):
        stablehlo_bytes(stored("dqn", tmp_path).policy)
