"""Hindsight in complete training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evorl.algorithms.dqn import DQNWorkflow
from evorl.config.names import load
from evorl.execution.collector import iterate
from evorl.execution.first_update import weak_spots
from evorl.replay_buffers.recency import RecencyReplayBuffer
from evorl.types import State
from evorl.workflows.replay_settings import draw_from_both
from evorl.workflows.workflow import Workflow
from tests.conformance.workflow import WorkflowContract
from tests.support.errors import raises_naming
from tests.support.key_record import KeyRecord
from tests.support.recorded_pendulum import NUM_STEPS as RECORDED
from tests.support.recorded_pendulum import pendulum_columns, recorded_pendulum
from tests.support.small_workflows import NUM_ENVS, SAC_CONFIG, arrays, assert_close, assert_identical, small
from tests.support.training_runs import resume_in, run_in, stop_after

HINDSIGHT = {"replay": {"hindsight": "future"}}
RANDOM = {"overwrite": "random"}
BITS, MAZE = {"name": "bit_flip", "num_bits": 6}, {"name": "point_maze", "max_episode_steps": 10}


class TestContract(WorkflowContract):
    """The contract with hindsight: no key twice, one program, bit-identical resumption, on any number of devices."""

    workflow = DQNWorkflow
    SMALL = {**SAC_CONFIG, **HINDSIGHT}
    env = "bit_flip"
    endless_env = ("bit_flip", 16)  # the steps of each environment that the buffer holds


def _workflow(algorithm: str, **changes: Any) -> Workflow:
    config = {**SAC_CONFIG, **HINDSIGHT, "env": BITS if algorithm in ("dqn", "r2d2") else MAZE, **changes}
    if algorithm == "ddpg":  # is TD3 without its additions
        agent = {**SAC_CONFIG["agent"], "num_critics": 1}
        algorithm, config = "td3", {**config, "agent": agent, "policy_delay": 1}
    return load(f"evorl.algorithms.{algorithm}:{algorithm.upper()}Workflow").build_from_config(config)


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac", "tqc", "dqn"])
def test_every_off_policy_agent_learns_from_hindsight(algorithm: str) -> None:
    """Networks receive the observation and the desired goal, and training changes them."""
    workflow = _workflow(algorithm)
    state = workflow.init(0)
    first = arrays(state.agent_state.params)
    goals = workflow.env.obs_space.spaces
    num_inputs = goals["observation"].shape[0] + goals["desired_goal"].shape[0]
    widths = {x.shape[-2] for name, x in first.items() if x.ndim >= 2 and ("_0" in name or "layers" in name)}
    assert {num_inputs, num_inputs + 2} & widths
    for _ in range(4):
        metrics, state = workflow.step(state)
    assert all(np.isfinite(x).all() for name, x in arrays(metrics).items() if "episodes" not in name)
    after = arrays(state.agent_state.params)
    assert any((after[name] != first[name]).any() for name in first)


def test_an_update_of_many_batches_never_touches_the_host() -> None:
    workflow = _workflow("sac", updates_per_iteration=64)
    program = jax.jit(workflow.pure_step).lower(jax.eval_shape(workflow.setup, jax.random.key(0))).as_text()
    assert "stablehlo.while" in program
    for call in ("callback", "infeed", "outfeed", "stablehlo.send", "stablehlo.recv"):
        assert call not in program


def test_what_is_learned_from_is_a_goal_of_the_environment() -> None:
    """Rewards of a batch equal the environment's rewards for the relabeled goals."""
    workflow = _workflow("dqn", replay={"hindsight": "future", "ratio": 1.0}, batch_size=256)
    state = workflow.init(0)
    for _ in range(6):
        _, state = workflow.step(state)
    batch = jax.jit(workflow.draw_batches)(state, jax.random.key(0), 0.0)[0]
    reached = np.all(np.asarray(batch.next_obs.achieved_goal == batch.next_obs.desired_goal), axis=-1)
    assert 0.1 < reached.mean() < 0.9
    np.testing.assert_array_equal(batch.rewards, reached - 1.0)
    np.testing.assert_array_equal(batch.extras.discounts == 0.0, reached)
    np.testing.assert_array_equal(batch.obs.desired_goal, batch.next_obs.desired_goal)
    assert 0.4 < np.asarray(batch.extras.is_relabeled).mean() < 0.6


