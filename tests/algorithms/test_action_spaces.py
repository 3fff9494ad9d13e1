"""One agent of each family in all kinds of action spaces: actions in the environment and exported policies."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agent import Agent, shipped_agents
from evorl.agents.policy import PolicyAgent
from evorl.agents.random_actions import random_actions
from evorl.algorithms.dqn import DQNWorkflow
from evorl.algorithms.iql import IQLWorkflow
from evorl.algorithms.ppo import PPOWorkflow
from evorl.algorithms.sac import SACWorkflow
from evorl.algorithms.td3 import TD3Workflow
from evorl.envs import Box, DictSpace, Discrete, Space, TupleSpace
from evorl.envs.action_conversion import NoActionConversion, refusal_of
from evorl.envs.action_spaces import ActionSpaces
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import leaf_values
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.export.artifacts import policy_graph
from evorl.export.numpy_file import numpy_text
from evorl.export.parity import parity_of, recorded_steps
from evorl.export.portable_policy import portable_policy
from evorl.export.stored_policy import LoadedPolicy
from evorl.sample_batch import SampleBatch
from tests.support.errors import raises_naming
from tests.support.toy_envs import ActionEnv

ROWS = 16
WORKFLOWS = {"dqn": DQNWorkflow, "iql": IQLWorkflow, "ppo": PPOWorkflow, "sac": SACWorkflow, "td3": TD3Workflow}
MIXED = Box([-2.0, 0.0, -np.inf, -np.inf, 5.0], [2.0, np.inf, -3.0, np.inf, 5.0])
BOUNDED = {
    "integers": Box(-1, 2, (2,), np.int32),
    "uint8 of 2 axes": Box(0, 255, (2, 2), np.uint8),
    "no axis": Box(-0.1, 0.7, ()),
    "vast": Box(-3e38, 3e38, (2,)),
    "dict": DictSpace({"a": Box(-1, 1, (2,), np.float16), "b": Box(0, 4, (), np.int8)}),
}
OPEN = {"mixed": MIXED, "line": Box(-np.inf, np.inf, (1,)), "half line of 2 axes": Box(1.0, np.inf, (2, 1))}
CHOICES = {
    "start": Discrete(3, start=-1),
    "several": MultiDiscrete([2, 3], [0, 5]),
    "tuple": TupleSpace([Discrete(2), MultiDiscrete([[2], [2]], dtype=np.int8)]),
}
SPACES = BOUNDED | OPEN | CHOICES
FAMILIES = {
    "ppo": SPACES,
    "sac": ("integers", "mixed", "several"),
    "iql": ("dict", "mixed", "start"),
    "policy": ("no axis", "mixed", "tuple"),
    "td3": ("uint8 of 2 axes", "dict"),
    "dqn": ("start", "tuple"),
}
EVERY = [pytest.param(name, kind, id=f"{name}-{kind}") for name, kinds in FAMILIES.items() for kind in kinds]


def _made(name: str, kind: str) -> tuple[Agent, Any, VectorEnv]:
    env = wrap_env(ActionEnv(SPACES[kind]), parallel=ROWS)
    config = {"network": {"torso": [4]}}
    agent = PolicyAgent.from_config(config, env) if name == "policy" else WORKFLOWS[name].make_agent(config, env)
    return agent, agent.init(env.obs_space, env.action_space, jax.random.key(0)), env


def _with_outputs(agent_state: Any, outputs: Any) -> Any:
    """Return a state whose policy network outputs ``outputs`` (or their first entry) for every observation."""

    def changed(path: Any, x: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        if "head" not in name or not any(part in name for part in ("policy", "online")) or "target" in name:
            return x
        if "bias" not in name:
            return jnp.zeros_like(x)
        return jnp.broadcast_to(jnp.asarray(outputs, x.dtype), x.shape) if np.ndim(outputs) == 0 else x * 0 + outputs

    return agent_state.replace(params=jax.tree_util.tree_map_with_path(changed, agent_state.params))


def _played(agent: Agent, agent_state: Any, env: VectorEnv, explores: bool) -> Any:
    """Return the actions that the environments received in one step, as NumPy arrays."""

    @jax.jit
    def play(agent_state: Any) -> Any:
        env_state = env.reset(jax.random.key(1))
        act = agent.compute_actions if explores else agent.evaluate_actions
        actions, _ = act(agent_state, SampleBatch(obs=env_state.obs), jax.random.key(2))
        return env.step(env_state, actions).env_state

    return jax.tree.map(np.asarray, play(agent_state))


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_what_is_played_is_in_the_space_and_what_is_exported_is_what_is_played(name: str, kind: str) -> None:
    agent, agent_state, env = _made(name, kind)
    space = SPACES[kind]
    explored = _played(agent, agent_state, env, explores=True)
    assert bool(space.contains(explored).all())
    greedy = _played(agent, agent_state, env, explores=False)
    assert bool(space.contains(greedy).all())
    policy = LoadedPolicy(portable_policy(agent, agent_state, env))
    assert policy.action_space == space
    exported = policy(np.zeros((ROWS, 1), np.float32))
    assert jax.tree.map(jnp.result_type, exported) == jax.tree.map(jnp.result_type, greedy)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), exported, greedy)
    assert bool(space.contains(policy(np.zeros(1, np.float32))))


ALIKE = {
    "scores": Box(0.0, 1.0, (1,)),
    "a b": Box(2.0, 3.0, (1,)),
    "a_b": Box(4.0, 5.0, (1,)),
    "²": Box(6.0, 7.0, (1,)),
}


def test_names_that_become_the_same_in_a_file_stay_apart() -> None:
    """Entries whose names map to the same identifier get unique port names."""
    space = DictSpace(ALIKE)
    env = wrap_env(ActionEnv(space), parallel=2)
    agent = PPOWorkflow.make_agent({"network": {"torso": [4]}}, env)
    policy = portable_policy(agent, agent.init(env.obs_space, env.action_space, jax.random.key(0)), env)
    names = [port.name for port in policy.results]
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"[A-Za-z_][0-9A-Za-z_]*", name) for name in names)
    assert not policy.has_scores
    played = LoadedPolicy(policy)(np.zeros(1, np.float32))
    assert set(played) == set(ALIKE)
    assert bool(space.contains(played))
    about = {"format": 1, **policy.describe(), "versions": {"evorl": "0"}}
    file: dict[str, Any] = {}
    exec(numpy_text(policy, policy_graph(policy), about, "a test"), file)
    from_file = file["Policy"]()(np.zeros(1, np.float32))
    for name in ALIKE:
        np.testing.assert_allclose(from_file[name], played[name], rtol=1e-6)


@pytest.mark.parametrize("kind", ["tuple", "dict", "integers"])
def test_files_of_several_arrays_are_compared_action_by_action(kind: str) -> None:
    agent, agent_state, env = _made("ppo", kind)
    policy = portable_policy(agent, agent_state, env)
    recorded = recorded_steps(policy, num_rows=4, num_steps=2)
    right = [dict(outputs) for outputs in recorded.outputs]
    assert parity_of(policy, right, recorded).num_same == 8
    name = next(port.name for port in policy.results if port.dtype.kind in "iu")
    wrong = [dict(outputs) for outputs in recorded.outputs]
    wrong[0][name] = wrong[0][name] + np.asarray(2, wrong[0][name].dtype)
    assert parity_of(policy, wrong, recorded).num_same == 4


@pytest.mark.parametrize(("name", "kind"), [p for p in EVERY if p.values[1] not in CHOICES])
def test_the_mode_reaches_all_of_a_box(name: str, kind: str) -> None:
    agent, agent_state, env = _made(name, kind)
    ends = [_played(agent, _with_outputs(agent_state, x), env, explores=False) for x in (-30.0, 30.0)]
    for box, low, high in zip(
        *(leaf_values(SPACES[kind], tree) for tree in (_boxes(SPACES[kind]), *ends)),
        strict=True,
    ):
        is_line = np.isinf(box.low.astype(np.float64)) & np.isinf(box.high.astype(np.float64))
        expected_low = np.where(np.isfinite(box.low.astype(np.float64)), box.low, box.high - 30.0)
        expected_high = np.where(np.isfinite(box.high.astype(np.float64)), box.high, box.low + 30.0)
        expected_low, expected_high = np.where(is_line, -30, expected_low), np.where(is_line, 30, expected_high)
        np.testing.assert_allclose(low[0].astype(np.float64), expected_low.astype(np.float64), rtol=1e-4, atol=1e-9)
        np.testing.assert_allclose(high[0].astype(np.float64), expected_high.astype(np.float64), rtol=1e-4, atol=1e-9)


def _boxes(space: Space) -> Any:
    return {name: space[name] for name in space.spaces} if isinstance(space, DictSpace) else space


@pytest.mark.parametrize(("name", "kind"), [("ppo", "several"), ("dqn", "start"), ("policy", "tuple")])
def test_the_mode_reaches_every_choice(name: str, kind: str) -> None:
    agent, agent_state, env = _made(name, kind)
    assert isinstance(env.action_space, Discrete)
    found = set()
    for i in range(env.action_space.n):
        played = _played(agent, _with_outputs(agent_state, np.eye(env.action_space.n)[i] * 9.0), env, explores=False)
        found.add(str(jax.tree.map(lambda x: x[0].tolist(), played)))
    assert len(found) == env.action_space.n


@pytest.mark.parametrize("kind", SPACES)
def test_a_warm_up_is_in_the_space_too(kind: str) -> None:
    env = wrap_env(ActionEnv(SPACES[kind]), parallel=ROWS)

    @jax.jit
    def play() -> Any:
        actions = random_actions(env.action_space, jax.random.key(0), ROWS)
        return env.step(env.reset(jax.random.key(1)), actions).env_state

    assert bool(SPACES[kind].contains(play()).all())


@pytest.mark.parametrize("kind", OPEN)
def test_a_deterministic_agent_refuses_open_ends_and_says_who_does_not(kind: str) -> None:
    with raises_naming(ValueError, "TD3 acts in flat, bounded Boxes", "inf", "PPO", "SAC", "Box(-10.0, 10.0)"):
        _made("td3", kind)


REFUSED = {
    "mixture": TupleSpace([Discrete(2), Box(0.0, 1.0, (1,))]),
    "more than float32 tells apart": Box(0, 2**25, (1,), np.int64),
    "more than an int32": Box(-(2**62), 2**62, (1,), np.int64),
    "beyond an int32": Box(2**40, 2**40 + 5, (1,), np.int64),
    "no numbers": Box(0.0, 1.0, (0,)),
    "too many choices": MultiDiscrete([200, 200]),
}
LEARNERS = sorted((a for a in shipped_agents() if ActionSpaces.OTHERS not in a.acts_in), key=lambda a: a.__qualname__)


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("agent", LEARNERS, ids=lambda agent: agent.__qualname__)
def test_what_no_agent_can_do_is_refused_alike(agent: type[Agent], kind: str) -> None:
    env = wrap_env(ActionEnv(REFUSED[kind]), parallel=2)
    with pytest.raises(NoActionConversion) as error:
        agent.from_config({}, env)
    assert str(error.value) == refusal_of(REFUSED[kind])
