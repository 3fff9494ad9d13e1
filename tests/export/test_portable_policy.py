"""A policy as one function: ports, memory, and actions in the environment's own range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evorl.agent import AgentState
from evorl.agents.random_actions import RandomAgent
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace, leaf_spaces, leaf_values
from evorl.envs.stack import wrap_env
from evorl.export.artifacts import policy_graph
from evorl.export.onnx_file import OnnxSession, onnx_bytes
from evorl.export.portable_policy import PortablePolicy, described_space, portable_policy
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.portable import VERSIONS, stored, with_statistics
from tests.support.small_workflows import fresh_state, small
from tests.support.toy_envs import ActionEnv

PORTS = {
    "ppo_discrete": ("obs", "action action_scores"),
    "ppo_normalized": ("obs", "action"),
    "ppo_gru_history": (
        "obs memory_frames_started memory_frames_earlier_frames memory_recurrent_policy_hidden",
        "action next_memory_frames_started next_memory_frames_earlier_frames next_memory_recurrent_policy_hidden",
    ),
    "ppo_lru": (
        "obs memory_recurrent_policy_imaginary memory_recurrent_policy_real",
        "action next_memory_recurrent_policy_imaginary next_memory_recurrent_policy_real",
    ),
    "ppo_gtrxl": (
        "obs memory_recurrent_policy_count memory_recurrent_policy_memory",
        "action next_memory_recurrent_policy_count next_memory_recurrent_policy_memory",
    ),
    "recurrent_sac": ("obs memory_recurrent_hidden", "action next_memory_recurrent_hidden"),
    "r2d2": ("obs memory_recurrent_hidden", "action action_scores next_memory_recurrent_hidden"),
    "masked": ("obs_action_mask obs_observation", "action action_scores"),
    "goals": ("obs_achieved_goal obs_desired_goal obs_observation", "action"),
}


@pytest.mark.parametrize("name", PORTS)
def test_what_goes_in_and_comes_out(name: str, tmp_path: Path) -> None:
    policy = stored(name, tmp_path).policy
    inputs, outputs = (" ".join(port.name for port in ports) for ports in (policy.inputs, policy.outputs))
    assert (inputs, outputs) == PORTS[name]
    described = policy.describe()
    assert [port["name"] for port in described["inputs"]] == inputs.split()
    assert all(port["shape"][0] == "rows" for port in described["inputs"] + described["outputs"])
    assert set(described["memory"]) == {port.name for port in policy.memory}


def test_actions_are_the_agents_in_the_range_of_the_environment() -> None:
    workflow = small("ppo", "Pendulum-v1", agent={"network": {"torso": [8]}, "normalize_obs": True})
    agent_state = with_statistics(fresh_state(workflow.agent, workflow.env))
    policy = portable_policy(workflow.agent, agent_state, workflow.env)
    obs = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    batch = SampleBatch(obs=obs, extras=PyTreeDict())
    expected = jax.jit(workflow.agent.evaluate_actions)(agent_state, batch, jax.random.key(0))[0]
    actual = jax.jit(policy.rows)({"obs": obs})["action"]
    np.testing.assert_allclose(actual, 2.0 * np.asarray(expected), atol=1e-6)
    assert policy.action_space == Box(-2, 2, (1,))
    assert policy.normalizer is not None
    np.testing.assert_allclose(policy.normalizer[0][0], 2.0, atol=0.5)


def test_forbidden_actions_have_no_chance(tmp_path: Path) -> None:
    policy = stored("masked", tmp_path).policy
    mask = np.eye(6, dtype=np.bool_)
    obs = policy.arrays_of({"observation": np.zeros((6, 3), np.float32), "action_mask": mask})
    outputs = policy.rows(obs)
    np.testing.assert_array_equal(outputs["action"], np.arange(6))
    np.testing.assert_array_equal(np.isfinite(outputs["action_scores"]), mask)


def test_random_numbers_are_inputs(tmp_path: Path) -> None:
    policy = stored("sac", tmp_path, sample=True).policy
    assert [(port.name, port.shape) for port in policy.draws] == [("random_0", (1, 1))]
    assert policy.kinds == ("normal",)
    drawn = policy.drawn(np.random.default_rng(0), 2000)
    assert abs(drawn["random_0"].std() - 1.0) < 0.1
    obs = {"obs": np.zeros((2000, 3), np.float32)}
    actions = policy.rows(obs | drawn)["action"]
    greedy = stored("sac", tmp_path).policy.rows(obs)["action"]
    assert np.asarray(actions).std() > 0.1
    np.testing.assert_allclose(np.median(actions), greedy[0, 0], atol=0.2)


ACTION_SPACES = (
    Box(-2.0, 2.0, (1,)),
    Box(-3, 4, (2,), np.int8),
    Discrete(3, start=-1),
    MultiDiscrete([2, 3], start=5),
    TupleSpace([Discrete(3, start=5), MultiDiscrete([3, 2], start=-1), Box(-3, 4, (2,), np.int8), Box(0.0, 1.0)]),
)


def _random_policy(space: Space) -> tuple[PortablePolicy, dict[str, np.ndarray]]:
    """Return the policy of a random agent, and inputs for 500 actions."""
    env = wrap_env(ActionEnv(space))
    agent_state = RandomAgent().init(env.obs_space, env.action_space, jax.random.key(0))
    policy = portable_policy(RandomAgent(), agent_state, env, sample=True)
    return policy, {"obs": np.zeros((500, 1), np.float32), **policy.drawn(np.random.default_rng(0), 500)}


@pytest.mark.parametrize("space", ACTION_SPACES, ids=repr)
def test_a_random_agent_is_exported_as_one(space: Space) -> None:
    env = wrap_env(ActionEnv(space))
    agent_state = RandomAgent().init(env.obs_space, env.action_space, jax.random.key(0))
    with raises_naming(ValueError, "RandomAgent", "evaluations", "sample=true"):
        portable_policy(RandomAgent(), agent_state, env)
    policy, given = _random_policy(space)
    outputs = policy.rows(given)
    for actions, of in zip(leaf_values(space, policy.action_of(outputs)), leaf_spaces(space), strict=True):
        assert np.all(of.contains(actions))
        numbers = np.asarray(actions).reshape(500, -1)[:, -1]
        assert len(np.unique(numbers)) >= (of.n if isinstance(of, Discrete) else 2)


@pytest.mark.parametrize("space", ACTION_SPACES, ids=repr)
def test_an_onnx_file_of_a_random_agent_gives_the_same_actions(space: Space, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    policy, given = _random_policy(space)
    path = tmp_path / "policy.onnx"
    path.write_bytes(onnx_bytes(policy, policy_graph(policy), {**VERSIONS, **policy.describe()}, "A test."))
    outputs = policy.rows(given)
    actual = OnnxSession(path)(given)
    assert set(actual) == set(outputs)
    for name, values in actual.items():
        np.testing.assert_allclose(values, outputs[name], atol=1e-5)


class _Shuffling(RandomAgent):
    """Agent that samples in a form that exports do not support."""

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: jax.Array) -> Any:
        return jax.random.permutation(key, 3)[: len(sample_batch.obs)], PyTreeDict()


@pytest.mark.parametrize("sample", [False, True])
def test_other_random_numbers_are_refused(sample: bool) -> None:
    env = wrap_env(ActionEnv(Discrete(3)))
    agent_state = _Shuffling().init(env.obs_space, env.action_space, jax.random.key(0))
    with raises_naming(ValueError, "random numbers", "permutation", "uniform, normal, randint"):
        portable_policy(_Shuffling(), agent_state, env, sample)


def test_spaces_as_plain_data() -> None:
    low = np.array([-1.0, -np.inf], np.float32)
    space = DictSpace({"a": Discrete(3), "b": TupleSpace([Box(0, 255, (2, 2), np.uint8), Box(low, 5.0)])})
    assert described_space(space) == {
        "kind": "dict",
        "spaces": {
            "a": {"kind": "discrete", "n": 3},
            "b": {
                "kind": "tuple",
                "spaces": [
                    {"kind": "box", "shape": [2, 2], "dtype": "uint8", "low": 0, "high": 255},
                    {"kind": "box", "shape": [2], "dtype": "float32", "low": [-1.0, None], "high": 5.0},
                ],
            },
        },
    }
