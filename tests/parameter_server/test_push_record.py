"""A push is accepted or rejected as a whole, for any numbers, and the server continues."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.parameter_server import push_record
from evorl.parameter_server.commands import ParameterCommands, Pushed
from evorl.parameter_server.frames import CommandRefused, frame, parsed_header
from evorl.parameter_server.push_record import PushRecord, max_steps_per_push
from evorl.parameter_server.worker import ParameterWorker
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.odd_values import ODD, label
from tests.support.servers import counting_commands
from tests.support.small_workflows import small

BODY = np.asarray([1.0, 0.0, 2.0], np.float32).tobytes()
GOOD = {"worker": "a", "sequence": 1, "step": 0, "updates": 0, "steps": 5, "metrics": {"loss": 0.5}}
MAX_STEPS = 100
names = st.text(max_size=4) | st.sampled_from([*dir(PyTreeDict), *push_record.SERVER_COLUMNS])
numbers = st.one_of(st.sampled_from(ODD), st.integers(), st.floats(), st.booleans(), st.text(max_size=3))


def refused_or_taken(commands: ParameterCommands, header: dict[str, Any], body: bytes = BODY) -> bool:
    """Push, and return True if it was accepted; otherwise assert that nothing changed. Then the next push is normal."""
    before = (commands.pull({}, b""), commands.pushes, commands.step)
    try:
        answer, _ = commands.push(header, body)
    except CommandRefused as refusal:
        message = str(refusal)
        frame({"error": message})
        assert len(message) < 500
        assert (commands.pull({}, b""), commands.pushes, commands.step) == before
        taken = False
    else:
        frame(answer)
        taken = True
    frame(commands.n_step({}, b"")[0])
    assert np.isfinite(np.frombuffer(commands.pull({}, b"")[1], np.float32)).all()
    again, _ = commands.push({**GOOD, "worker": "other", "sequence": commands.pushes + 1}, BODY)
    assert again["accepted"]
    return taken


@pytest.fixture(scope="module")
def commands() -> ParameterCommands:
    return counting_commands(3, max_steps=MAX_STEPS)


@pytest.mark.parametrize("name", ["worker", "sequence", "step", "updates", "steps", "metrics", "episodes"])
@pytest.mark.parametrize("value", ODD, ids=label)
def test_any_value_of_any_field(name: str, value: Any, commands: ParameterCommands) -> None:
    refused_or_taken(commands, {**GOOD, "worker": "b", "sequence": 1, name: value})


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("value", ODD, ids=label)
def test_any_value_in_any_place_of_episodes(place: int, value: Any) -> None:
    records: list[Pushed] = []
    commands = counting_commands(3, max_steps=MAX_STEPS, after_push=records.append)
    episodes: list[Any] = [2, 3.0, 4]
    episodes[place] = value
    refused_or_taken(commands, {**GOOD, "episodes": episodes})
    for pushed in records:
        assert np.isfinite(np.asarray(pushed.episodes, np.float32)).all()
        assert pushed.episodes[0] % 1 == 0 <= pushed.episodes[0] <= 5
    score = commands.n_step({}, b"")[0]["score"]
    assert score is None or math.isfinite(score)


@given(
    header=st.fixed_dictionaries(
        {},
        optional={
            "worker": numbers,
            "sequence": numbers,
            "step": numbers,
            "updates": numbers,
            "steps": numbers,
            "metrics": st.dictionaries(names, numbers, max_size=3) | numbers,
            "episodes": st.lists(numbers, max_size=4) | numbers,
        },
    ),
)
def test_any_header(header: dict[str, Any]) -> None:
    records: list[Pushed] = []
    commands = counting_commands(3, max_steps=MAX_STEPS, after_push=records.append)
    refused_or_taken(commands, {**GOOD, **header})
    for pushed in records:
        sums = np.asarray([*PyTreeDict(pushed.metrics).values(), *pushed.episodes], np.float32)
        assert np.isfinite(sums).all()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"episodes": [1e299, 1e299, 1e299]}, ("episodes", "finite", "float32")),
        ({"episodes": [1e-300, 1e30, 1]}, ("episodes", "steps=5", "got 1e-300")),
        ({"episodes": [-5, 1, 1]}, ("0 to steps=5", "got -5")),
        ({"episodes": [6, 1, 6]}, ("0 to steps=5", "got 6")),
        ({"episodes": [2, 1, 1]}, ("lengths", "got 1")),
        ({"episodes": [2, 1, 2.5]}, ("lengths", "integer", "got 2.5")),
        ({"episodes": [0, 1, 0]}, ("returns", "0 episodes", "got 1")),
        ({"steps": 2147483648}, ("steps", "at most 100", "got 2147483648")),
        ({"metrics": {"loss": 1e39}}, ("metrics", "finite", "float32")),
        ({"metrics": {"": 1.0}}, ("name", "empty")),
        ({"updates": "0"}, ("updates", "integer")),
    ],
)
def test_what_is_refused_is_told(change: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(CommandRefused, *parts):
        PushRecord.from_header({**GOOD, **change}, MAX_STEPS)


@pytest.mark.parametrize("value", [3e38, -3e38, 2e15, np.inf, np.nan])
def test_numbers_whose_squares_are_not_finite_are_not_applied(value: float) -> None:
    body = np.asarray([value, 0.0, 0.0], np.float32).tobytes()
    assert not refused_or_taken(counting_commands(3), {**GOOD}, body)


def test_a_push_with_a_wrong_number_behind_the_applied_ones_is_not_applied() -> None:
    """A push with an invalid number changes nothing, so that its repetition is not counted twice."""
    assert not refused_or_taken(counting_commands(3), {**GOOD, "updates": -1})


def test_names_of_metrics_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_record, "MAX_NAMES", 3)
    commands = counting_commands(3)
    commands.push({**GOOD, "metrics": {"a": 1, "b": 2, "c": 3}}, BODY)
    with raises_naming(CommandRefused, "3 metric names"):
        commands.push({**GOOD, "sequence": 2, "metrics": {"d": 4}}, BODY)
    assert commands.push({**GOOD, "sequence": 2, "metrics": {"c": 4}}, BODY)[0]["accepted"]


@pytest.mark.parametrize(
    ("algorithm", "changes", "expected"),
    [
        ("a2c", {}, lambda workflow: 2 * workflow.timesteps_per_iteration),
        ("dqn", {"learning_starts": 100}, lambda workflow: 100 + 2 * workflow.timesteps_per_iteration),
        ("dqn", {"updates_per_iteration": 0.25}, lambda workflow: int(workflow.learning_starts) + 5 * 8),
    ],
)
def test_how_many_steps_a_push_stands_for(algorithm: str, changes: dict, expected: Any) -> None:
    workflow = small(algorithm, **changes)
    if "updates_per_iteration" in changes:
        assert workflow.timesteps_per_iteration == 8
    assert max_steps_per_push(workflow) == expected(workflow)


def test_the_first_push_of_a_learner_from_sequences_is_within_the_limit() -> None:
    """The first update needs a complete sequence of every environment, also without ``learning_starts``."""
    sizes = {"burn_in": 12, "sequence_length": 12, "replay_capacity": 512}
    workflow = small("r2d2", learning_starts=0, updates_per_iteration=1, rollout_length=1, **sizes)
    worker = ParameterWorker(workflow, "gradient")
    params = worker.served.params_of(worker.agent_state)
    iterations = (worker.work(params, 0) for _ in range(50))
    work = next((work for work in iterations if work.sent is not None), None)
    assert work is not None
    assert 8 * 24 <= work.steps <= max_steps_per_push(workflow) <= 8 * 24 + 2 * workflow.timesteps_per_iteration


def test_json_of_many_digits_is_no_frame() -> None:
    for text in (b'{"steps": ' + b"9" * 5000 + b"}", b'{"steps": NaN}', b'{"steps": Infinity}', b"[" * 10_000):
        with raises_naming(Exception, "JSON object"):
            parsed_header(text)
    assert parsed_header(json.dumps({"steps": 10**400}).encode())["steps"] == 10**400