@pytest.mark.parametrize(
    ("algorithm", "changes", "parts"),
    [
        ("sac", {"env": {"name": "Pendulum-v1"}}, ("replay.hindsight", "goals")),
        ("sac", {"env": {**MAZE, "action_repeat": 2}}, ("env.action_repeat", "rewards")),
        ("dqn", {"prioritized": True}, ("prioritized=true", "TD errors")),
        ("dqn", {"intrinsic": "rnd"}, ("replay.hindsight=future", "rewards", "intrinsic")),
        (
            "dqn",
            {"intrinsic": {"name": "icm", "weight": 0.1}, "replay": {"hindsight": "none"}},
            ("hindsight=none", "intrinsic"),
        ),
        ("dqn", {"replay": {"hindsight": "futur"}}, ("'futur'", "'future'")),
        ("dqn", {"replay": {"ratio": -1.0}}, ("replay.ratio", "got -1")),
        ("dqn", {"replay": {"overwrite": "randomly"}}, ("'randomly'", "'random'")),
        ("dqn", {"replay": RANDOM, "prioritized": True}, ("prioritized=true", "ring buffer")),
        (
            "sac",
            {"replay": RANDOM, "replay_capacity": 150},
            ("replay_capacity=150", "15 slots", "num_envs=8", "needs 2"),
        ),
        (
            "sac",
            {"replay": RANDOM, "env": {"factory": "tests.support.toy_envs:Countdown"}},
            ("replay.overwrite=random", "time limit"),
        ),
        (
            "sac",
            {"env": {**MAZE, "max_episode_steps": 17}},
            ("17 steps", "replay_capacity=128", "16 steps", "8 environments", "replay_capacity=136 or more"),
        ),
        ("ppo", {}, ("replay buffer", "PPOWorkflow", "remove")),
    ],
)
def test_what_cannot_be_is_told(algorithm: str, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        _workflow(algorithm, **changes)


def test_hindsight_samples_every_step_of_the_longest_episodes() -> None:
    """With the capacity that the error suggests, also the ends of episodes are sampled, once each is stored."""
    workflow: Any = _workflow("sac", env={**MAZE, "max_episode_steps": 17}, replay_capacity=136, learning_starts=1e6)
    state = iterate(workflow, workflow.init(0), 17)[1].replay_state
    assert int(workflow.replay_buffer.num_choices(state)) == 136
    rows, envs = workflow.replay_buffer.draw_indices(state, jax.random.key(0), 2000)
    assert len(set(zip(rows.tolist(), envs.tolist(), strict=True))) == 136


def test_without_a_time_limit_only_stored_episodes_are_learned_from() -> None:
    """While no stored episode has its first step, hindsight makes no update, instead of updates on arbitrary steps."""
    changes = {"replay_capacity": 4 * NUM_ENVS, "learning_starts": 0, "updates_per_iteration": 1}
    env = {"factory": "evorl.envs.goals.bit_flip:make_bit_flip", "num_bits": 30}
    workflow: Any = _workflow("dqn", env=env, **changes)
    metrics, state = iterate(workflow, workflow.init(0), 7)
    assert int(workflow.replay_buffer.num_choices(state.replay_state)) == 0
    assert metrics.updates[:7].tolist() == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert not np.asarray(metrics.td_loss[4:7]).any()


def test_updates_without_collection_need_no_room() -> None:
    """Offline, the capacity must hold the recorded transitions, however many updates an iteration has."""
    recorded = {"offline": True, "replay": {"load": recorded_pendulum(), "other_env": True}}
    for updates, capacity in ((RECORDED + 1, RECORDED), (10 * RECORDED, RECORDED + 3)):
        changes = {**recorded, "updates_per_iteration": updates, "replay_capacity": capacity}
        assert small("td3", "Pendulum-v1", **changes).timesteps_per_iteration == updates
    with raises_naming(ValueError, f"{RECORDED} transitions", f"replay_capacity={RECORDED - 1}"):
        small("td3", "Pendulum-v1", **recorded, replay_capacity=RECORDED - 1).init(0)
    with raises_naming(ValueError, f"replay_capacity={NUM_ENVS - 1}", f"{NUM_ENVS} transitions"):
        small("td3", "Pendulum-v1", replay_capacity=NUM_ENVS - 1)


def test_newer_steps_are_drawn_more_often() -> None:
    workflow: Any = small("dqn", replay={"recency": 2.0}, n_step=2)
    assert isinstance(workflow.replay_buffer, RecencyReplayBuffer)
    assert workflow.replay_buffer.exponent == 2.0
    state = workflow.init(0)
    for _ in range(4):
        metrics, state = workflow.step(state)
        assert np.isfinite(float(metrics.td_loss))
    rows, _ = workflow.replay_buffer.draw_indices(state.replay_state, jax.random.key(0), 4000)
    shares = np.bincount(np.asarray(rows), minlength=4)[:4] / 4000
    np.testing.assert_allclose(shares, [0.033, 0.133, 0.3, 0.533], atol=0.03)


def test_recency_goes_alone() -> None:
    for changes in ({"prioritized": True}, {"replay": {"overwrite": "random", "recency": 1.0}}):
        with raises_naming(ValueError, "replay.recency", "age"):
            small("dqn", **{"replay": {"recency": 1.0}, **changes})


MIXED: dict[str, Any] = {"replay": {"load": recorded_pendulum(), "other_env": True, "mixed": True}}
MIXED |= {"replay_capacity": RECORDED, "learning_starts": 0}


def test_recorded_and_new_transitions_are_sampled_in_turn() -> None:
    """Any contiguous even part of a batch, such as the share of a device, consists of both in equal numbers."""
    workflow: Any = small("sac", "Pendulum-v1", batch_size=12, agent={"network": {"torso": [8]}}, **MIXED)
    state = workflow.init(0)
    assert (int(state.recorded_state.size), int(state.replay_state.size)) == (RECORDED // NUM_ENVS, 0)
    before = jax.tree.map(np.asarray, state.recorded_state)
    for _ in range(RECORDED // NUM_ENVS + 2):  # the buffer of new transitions is full
        _, state = workflow.step(state)
    assert_identical(state.recorded_state, before)
    recorded = {x.tobytes() for x in pendulum_columns()["obs"]}
    assert not recorded & {x.tobytes() for x in np.asarray(state.replay_state.data.obs).reshape(-1, 3)}
    batches, rows, envs = jax.jit(draw_from_both)(workflow, state, jax.random.key(3), 0.0)
    is_recorded = np.array([[x.tobytes() in recorded for x in batch] for batch in np.asarray(batches.obs)])
    assert is_recorded.shape == rows.shape == envs.shape == (workflow.most_updates, 12)
    np.testing.assert_array_equal(is_recorded, np.broadcast_to(np.arange(12) % 2 == 0, is_recorded.shape))
    assert batches.extras.weights.shape == rows.shape
    assert (rows[:, ::2] != rows[:, 1::2]).any()  # samples of both are independent


def test_recency_applies_to_new_transitions_only() -> None:
    workflow: Any = small(
        "sac", "Pendulum-v1", batch_size=4000, **MIXED | {"replay": MIXED["replay"] | {"recency": 9.0}}
    )
    rows_held, spec = RECORDED // NUM_ENVS, jax.eval_shape(workflow.setup, jax.random.key(0)).replay_state.data
    spec = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), spec)
    full = workflow.replay_buffer.init(spec).replace(size=rows_held)
    state = State(replay_state=full, recorded_state=full)
    _, rows, _ = jax.jit(draw_from_both)(workflow, state, jax.random.key(3), 0.0)
    rows = np.asarray(rows)
    shares = [np.bincount(rows[0, i::2], minlength=rows_held) / 2000 for i in range(2)]  # recorded, new
    np.testing.assert_allclose(shares[0], 1 / rows_held, atol=0.03)
    np.testing.assert_array_less(shares[0][-1] + 0.1, shares[1][-1])


@pytest.mark.parametrize(("algorithm", "changes"), [("td3", {"n_step": 2}), ("crossq", {}), ("sac", {"num_seeds": 2})])
def test_every_algorithm_learns_from_both(algorithm: str, changes: dict[str, Any]) -> None:
    workflow = small(algorithm, "Pendulum-v1", **MIXED, **changes)
    state = workflow.init(0)
    for _ in range(2):
        metrics, state = workflow.step(state)
    assert all(np.isfinite(metrics[name]).all() for name in workflow.loss_names)


def test_without_recorded_transitions_there_is_one_buffer() -> None:
    workflow = small("sac", "Pendulum-v1", replay={"mixed": True})
    assert "recorded_state" not in jax.eval_shape(workflow.setup, jax.random.key(0))
    assert any("replay.load" in sentence for sentence in weak_spots(workflow))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"prioritized": True}, ("replay.mixed=true", "prioritized=true")),
        ({"offline": True}, ("replay.mixed=true", "offline=true")),
        ({"batch_size": 7}, ("batch_size=7", "even")),
    ],
)
def test_batches_that_cannot_be_mixed_are_refused(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        small("sac", "Pendulum-v1", **MIXED, **changes)


def test_sequences_have_no_hindsight() -> None:
    with raises_naming(ValueError, "sequences"):
        _workflow("r2d2", replay_capacity=NUM_ENVS * 64)
    with raises_naming(ValueError, "sequences", "episodes"):
        _workflow("r2d2", replay_capacity=NUM_ENVS * 64, replay=RANDOM)


def test_hindsight_solves_what_nothing_else_does() -> None:
    """Hindsight solves ten bits, where a random episode reaches the goal once in a hundred times."""
    config = {
        "env": {"name": "bit_flip", "num_bits": 10},
        "num_envs": 8,
        "total_timesteps": 16_000,
        "eval_interval": 0,
    }
    success = {}
    for name, hindsight in (("with", HINDSIGHT), ("without", {})):
        workflow = DQNWorkflow.build_from_config({**config, **hindsight})
        success[name] = float(workflow.evaluate(workflow.learn(key=0)).success)
    assert success["with"] >= 0.9
    assert success["without"] <= 0.3


@pytest.fixture(scope="module")
def overwriting() -> Any:
    """Return a factory of DQN with goals, three slots per environment, and episodes of one to three steps."""

    def make(**changes: Any) -> Workflow:
        replay = {**HINDSIGHT["replay"], **RANDOM}
        size = {"n_step": 2, "replay_capacity": 3 * 3 * NUM_ENVS}
        return _workflow("dqn", **{"env": {"name": "bit_flip", "num_bits": 3}, "replay": replay, **size, **changes})

    return make


def test_random_episodes_make_room(overwriting: Any) -> None:
    """Each slot contains one whole episode; running episodes are complete so far."""
    workflow = overwriting()
    state = workflow.init(0)
    before = arrays(state.agent_state.params)
    _, state = iterate(workflow, state, 41)
    replay = jax.tree.map(np.asarray, state.replay_state.replace(keys=None))
    size, open_slots = replay.size[0], np.arange(NUM_ENVS) * 3 + replay.cursor[0]
    data = replay.data
    for slot, length in enumerate(size.tolist()):
        assert 1 <= length <= 3
        running = replay.running[0, slot // 3] if slot in open_slots else 0
        assert running in (0, length)
        assert data.dones[:length, slot].tolist() == [False] * (length - 1) + [running == 0]
        inner = length - 1
        np.testing.assert_array_equal(data.obs.observation[1:length, slot], data.next_obs.observation[:inner, slot])
        assert len(np.unique(data.obs.desired_goal[:length, slot], axis=0)) == 1
    assert len(set(size.tolist())) > 1
    assert len(set(replay.cursor[0].tolist())) > 1  # environments choose slots with separate keys
    after = arrays(state.agent_state.params)
    assert any((after[name] != before[name]).any() for name in before)
    other = iterate(workflow, workflow.init(1), 41)[1].replay_state.cursor
    assert (np.asarray(other) != replay.cursor).any()


def test_overwritten_at_random_it_is_resumed_to_the_last_bit(overwriting: Any, tmp_path: Path) -> None:
    run = {"total_timesteps": 40 * NUM_ENVS, "log_interval": 0, "checkpoint_interval": 10 * NUM_ENVS}
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    whole = run_in(tmp_path / "whole", overwriting(**run))
    run_in(tmp_path / "stopped", overwriting(**run), should_stop=stop_after(1))
    stopped_at, state = resume_in(tmp_path / "stopped", overwriting(**run))
    assert 0 < stopped_at < 40
    assert_identical(state, whole)


def test_overwritten_at_random_no_key_is_used_twice(overwriting: Any) -> None:
    workflow, record = overwriting(env={"name": "bit_flip", "num_bits": 30}, replay_capacity=1000), KeyRecord()
    state = record.run(workflow.setup, jax.random.key(0))
    for _ in range(2):
        _, state = record.run(workflow.pure_step, state)
    assert len(record.folded) >= 2 * NUM_ENVS
    assert not record.misused()


def test_overwritten_at_random_devices_do_not_show(overwriting: Any) -> None:
    """On one and two devices, stored data are bit-identical and learned parameters equal up to rounding."""
    learned, stored = [], []
    for devices in (1, 2):
        workflow = overwriting(devices=devices)
        assert workflow.execution.num_devices == devices
        learned.append(iterate(workflow, workflow.init(1), 5)[1].agent_state.params)
        at_random = overwriting(devices=devices, learning_starts=1e6)
        stored.append(iterate(at_random, at_random.init(1), 41)[1].replay_state)
    assert_close(learned[1], learned[0], 1e-4)
    assert_identical(stored[1], stored[0])
