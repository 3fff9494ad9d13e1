"""Values that Gymnasium would convert silently are rejected in the process that returns them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from evorl.envs.gymnasium import AsyncGymnasiumEnv, InProcessGymnasiumEnv
from evorl.envs.gymnasium_answers import CheckedAnswers
from evorl.envs.host.host_vector_env import HostEnvError
from tests.envs.host.test_answers import Answering
from tests.support.errors import raises_naming

SILENT: list[tuple[dict[int, Any], tuple[str, ...]]] = [
    ({0: {"a": np.zeros(2), "b": 1.5}}, ("'b'", "dtype int32", "got 1.5")),
    ({0: {"a": None, "b": 1}}, ("'a'", "numbers")),
    ({1: None}, ("reward", "got NoneType")),
    ({1: np.ones(1)}, ("reward", "shape [1]")),
    ({2: None}, ("terminated", "True or False", "got NoneType")),
    ({3: "no"}, ("truncated", "True or False", "got str")),
    ({4: None}, ("info", "dict", "got NoneType")),
]


@pytest.mark.parametrize(("changes", "parts"), SILENT, ids=[", ".join(parts) for _, parts in SILENT])
def test_wrong_answers_are_refused(changes: dict[int, Any], parts: tuple[str, ...]) -> None:
    env = CheckedAnswers(functools.partial(Answering, changes), None)
    env.reset(seed=0)
    env.step(0)
    with raises_naming(HostEnvError, *parts):
        env.step(0)


def test_a_wrong_start_is_refused() -> None:
    with raises_naming(HostEnvError, "dict", "with a, b", "got NoneType"):
        CheckedAnswers(functools.partial(Answering, {5: (None, {})}), None).reset(seed=0)


def test_other_entries_than_the_one_that_is_used_may_be_anything() -> None:
    env = CheckedAnswers(functools.partial(Answering, {0: {"a": None, "b": 1}}), "b")
    env.reset(seed=0)
    env.step(0)
    assert env.step(0)[0]["b"] == 1


def test_processes_refuse_them_too() -> None:
    env = AsyncGymnasiumEnv(functools.partial(Answering, {2: None}), 2)
    try:
        env.reset(np.arange(2, dtype=np.uint64))
        env.step(np.zeros(2, np.int64))
        with raises_naming(HostEnvError, "terminated", "True or False", "got NoneType"):
            env.step(np.zeros(2, np.int64))
    finally:
        env.close()


@pytest.mark.parametrize(
    ("info", "parts"),
    [
        ({}, ("info", "'m'", "env.metrics", "[]")),
        ({"m": None}, ("'m' of info", "NoneType")),
    ],
)
def test_metrics_are_numbers_of_every_step(info: dict[str, Any], parts: tuple[str, ...]) -> None:
    """A missing metric is an error, unlike in Gymnasium, which inserts 0."""

    def make() -> Any:
        env = Answering({4: info})
        env.usual[4] = {"m": 2.0}
        return env

    separate, together = CheckedAnswers(make, None, ("m",)), InProcessGymnasiumEnv(make, 1, metrics=["m"])
    separate.reset(seed=0)
    together.reset(np.zeros(1, np.uint64))
    assert separate.step(0)[4]["m"] == 2.0
    assert together.step(np.zeros(1, np.int64))[4]["m"].tolist() == [2.0]
    with raises_naming(HostEnvError, *parts):
        separate.step(0)
    with raises_naming(HostEnvError, *parts):
        together.step(np.zeros(1, np.int64))
