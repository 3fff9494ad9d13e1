# pyright: strict
"""A user's script. ``make check`` checks its types: no name of evorl is unknown or ``Any``. It is not run."""

from pathlib import Path
from typing import assert_type

import jax
import numpy as np
import numpy.typing as npt

import evorl
from evorl.agents import ActorCriticAgent
from evorl.algorithms import PPOAgent, PPOWorkflow
from evorl.cli.catalogs import AgentInfo, EnvInfo
from evorl.cli.evaluation import Evaluation
from evorl.envs import Box, Discrete, Env, EnvState, Space, VectorEnv, create_env
from evorl.envs.env_trial import Trial
from evorl.export.stored_policy import LoadedPolicy
from evorl.networks import Torso
from evorl.replay_buffers import UniformReplayBuffer
from evorl.workflows import Workflow

folder = evorl.train("agent=ppo", "env=cartpole", num_seeds=3, sweep={"discount": [0.9, 0.99]})
assert_type(folder, Path)
evaluation = evorl.evaluate(folder, eval_episodes=100)
assert_type(evaluation, Evaluation)
assert_type(evaluation.mean_return, float)
assert_type(evaluation.metrics["episode_return"], npt.NDArray[np.float64])
assert_type(evorl.render(folder, episodes=2, format="png"), Path)
assert_type(evorl.play(folder, env="gymnasium/CartPole-v1"), Path | None)
assert_type(evorl.report(folder, "latest", by="agent"), Path)
assert_type(evorl.compare("ppo", "sac", env="pendulum", seeds=3), Path | None)
assert_type(evorl.export_policy(folder, "numpy"), list[Path])
policy = evorl.load_policy(folder)
assert_type(policy, LoadedPolicy)
assert_type(policy.action_space, Space)
env = evorl.make("cartpole", num_envs=2)
assert_type(env, VectorEnv)
assert_type(env.reset(jax.random.key(0)), EnvState)
assert_type(create_env("cartpole"), VectorEnv)
assert_type(evorl.check_env("my_envs:Walk", steps=10), Trial)
assert_type(evorl.list_envs("pendulum", actions="continuous"), list[EnvInfo])
assert_type(evorl.list_agents(family="off-policy", goals=True), list[AgentInfo])
assert_type(evorl.list_agents()[0].discrete, bool)

assert_type(evorl.algorithms.PPOWorkflow, type[PPOWorkflow])
assert_type(PPOWorkflow.build_from_config({"env": "cartpole"}), PPOWorkflow)
assert_type(evorl.envs.Box(-1.0, 1.0, (3,)), Box)
assert_type(Discrete(2).n, int)
classes: list[type[object]] = [ActorCriticAgent, PPOAgent, Torso, UniformReplayBuffer, Workflow, Env, evorl.AgentState]

# Names and options that do not exist are errors.
evorl.trian("agent=ppo")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
evorl.render(folder, fromat="png")  # pyright: ignore[reportCallIssue]
evorl.render(folder, format="bmp")  # pyright: ignore[reportArgumentType]
evorl.list_agents(family="offpolicy")  # pyright: ignore[reportArgumentType]
