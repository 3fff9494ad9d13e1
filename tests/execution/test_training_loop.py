"""The training loop on the host: its start, its counters, and invalid settings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.env import EnvState
from evorl.execution import programs, training_loop
from evorl.execution.collector import iterate
from evorl.execution.session import TrainingDiverged
from evorl.runs.recorder import Recorder
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical, small


class Notes:
    """Recorder that stores the calls it receives."""

    def __init__(self) -> None:
        self.plans, self.rows, self.messages, self.signs = [], [], [], 0

    def start(self, plan) -> None:
        self.plans.append(plan)

    def write(self, row) -> None:
        self.rows.append(dict(row))

    def progress(self, timesteps, steps_per_second, latest) -> None:
        self.signs += 1

    def message(self, text) -> None:
        self.messages.append(text)

    def close(self) -> None:
        pass


class Shelf:
    """Checkpointer that stores the iterations of saved states and of their progress."""

    def __init__(self) -> None:
        self.saved = []

    def save(self, state, progress, score) -> None:
        self.saved.append((int(state.iterations), progress["iterations"]))


@pytest.fixture(scope="module")
def workflow() -> Workflow:
    return small("ppo", total_timesteps=6 * 64 + 1, log_interval=2 * 64)


def _copy(state):
    return jax.tree.map(jnp.copy, state)


def test_iterations_made_by_hand_count(workflow: Workflow) -> None:
    state = workflow.init(0)
    for _ in range(2):
        _, state = workflow.step(state)
    notes = Notes()
    last = workflow.learn(_copy(state), recorder=notes)
    assert int(last.iterations) == 6
    assert (notes.plans[0].first_iterations, notes.plans[0].total_timesteps) == (2, 6 * 64)
    assert [row["timesteps"] for row in notes.rows] == [4 * 64, 6 * 64]
    assert "Training for 384 steps: total_timesteps is rounded to iterations of 64 steps." in notes.messages


def test_a_finished_state_stays_as_it_is(workflow: Workflow) -> None:
    last = workflow.learn(key=1)
    notes = Notes()
    assert_identical(workflow.learn(_copy(last), recorder=notes), last)
    assert notes.rows == []
    assert notes.signs == 0


@pytest.mark.parametrize(
    ("checkpoint_interval", "calls", "saved"),
    [(0, [0, 1], [6]), (128, [0, 1, 2, 4], [2, 4, 6])],
    ids=["rows only", "checkpoints"],
)
def test_a_chunk_holds_several_rows_and_ends_at_a_checkpoint(
    checkpoint_interval: int, calls: list[int], saved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a first chunk of one iteration, chunks contain several rows and end at checkpoints."""
    workflow = small(
        "ppo", total_timesteps=6 * 64, log_interval=64, eval_interval=0, checkpoint_interval=checkpoint_interval
    )
    notes, shelf, run = Notes(), Shelf(), programs.iterate_program
    rows_at_calls = []

    def noted(*args):
        rows_at_calls.append(len(notes.rows))
        return run(*args)

    state = workflow.init(0)
    monkeypatch.setattr(programs, "iterate_program", noted)
    monkeypatch.setattr(training_loop, "SECONDS_PER_CHUNK", 1e9)
    workflow.learn(state, recorder=notes, checkpointer=shelf)
    assert rows_at_calls == calls
    assert [row["iterations"] for row in notes.rows] == [1, 2, 3, 4, 5, 6]
    assert [row["timesteps"] for row in notes.rows] == [64 * i for i in range(1, 7)]
    assert shelf.saved == [(i, i) for i in saved]


def test_an_evaluation_before_the_first_step_changes_nothing_and_is_not_the_best(workflow: Workflow) -> None:
    evaluated = workflow.replace(eval_interval=2.0 * 64)
    notes, usual, shelf = Notes(), Notes(), Shelf()
    last = evaluated.learn(key=0, recorder=notes, checkpointer=shelf, eval_at_start=True)
    assert_identical(last, evaluated.learn(key=0, recorder=usual))
    first, *others = notes.rows
    assert (first["iterations"], first["timesteps"]) == (0, 0)
    assert first["eval/episode_return"] == float(workflow.evaluate(workflow.init(0)).episode_return)
    assert not any(name.startswith("train/") for name in first)
    assert [row["timesteps"] for row in others] == [row["timesteps"] for row in usual.rows] == [128, 256, 384]
    assert shelf.saved[0] == (2, 2)
    notes = Notes()
    workflow.learn(key=0, recorder=notes, eval_at_start=True)  # without evaluations
    assert notes.rows[0]["timesteps"] == 128


