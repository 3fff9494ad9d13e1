"""What a run computes depends on seed and config only: not on interruptions, evaluations, devices or neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from evorl.checkpointing import RunCheckpointer
from evorl.cli import restore
from evorl.recorders.csv_recorder import CsvRecorder
from evorl.types import State
from evorl.workflows import Workflow, execution, learning
from tests.small_workflows import EPISODE_STEPS, POP_SIZE, arrays, assert_close, assert_identical, small

FAMILIES = [
    ("neuroevolution", "Pendulum-v1"),
    ("pbt", "Pendulum-v1"),
    ("ppo", "CartPole-v1"),
    ("sac", "Pendulum-v1"),
]
# In iterations; most checkpoints fall between rows.
NUM_ITERATIONS, ROWS, EVALUATIONS, CHECKPOINTS = 12, 3, 6, 2


class Interrupted(Exception):
    """The process is killed without warning."""


def _run_of(algorithm: str, env: str, **changes: Any) -> Workflow:
    steps = small(algorithm, env).timesteps_per_iteration
    unit = steps or 1  # where steps are counted, intervals are iterations
    return small(
        algorithm,
        env,
        total_timesteps=NUM_ITERATIONS * (steps or POP_SIZE * EPISODE_STEPS),
        log_interval=ROWS * unit,
        eval_interval=EVALUATIONS * unit,
        checkpoint_interval=CHECKPOINTS * unit,
        **changes,
    )


def _whole_run(workflow: Workflow, folder: Path) -> tuple[State, bytes]:
    recorder = CsvRecorder(folder / "metrics.csv")
    state = workflow.learn(workflow.init(3), recorder=recorder, checkpointer=RunCheckpointer(folder / "checkpoints"))
    recorder.close()
    return state, (folder / "metrics.csv").read_bytes()


def _resumed_run(workflow: Workflow, folder: Path) -> tuple[State, bytes]:
    """What a new process does: it knows the config and the folder."""
    checkpointer = RunCheckpointer(folder / "checkpoints")
    state, progress = restore(workflow, checkpointer, 3, "latest")
    assert 0 < progress["iterations"] < NUM_ITERATIONS
    recorder = CsvRecorder(folder / "metrics.csv")
    recorder.resume_at(progress["iterations"])
    state = workflow.learn(state, recorder=recorder, checkpointer=checkpointer, progress=progress)
    recorder.close()
    return state, (folder / "metrics.csv").read_bytes()


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family[0])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """An algorithm, its environment, and the last state and metrics of an uninterrupted run."""
    algorithm, env = request.param
    state, table = _whole_run(_run_of(algorithm, env), tmp_path_factory.mktemp("whole"))
    assert [row.split(b",")[0] for row in table.splitlines()] == [b"iterations", b"3", b"6", b"9", b"12"]
    return algorithm, env, state, table


def test_same_seed_twice(whole: tuple, tmp_path: Path) -> None:
    algorithm, env, state, table = whole
    again, table_again = _whole_run(_run_of(algorithm, env), tmp_path)
    assert_identical(again, state)
    assert table_again == table


@pytest.mark.parametrize("stop_after", [1, 6, 7])
def test_stop_and_resume(whole: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int) -> None:
    algorithm, env, state, table = whole
    calls = iter(range(1, 100))
    with monkeypatch.context() as context:
        context.setattr(learning, "SECONDS_PER_CHUNK", 0.0)  # one iteration in each chunk
        recorder = CsvRecorder(tmp_path / "metrics.csv")
        workflow = _run_of(algorithm, env)
        workflow.learn(
            workflow.init(3),
            recorder=recorder,
            checkpointer=RunCheckpointer(tmp_path / "checkpoints"),
            should_stop=lambda: next(calls) >= stop_after,
        )
        recorder.close()
    resumed, resumed_table = _resumed_run(_run_of(algorithm, env), tmp_path)
    assert_identical(resumed, state)
    assert resumed_table == table


@pytest.mark.parametrize("killed_at", [6, 9])
def test_sudden_death_and_resume(whole: tuple, tmp_path: Path, killed_at: int) -> None:
    """Killed after a row was written that the last checkpoint does not know of yet."""
    algorithm, env, state, table = whole

    class DyingRecorder(CsvRecorder):
        def write(self, row: Any) -> None:
            super().write(row)
            if row["iterations"] == killed_at:
                self.close()
                raise Interrupted

    workflow = _run_of(algorithm, env)
    with pytest.raises(Interrupted):
        workflow.learn(
            workflow.init(3),
            recorder=DyingRecorder(tmp_path / "metrics.csv"),
            checkpointer=RunCheckpointer(tmp_path / "checkpoints"),
        )
    resumed, resumed_table = _resumed_run(_run_of(algorithm, env), tmp_path)
    assert_identical(resumed, state)
    assert resumed_table == table


def test_resume_on_another_number_of_devices(whole: tuple, tmp_path: Path) -> None:
    algorithm, env, state, _ = whole
    workflow = _run_of(algorithm, env)
    calls = iter(range(1, 100))
    workflow.learn(
        workflow.init(3),
        checkpointer=RunCheckpointer(tmp_path / "checkpoints"),
        should_stop=lambda: next(calls) >= 2,
    )
    wider = _run_of(algorithm, env, devices=2)
    assert wider.execution.num_devices == 2
    resumed, _ = _resumed_run(wider, tmp_path)
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(resumed)} == {2}
    assert_identical(resumed.iterations, state.iterations)
    agents, whole_agents = (state.get("members", state).agent_state for state in (resumed, state))
    assert_close(agents.params, whole_agents.params, 1e-4)


def test_evaluation_changes_nothing_else(whole: tuple) -> None:
    algorithm, env, state, _ = whole
    assert_identical(_run_of(algorithm, env).replace(eval_interval=0.0).learn(_run_of(algorithm, env).init(3)), state)


@pytest.mark.parametrize(("algorithm", "env"), FAMILIES)
def test_evaluation_reads_only(algorithm: str, env: str) -> None:
    workflow = _run_of(algorithm, env)
    state = workflow.init(3)
    before = arrays(state)
    first, second = workflow.evaluate(state), workflow.evaluate(state)
    assert_identical(first, second)
    assert_identical(before, arrays(state))
    _, state = execution.iterate_program(workflow, state, 1)
    assert arrays(workflow.evaluate(state))["['episode_return_std']"] >= 0.0
