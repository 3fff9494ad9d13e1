"""Training runs that would never learn are rejected, with settings that work."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

from evorl.assembly import workflow_from_config
from evorl.execution.first_update import idle_reasons, num_updates, refuse_idle_training, weak_spots
from evorl.metrics import WideCounter
from evorl.runs.replay_file import ReplayFileError
from evorl.types import State
from tests.support.config_files import composed
from tests.support.errors import raises_naming

ONE_SAMPLE = ["env=cartpole", "num_envs=4", "rollout_length=8", "num_minibatches=32"]


def built(*overrides: str):
    return workflow_from_config(composed(*overrides, "devices=1"))


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["agent=sac", "env=pendulum", "total_timesteps=500"], ["learning_starts=1,000", "500 steps", "=50,"]),
        (["agent=dqn", "env=cartpole", "total_timesteps=2000", "learning_starts=2000"], ["learning_starts=2,000"]),
        (
            ["agent=r2d2", "env=cartpole", "total_timesteps=160", "learning_starts=0"],
            ["sequences of 30 steps", "sequence_length", "burn_in"],
        ),
        (
            ["agent=sac", "env=pendulum", "total_timesteps=1200", "updates_per_iteration=0.0001"],
            ["updates_per_iteration=0.0001 is too small for an update"],
        ),
        (
            ["agent=td3", "env=pendulum", "total_timesteps=1100", "policy_delay=500", "num_envs=1"],
            ["policy_delay=500", "critic updates", "Choose a smaller"],
        ),
        (["agent=ppo", *ONE_SAMPLE], ["num_minibatches=32", "num_envs=4", "agent.normalize_advantages=false"]),
        (
            ["agent=a2c", "env=cartpole", "num_envs=1", "rollout_length=1", "agent.normalize_advantages=true"],
            ["minibatches of one sample", "rollout_length=1"],
        ),
        (
            ["agent=meta/pbt", "inner=sac", "env=pendulum", "total_timesteps=8000", "generation_interval=500"],
            ["inner.learning_starts=1,000", "1,000 steps"],
        ),
        (
            ["agent=erl/erl", "env=pendulum", "total_timesteps=20000", "learner.learning_starts=20000"],
            ["learner.learning_starts=20,000", "total_timesteps=20,000"],
        ),
    ],
)
def test_a_training_without_an_update_is_refused(overrides: list[str], parts: list[str]) -> None:
    with raises_naming(ValueError, "learned", *parts):
        refuse_idle_training(built(*overrides))


def test_the_suggested_value_works() -> None:
    start = ["agent=sac", "env=pendulum", "total_timesteps=500"]
    (reason,) = idle_reasons(built(*start))
    suggested = re.search(r"such as (learning_starts=\d+)", reason)
    assert suggested is not None
    assert list(idle_reasons(built(*start, suggested[1]))) == []
    assert list(idle_reasons(built("agent=ppo", *ONE_SAMPLE, "agent.normalize_advantages=false"))) == []
    assert list(idle_reasons(built("agent=ppo", *ONE_SAMPLE, "num_minibatches=16"))) == []


@pytest.mark.parametrize("rate", ["1", "3", "0.25"])
@pytest.mark.parametrize("starts", ["0", "37", "64", "65", "400"])
def test_updates_are_counted_as_the_training_makes_them(rate: str, starts: str) -> None:
    workflow = built(
        *("agent=sac", "env=pendulum", "num_envs=4", "rollout_length=2", "total_timesteps=400"),
        *(f"updates_per_iteration={rate}", f"learning_starts={starts}"),
    )
    iterations = 400 // workflow.timesteps_per_iteration
    counters = [WideCounter.create().add(i) for i in range(iterations)]
    made = sum(int(workflow._num_updates(State(iterations=counter))) for counter in counters)
    assert num_updates(workflow, 400) == made


def test_sequences_are_waited_for_as_the_training_does() -> None:
    overrides = ("agent=r2d2", "env=cartpole", "num_envs=2", "rollout_length=8", "learning_starts=0", "burn_in=null")
    workflow = built(*overrides, "sequence_length=20", "total_timesteps=96")
    state = jax.eval_shape(workflow.init_learning, jax.random.key(0)).replay_state
    made = 0
    for iteration in range(6):
        filled = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state).replace(
            size=jnp.asarray((iteration + 1) * 8, state.size.dtype)
        )
        made += int(workflow._num_updates(State(iterations=WideCounter.create().add(iteration), replay_state=filled)))
    assert num_updates(workflow, 96) == made


def test_offline_training_waits_for_no_sequence() -> None:
    """All sequences are stored at the start, and total_timesteps counts updates."""
    overrides = ("agent=r2d2", "env=cartpole", "offline=true", "replay.load=recorded", "updates_per_iteration=2")
    assert num_updates(built(*overrides, "total_timesteps=4"), 4) == 4


@pytest.mark.parametrize("overrides", [["agent=td3_bc"], ["agent=sac"], ["agent=rlpd"]])
def test_a_training_without_its_recording_is_refused_before_it_starts(overrides: list[str]) -> None:
    """Only a new training reads the recording: the workflow is also built to evaluate or resume a run."""
    workflow = built(*overrides, "env=pendulum", "replay.load=nowhere/recorded")
    with raises_naming(ReplayFileError, "nowhere/recorded", "evorl save-replay"):
        refuse_idle_training(workflow)


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["agent=ppo", "env=cartpole", "total_timesteps=1000", "eval_interval=20000"], "eval_interval=20,000"),
        (["agent=ppo", "env=cartpole", "optimizer.learning_rate=0"], "optimizer.learning_rate"),
        (["agent=meta/pbt", "env=cartpole", "total_timesteps=50000"], "generation_interval="),
        (
            ["agent=ppo", "env=cartpole", "num_envs=128", "rollout_length=256", "total_timesteps=200000"],
            "128 * 256 = 32,768 steps of total_timesteps=200,000. Choose smaller values, such as num_envs=16 rollout",
        ),
    ],
)
def test_what_is_less_than_expected_is_told(overrides: list[str], part: str) -> None:
    workflow = built(*overrides)
    assert list(idle_reasons(workflow)) == []
    assert any(part in sentence for sentence in weak_spots(workflow))


def test_usual_trainings_have_no_weak_spot() -> None:
    for agent, env in (("ppo", "cartpole"), ("sac", "pendulum"), ("meta/pbt", "cartpole"), ("erl/erl", "pendulum")):
        workflow = built(f"agent={agent}", f"env={env}")
        assert [*idle_reasons(workflow), *weak_spots(workflow)] == []


def test_a_learner_that_does_not_warm_up_has_no_reason() -> None:
    """PGA-ME updates its learner from the first generation on."""
    start = ("agent=qd/pga_me", "env=pendulum", "pop_size=8", "total_timesteps=20000")
    assert list(idle_reasons(built(*start, "learner.learning_starts=25000"))) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["num_envs=128", "rollout_length=256", "total_timesteps=400000"],  # 12 iterations
        ["num_envs=16", "rollout_length=32", "total_timesteps=2000", "eval_interval=1000"],  # a short trial
    ],
)
def test_few_iterations_are_reported_only_if_they_are_large(overrides: list[str]) -> None:
    assert list(weak_spots(built("agent=ppo", "env=cartpole", *overrides))) == []


def test_a_workflow_may_declare_reasons_of_its_own() -> None:
    class Own:
        total_timesteps = 10
        agent = None

        def idle_reasons(self) -> list[str]:
            return ["it has no data."]

    with raises_naming(ValueError, "learned", "it has no data."):
        refuse_idle_training(Own())
