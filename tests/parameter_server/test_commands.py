"""The four commands of a parameter server, without a network."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.parameter_server import commands as commands_module
from evorl.parameter_server.commands import ParameterCommands, Pushed
from evorl.parameter_server.frames import CommandRefused
from evorl.parameter_server.update_rules import ParameterServerSettings, create
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.servers import counting_commands

BODY = np.asarray([1.0, 0.0, 2.0], np.float32).tobytes()


def _push(commands: ParameterCommands, worker: str = "a", sequence: int = 1, body: bytes = BODY, **more: Any) -> dict:
    header = {"worker": worker, "sequence": sequence, "step": 0, "updates": 0, "steps": 5} | more
    return commands.push(header, body)[0]


def _weights(commands: ParameterCommands) -> list[float]:
    return np.frombuffer(commands.pull({}, b"")[1], np.float32).tolist()


def test_a_push_is_applied_once() -> None:
    commands = counting_commands(3)
    first = _push(commands)
    assert (first["accepted"], first["repeated"], first["step"]) == (True, False, 5)
    again = _push(commands)
    assert (again["accepted"], again["repeated"], again["step"]) == (True, True, 5)
    assert _weights(commands) == [-1.0, 0.0, -2.0]
    assert _push(commands, sequence=2)["step"] == 10
    assert _push(commands, sequence=1)["repeated"]
    assert not _push(commands, worker="b", sequence=1)["repeated"], "numbers are those of a worker"
    assert commands.pushes == 3


def test_a_repetition_is_known_after_a_restart() -> None:
    before = counting_commands(3)
    _push(before)
    after = ParameterCommands(before.settings, before.state)
    after.go_on(before.to_json())
    assert _push(after)["repeated"]
    assert (after.pushes, _weights(after)) == (1, [-1.0, 0.0, -2.0])


def test_a_dropped_push_is_dropped_again() -> None:
    commands = counting_commands(3, "averaging")
    for i in range(4):
        _push(commands, sequence=i + 1)
    for _ in range(2):
        assert not _push(commands, worker="b", sequence=1, step=0)["accepted"]
    assert (commands.pushes, commands.step) == (4, 20)


def test_what_is_told_of_a_push() -> None:
    records: list[Pushed] = []
    commands = counting_commands(3, after_push=records.append)
    _push(commands)
    _push(commands)
    _push(commands, worker="b", metrics={"loss": 0.5, "odd name\n": 1}, episodes=[2, 30.0, 4])
    assert [(x.worker, x.staleness, x.before, x.step) for x in records] == [("a", 0, 0, 5), ("b", 1, 5, 10)]
    assert records[1].metrics == {"loss": 0.5, "odd_name_": 1.0}
    answer, _ = commands.n_step({}, b"")
    assert (answer["workers"], answer["score"], answer["pushes"]) == (2, 15.0, 2)


def test_after_the_end_nothing_is_applied() -> None:
    commands = counting_commands(3, total_steps=10)
    assert not _push(commands)["stop"]
    assert _push(commands, sequence=2)["stop"]
    late = _push(commands, sequence=3)
    assert (late["accepted"], late["stop"]) == (False, True)
    assert (commands.step, commands.pushes) == (10, 2)


@pytest.mark.parametrize(
    ("header", "body", "parts"),
    [
        ({"worker": "../a"}, BODY, ("worker", "name", "../a")),
        ({"worker": None}, BODY, ("worker", "name")),
        ({"sequence": -1}, BODY, ("sequence", "integer", "-1")),
        ({"steps": 2**40}, BODY, ("steps", 1099511627776)),
        ({"steps": "5"}, BODY, ("steps", "integer", "5")),
        ({"metrics": {"a": "b"}}, BODY, ("metrics", "at most 100")),
        ({"metrics": {str(i): i for i in range(101)}}, BODY, ("metrics", "at most 100")),
        ({"episodes": [1, 2]}, BODY, ("episodes", "three numbers")),
        ({}, BODY[:-1], ("12 bytes", "got 11")),
        ({}, np.asarray([1, np.nan, 0], np.float32).tobytes(), ("NaN",)),
    ],
)
def test_a_push_that_is_refused_changes_nothing(header: dict, body: bytes, parts: tuple[object, ...]) -> None:
    commands = counting_commands(3)
    with raises_naming(CommandRefused, *parts):
        _push(commands, body=body, **header)
    assert (_weights(commands), commands.pushes, commands.step) == ([0.0] * 3, 0, 0)
    assert _push(commands)["accepted"], "its number is free still"


def test_the_rest_is_of_the_worker_that_pushed_last() -> None:
    settings = ParameterServerSettings()
    commands = ParameterCommands(settings, create(settings, PyTreeDict(w=jnp.zeros(3))), [np.zeros(2, np.int32)])
    _push(commands, body=BODY + np.asarray([7, 8], np.int32).tobytes())
    _, body = commands.pull({"rest": True}, b"")
    assert np.frombuffer(body[12:], np.int32).tolist() == [7, 8]
    assert len(commands.pull({}, b"")[1]) == 12


def test_workers_that_are_silent_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_module, "MAX_WORKERS", 2)
    commands = counting_commands(3)
    for worker, sequence in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        _push(commands, worker, sequence)
    assert list(commands.to_json()["answers"]) == ["a", "c"]


def test_checkpoints() -> None:
    assert counting_commands(3, save=lambda: 17).checkpoint({}, b"")[0]["saved"] == 17
    with raises_naming(CommandRefused, "checkpoints"):
        counting_commands(3).checkpoint({}, b"")


def test_other_numbers_than_float32_are_refused() -> None:
    settings = ParameterServerSettings()
    with raises_naming(TypeError, "float32", "got float16"):
        ParameterCommands(settings, create(settings, PyTreeDict(w=jnp.zeros(3, jnp.float16))))
