"""A training server learns from all data of its clients, and from nothing else."""

from __future__ import annotations

import functools
import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from evorl.actors.worker import roll
from evorl.assembly import workflow_from_config
from evorl.execution.collector import iterate, peek_acting
from evorl.execution.trainable import collected_by
from evorl.ops.trees import pack
from evorl.serving import training_server
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.training_server import TrainingServer
from evorl.types import PyTreeDict, PyTreeNode
from evorl.workflows.workflow import Workflow, ended_episodes
from tests.serving.test_batched_inference import GRU
from tests.support.config_files import composed
from tests.support.errors import raises_naming
from tests.support.rlx_client import PlayingClient, playing
from tests.support.scripted_simulator import CONTINUOUS, DISCRETE, remote
from tests.support.small_workflows import assert_close, small
from tests.support.waiting import wait_until

SETTINGS = {"bind": "127.0.0.1:0", "max_clients": 8, "eval_seconds": 5.0}
BATCH: dict[str, Any] = {"num_envs": 2, "rollout_length": 5, "num_minibatches": 1, "num_epochs": 1}
BATCH["optimizer"] = {"learning_rate": 0.1}  # a policy that is one update old differs clearly
CASES: dict[str, tuple[Any, ...]] = {
    "ppo": ("ppo", CONTINUOUS, BATCH),
    "dqn": ("dqn", DISCRETE, {"num_envs": 2, "rollout_length": 2, "learning_starts": 4, "batch_size": 4}),
    "gru": ("ppo", CONTINUOUS, BATCH | GRU),
}


@functools.cache
def made(case: str) -> Workflow:
    return remote(*CASES[case])


class Served:
    """A workflow with its server, and the batches used for training."""

    def __init__(self, case: str | Workflow, **settings: Any) -> None:
        workflow = made(case) if isinstance(case, str) else case
        self.server = TrainingServer(workflow, ServeSettings(**{**SETTINGS, **settings}))
        self.workflow = collected_by(workflow, self.server)
        self.state = workflow.init(0)
        self.batches: list[tuple[Any, np.ndarray]] = []
        self.messages: list[str] = []
        self.publish()  # the server listens once a policy is published
        wait = self.server.switchboard.wait_for_batch

        def noted(should_stop: Any) -> Any:
            batch = wait(should_stop)
            if batch is not None:
                packed = self.server._packed(batch[0])
                self.batches.append((jax.tree.map(np.asarray, packed.unpack()), batch[1]))
            return batch

        self.server.switchboard.wait_for_batch = noted

    def publish(self) -> None:
        """Publish the current policy."""
        acting, _ = peek_acting(self.workflow, self.state)
        self.server._publish(acting, self.messages.append)

    @property
    def address(self) -> str:
        assert self.server._thread is not None
        return self.server._thread.addresses[0]

    def iterate(self, count: int) -> Any:
        metrics, self.state = iterate(self.workflow, self.state, count, self.messages.append)
        return metrics

    def rows(self) -> list[Any]:
        """Return the streams used for training, trees with leading axis T, each with its cuts."""
        return [jax.tree.map(lambda x, i=i: x[:, i], batch) for batch in self.batches for i in range(2)]


@pytest.fixture
def serve() -> Iterator[Any]:
    served: list[Served] = []

    def start(*arguments: Any, **settings: Any) -> Served:
        served.append(Served(*arguments, **settings))
        return served[-1]

    yield start
    for one in served:
        one.server.close()


def steps_of(clients: list[PlayingClient]) -> dict[bytes, tuple]:
    """Return the steps of clients by their observations."""
    return {step[0].tobytes(): step for client in clients for step in client.steps}


