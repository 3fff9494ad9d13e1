"""Rows of metrics do not show how iterations were put together."""

from __future__ import annotations

import numpy as np

from evorl.execution.rows import RunningMeans, describe_evaluation
from evorl.types import PyTreeDict


def test_means_do_not_depend_on_the_length_of_chunks() -> None:
    values = np.random.default_rng(0).normal(size=12).astype(np.float32)
    whole, parts = RunningMeans({}), RunningMeans({})
    whole.add(PyTreeDict(loss=values))
    parts.add(PyTreeDict(loss=values[:5]))
    parts = RunningMeans(parts.to_json())  # a pause
    parts.add(PyTreeDict(loss=values[5:]))
    assert parts.take() == whole.take()
    assert whole.take() == {"train/episodes": 0}


def test_evaluations_of_several_seeds() -> None:
    row = describe_evaluation(PyTreeDict(episode_return=np.array([1.0, 3.0]), episode_length=np.array([2.0, 4.0])))
    assert row["eval/episode_return"] == 2.0
    assert row["eval/episode_return_std_over_seeds"] == 1.0
    assert row["eval/episode_return_seed_1"] == 3.0