def test_schedules_end_with_the_training() -> None:
    workflow = small(
        "ppo", optimizer={"name": "sgd", "learning_rate": {"start": 0.3, "end": 0.1}, "max_grad_norm": None}
    )
    state = workflow.init(0)
    params = gradients = {"w": jnp.ones(())}
    opt_state = workflow.optimizer.init(params)
    for iterations, share in ((0, 0.0), (5, 0.25), (20, 1.0), (30, 1.0)):
        at = state.replace(iterations=state.iterations.add(iterations))
        progress = workflow.progress(at)
        np.testing.assert_allclose(progress, share, rtol=1e-6)
        moved, _ = workflow.optimizer.apply(gradients, opt_state, params, progress)
        np.testing.assert_allclose(moved["w"], 1.0 - (0.3 - 0.2 * share), rtol=1e-6)


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    broken = small("ppo", optimizer={"learning_rate": 1e30})
    with pytest.raises(TrainingDiverged, match=r"(nan|-?inf) in iteration \d+ \(\d+ steps\)"):
        broken.learn()


def test_a_run_for_one_device_is_refused_by_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = small("ppo")  # built for one device
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with raises_naming(ValueError, "2 processes", "one device"):
        workflow.learn(key=0)


@pytest.mark.parametrize("algorithm", ["neuroevolution", "map_elites", "multi_objective"])
def test_a_row_has_the_last_value_of_what_describes_the_state(algorithm: str) -> None:
    """The best fitness, the archive and the front are those after the last generation; other metrics are means."""
    workflow = small(algorithm, "Pendulum-v1", eval_interval=0, checkpoint_interval=0, log_interval=1e9)
    metrics, _ = programs.iterate_program(workflow, workflow.init(0), 4)
    total = float(np.asarray(metrics["timesteps"])[:4].sum())
    rows: list[dict[str, float | int]] = []
    recorder = Recorder()
    recorder.write = rows.append
    workflow.replace(total_timesteps=total).learn(key=0, recorder=recorder)
    (row,) = rows
    others = ("episodes", "timesteps", "env_faults")  # sums, and the report of the watched environments
    values = {name: np.asarray(x, np.float64)[:4] for name, x in metrics.items() if name not in others}
    latest = {name for name in values if name.partition("/")[0] in workflow.latest_metrics}
    assert {name.partition("/")[0] for name in latest} == set(workflow.latest_metrics)
    assert "best_fitness" in latest
    for name, x in values.items():
        expected = x[-1] if name in latest else x.mean()
        np.testing.assert_allclose(row[f"train/{name}"], expected, rtol=1e-6, err_msg=name)


class _OtherSimulators:
    """Environments whose simulators are in none of the given states."""

    steps_on_host = True

    def is_live(self, env_state: EnvState) -> bool:
        return False

    def next_episodes(self, env_state: EnvState) -> EnvState:
        return env_state.replace(reward=env_state.reward - 1.0)


def test_nothing_of_a_cut_episode_reaches_the_new_one() -> None:
    """Sums of rewards, the memory of E3B and the replay buffer end their episodes, also with several seeds."""
    on_policy = small("ppo", normalize_rewards=True, intrinsic="e3b").init(0)
    scale, episodic = on_policy.reward_scale, on_policy.episodic
    played = on_policy.replace(
        reward_scale=scale.replace(sums=scale.sums + 2.0), episodic=jax.tree.map(lambda x: x * 3.0, episodic)
    )
    dqn = small("dqn", reward_bound=1.0, n_step=3)
    off_policy = iterate(dqn, dqn.init(0), 1)[1]  # a stored step, and sums of rewards
    assert (off_policy.reward_scale.sums != 0.0).all()
    assert not off_policy.replay_state.data.dones.any()
    for before in (played, off_policy):
        for state in (before, jax.tree.map(lambda x: jnp.stack([x, x]), before)):
            after = training_loop.with_new_episodes(_OtherSimulators(), state)
            assert (after.env_state.reward == state.env_state.reward - 1.0).all()
            assert (after.reward_scale.sums == 0.0).all()
            if "episodic" in state:
                np.testing.assert_array_equal(*jnp.broadcast_arrays(after.episodic.inverse, episodic.inverse))
            else:
                assert after.replay_state.data.dones[..., 0, :].all()
                assert not after.replay_state.data.dones[..., 1:, :].any()