@pytest.mark.parametrize("case", ["ppo", "dqn"])
def test_a_batch_is_what_clients_did(case: str, serve: Any) -> None:
    served = serve(case)
    space = served.workflow.env.simulators.main.action_space
    with playing(served.address, 1, 2, 3) as clients:
        metrics = served.iterate(6)
        done = steps_of(clients)
    rows, seen = served.rows(), set()
    ends = []
    for row, cuts in rows:
        assert not cuts.any()
        for t in range(len(row.dones)):
            _before, action, reward, after, terminated, truncated = done[row.obs[t].tobytes()]
            seen.add(row.obs[t].tobytes())
            np.testing.assert_array_equal(row.next_obs[t], after)
            assert row.rewards[t] == pytest.approx(reward, abs=1e-5)
            assert bool(row.dones[t]) == (terminated or truncated)
            assert bool(row.extras.env_extras.termination[t]) == terminated
            ends.append((terminated, truncated))
            own = row.actions[t]
            output = own if case == "dqn" else space.low + (own + 1) / 2 * (space.high - space.low)
            np.testing.assert_allclose(action, output, atol=1e-5)
        follows = [row.obs[t + 1] == row.next_obs[t] for t in range(len(row.dones) - 1) if not row.dones[t]]
        assert np.all(follows)
    assert len(seen) == sum(len(row.dones) for row, _ in rows)  # each step occurs once
    if case == "ppo":
        assert {(True, False), (False, True), (False, False)} <= set(ends)
    assert int(served.state.iterations) == 6
    assert metrics["serving/clients"].tolist()[-1] == 3
    assert np.all(metrics.policy_lag <= 1) or case == "dqn"
    assert any("Waiting for simulators at rlx://127.0.0.1:" in message for message in served.messages)


def test_one_client_and_one_seed_have_the_same_hundred_actions(serve: Any) -> None:
    """One client with one seed gets the same hundred actions in two runs, under one policy."""
    workflow = remote("ppo", CONTINUOUS, BATCH | {"rollout_length": 60})  # no training within 100 steps

    def actions() -> np.ndarray:
        served = serve(workflow)
        with playing(served.address, 1, most=100) as (client,):
            client.join(30.0)
        assert client.failure is None
        return np.stack([step[1] for step in client.steps])

    first, second = actions(), actions()
    assert first.shape == (100, 2)
    assert len(np.unique(first, axis=0)) > 90
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("case", ["ppo", "gru"])
def test_without_lag_the_policy_that_learns_is_the_one_that_acted(case: str, serve: Any) -> None:
    """Without lag, the training policy equals the acting one, also after cuts: all ratios are 1."""
    served = serve(case, max_policy_lag=0)
    for seed in range(3, 6):
        play_and_vanish(served, seed)
        with playing(served.address, 1, 2):
            metrics = served.iterate(1)
        with playing(served.address, 1, 2, 3):
            others = served.iterate(2)
        kl = [*metrics.approximate_kl, *others.approximate_kl]
        np.testing.assert_allclose(kl, 0.0, atol=1e-5)
        np.testing.assert_array_equal(others.policy_lag, [0.0, 0.0])
        served.publish()  # a client that left gets its response and is removed
    assert sum(cuts.sum() for _, cuts in served.batches) >= 3


def play_and_vanish(served: Served, seed: int) -> PlayingClient:
    """Play two steps of an unfinished episode."""
    client = PlayingClient(served.address, seed, most=2, lengths=(50,))
    client.join(10.0)
    assert len(client.steps) == 2
    wait_until(lambda: served.server.switchboard.num_clients == 0)
    return client


def test_who_vanishes_leaves_an_episode_that_was_cut(serve: Any) -> None:
    served = serve("ppo")
    gone = play_and_vanish(served, 1)
    with playing(served.address, 2, 3, lengths=(50,)):
        served.iterate(1)
    row, cuts = next(pair for pair in served.rows() if pair[0].obs[0].tobytes() == gone.steps[0][0].tobytes())
    np.testing.assert_array_equal(cuts, [False, True, False, False, False])
    np.testing.assert_array_equal(row.obs[1], gone.steps[1][0])  # its last step is included
    np.testing.assert_array_equal(row.next_obs[1], gone.steps[1][3])
    assert not np.array_equal(row.obs[2], row.next_obs[1])  # from another client


class Noting(PyTreeNode):
    """Stand-in for a workflow that returns its training batch."""

    def collected(self, trajectory: Any) -> Any:
        return trajectory

    def pure_step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        return PyTreeDict(batch=batch), state


@pytest.mark.parametrize("case", ["ppo", "dqn"])
def test_a_cut_is_a_truncation(case: str, serve: Any) -> None:
    """A cut step is the last of its episode and bootstraps from the next observation."""
    served = serve(case)
    gone = play_and_vanish(served, 1)
    with playing(served.address, 2, 3, lengths=(50,)):
        served.iterate(1)
    steps, cuts = served.batches[0]
    metrics, _ = training_server._learn(Noting(), PyTreeDict(), pack(steps, 2), np.ones_like(cuts))
    batch = metrics.batch
    assert batch.dones.all()
    assert not batch.extras.env_extras.termination.any()
    assert all(batch.extras.env_extras.get("truncation", cuts | True).ravel())
    assert gone.steps[0][0].tobytes() in {obs.tobytes() for obs in np.asarray(batch.obs).reshape(-1, 3)}
    metrics, _ = training_server._learn(Noting(), PyTreeDict(), pack(steps, 2), np.zeros_like(cuts))
    np.testing.assert_array_equal(metrics.batch.dones, steps.dones)


def test_exploit_clients_are_evaluated_and_never_learned_from(serve: Any) -> None:
    served = serve("ppo")
    with playing(served.address, 1, 2) as learners, playing(served.address, 7, exploit=True) as greedy:
        wait_until(lambda: len(greedy[0].returns) >= 3)
        served.iterate(2)
        result = served.workflow.evaluate(served.state)
        served.iterate(2)
        returns = list(greedy[0].returns)
    assert result.episode_return_min <= result.episode_return <= result.episode_return_max
    last = [np.mean(returns[i : i + 4]) for i in range(len(returns) - 3)]
    assert any(result.episode_return == pytest.approx(mean, abs=1e-4) for mean in last)
    assert result.episode_length == pytest.approx(np.mean([4, 3, 6, 4]), abs=1.0)
    shown = {obs.tobytes() for row, _ in served.rows() for obs in row.obs}
    assert shown <= set(steps_of(learners))
    assert not shown & set(steps_of(greedy))


def test_an_evaluation_without_anybody_is_not_a_number(serve: Any) -> None:
    served = serve("ppo")
    started = time.monotonic()
    result = served.workflow.evaluate(served.state)
    assert time.monotonic() - started < 3.0
    assert all(math.isnan(value) for value in result.values())


def test_a_first_evaluation_announces_the_address_and_waits_for_clients() -> None:
    server = TrainingServer(made("ppo"), ServeSettings(**SETTINGS))
    workflow, messages, results = collected_by(made("ppo"), server), list[str](), list[Any]()
    server.keep(SimpleNamespace(store=None, close=lambda: None), messages.append)
    state = workflow.init(0)
    evaluation = threading.Thread(target=lambda: results.append(workflow.evaluate(state)))
    evaluation.start()
    try:
        wait_until(lambda: bool(messages))
        with playing(messages[0].rpartition(" ")[2].removesuffix("."), 7, exploit=True):
            evaluation.join(30.0)
    finally:
        server.close()
    assert math.isfinite(results[0].episode_return)


def test_an_evaluation_ends_when_it_has_waited_long_enough(serve: Any) -> None:
    served = serve("ppo", eval_seconds=0.3)
    client = PlayingClient(served.address, 7, exploit=True, lengths=(10**9,))
    wait_until(lambda: served.server.switchboard.num_greedy == 1)
    assert math.isnan(served.workflow.evaluate(served.state).episode_return)
    client.leave()


def test_who_waits_can_be_stopped_without_a_row(serve: Any) -> None:
    served = serve("ppo")
    stop = threading.Event()
    served.server.stop_when(stop.is_set)
    threading.Timer(0.3, stop.set).start()
    assert served.iterate(3) is None
    assert int(served.state.iterations) == 0
    stop.clear()
    with playing(served.address, 1, 2):
        assert served.iterate(1)["serving/clients"].shape == (1,)


def test_a_profile_says_where_the_time_went(serve: Any, tmp_path: Path) -> None:
    served = serve("ppo", profile_dir=str(tmp_path / "profile"))
    with playing(served.address, 1, 2):
        served.iterate(3)
    served.server.close()
    spans = json.loads((tmp_path / "profile" / "trace.json").read_text())["traceEvents"]
    assert [span["name"] for span in spans if span["ph"] == "X"] == ["collect", "update"] * 3


def test_a_failure_of_the_policy_ends_the_training(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve("ppo")

    def broken(questions: Any) -> Any:
        raise FloatingPointError("no such program")

    monkeypatch.setattr(served.server._inference, "ask", broken)
    with playing(served.address, 1), raises_naming(RuntimeError, "no such program"):
        served.iterate(1)


class TestRefusals:
    @pytest.mark.parametrize(
        ("workflow", "parts"),
        [
            (lambda: remote("dqn", DISCRETE, {"n_step": 3}), ("consecutive steps", "n_step")),
            (lambda: remote("ppo", CONTINUOUS, {"normalize_rewards": True}), ("normalize_rewards",)),
            (lambda: remote("ppo", CONTINUOUS, {"num_seeds": 2}), ("num_seeds",)),
            (lambda: small("ppo"), ("env=remote",)),
        ],
        ids=["n_step", "normalize_rewards", "num_seeds", "another env"],
    )
    def test_in_words(self, workflow: Any, parts: tuple[str, ...]) -> None:
        with raises_naming(ValueError, *parts):
            TrainingServer(workflow(), ServeSettings(bind="127.0.0.1:0"))

    def test_trajectories_that_begin_with_fresh_episodes(self) -> None:
        env = {"library": "gymnax", "name": "CartPole-v1", "max_episode_steps": 2}
        workflow: Any = small("trpo", env, episodes_per_batch=2, rollout_length=4, num_envs=2)
        assert workflow.replace(episodes_per_batch=None).capabilities.rollouts
        assert "episodes_per_batch" in str(training_server.reason_not_served(workflow))

    def test_who_acts_at_random_learns_nothing(self) -> None:
        spaces = ["env.obs_space={shape: [4]}", "env.action_space={n: 2}"]
        workflow = workflow_from_config(composed("agent=random", "env=remote", *spaces))
        with raises_naming(ValueError, "RandomAgentWorkflow", "ppo", "sac"):
            TrainingServer(workflow, ServeSettings(bind="127.0.0.1:0"))

    def test_evolution_is_no_learner_from_rollouts(self) -> None:
        workflow = small("neuroevolution", {"library": "remote", "name": "simulator", **DISCRETE})
        with raises_naming(ValueError, "rollouts"):
            TrainingServer(workflow, ServeSettings(bind="127.0.0.1:0"))


@pytest.mark.parametrize(("algorithm", "settings"), [("ppo", {}), ("dqn", {"replay_capacity": 1000})])
def test_an_episode_that_was_cut_off_does_not_count_as_ended(algorithm: str, settings: dict[str, Any]) -> None:
    workflow: Any = small(algorithm, rollout_length=40, **settings)
    acting, state = workflow.acting(workflow.init(0))
    trajectory, _ = jax.jit(roll)(workflow, acting, state.env_state)
    assert trajectory.dones.any()
    cuts = ~np.asarray(trajectory.dones) & (np.arange(40)[:, None] % 3 == 0)
    metrics, _ = training_server._learn(workflow, state, pack(trajectory, 2), cuts)
    assert_close(metrics.episodes, ended_episodes(trajectory), 1e-6)
