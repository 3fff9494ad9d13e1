"""A small JAX environment for an HTML page: its step function in JavaScript, and some initial states."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agents.random_actions import random_actions
from evorl.envs.env import EnvState, PhysicsEnv
from evorl.envs.vector import VectorEnv
from evorl.envs.wrapped_row import WrappedRow
from evorl.export.graph import NoRule
from evorl.export.inlined_program import Opened
from evorl.export.javascript import function_text
from evorl.export.portable_policy import NEXT, PortablePolicy
from evorl.export.trace import traced_graph
from evorl.ops.trees import tree_where

NUM_STARTS = 20
MAX_NUMBERS = 10_000  # size limit of a state, in numbers
STATE = "state"
_STEPS_BETWEEN = 5


@dataclasses.dataclass(frozen=True)
class PageEnvironment:
    """An environment that a page can run, with deterministic steps.

    Attributes:
        program: source of the JavaScript function ``environment``, which maps state and action to the next
            observation, ``reward``, ``termination``, ``truncation`` and the next state.
        inputs: names of the function's inputs.
        outputs: names of the function's outputs.
        starts: ``NUM_STARTS`` starts of episodes, each with its observation and state: arrays by name.
        limit: time limit of an episode in environment steps; ``None`` without a limit.
    """

    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    starts: list[dict[str, np.ndarray]]
    limit: int | None


def page_environment(policy: PortablePolicy, env: VectorEnv) -> PageEnvironment | None:
    """Return the environment inside the wrappers of ``env``, in a form that a page can run.

    Returns:
        The environment; ``None`` if it is not written in JAX, has several agents, simulates physics, has random keys or
        more than ``MAX_NUMBERS`` numbers in its state, has random steps, or has an unsupported operation.
    """
    inner = (row := WrappedRow(env)).inner
    if env.steps_on_host or env.num_agents > 1 or isinstance(inner, PhysicsEnv):
        return None
    keys = jax.random.split(jax.random.key(0), NUM_STARTS)
    first = jax.eval_shape(inner.reset, keys[0])
    leaves, structure = jax.tree.flatten(_dynamic_state(first))
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
        return None
    if sum(leaf.size for leaf in leaves) > MAX_NUMBERS:
        return None
    actions = jax.tree.structure(inner.action_space.spec)

    def step(*arrays: jax.Array) -> list[jax.Array]:
        dynamic = structure.unflatten(arrays[: len(leaves)])
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), first)
        before = blank.replace(env_state=dynamic[0], _internal=dynamic[1])
        after = inner.step(before, actions.unflatten(arrays[len(leaves) :]))
        truncation = after.info.truncation
        termination = after.info.termination | (after.done & ~truncation)  # ``done`` without a flag is a termination
        outputs = [*jax.tree.leaves(after.obs), after.reward, termination, truncation]
        return [*outputs, *jax.tree.leaves(_dynamic_state(after))]

    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (*leaves, *jax.tree.leaves(inner.action_space.spec))]
    names = tuple(f"{STATE}_{i}" for i in range(len(leaves)))
    observed = tuple(port.name for port in policy.observations)
    acts = tuple(port.name for port in policy.results[: actions.num_leaves])
    inputs, flags = (*names, *acts), ("termination", "truncation")
    outputs = (*observed, "reward", *flags, *(NEXT + name for name in names))
    try:
        opened = Opened(step, specs)
        if opened.draws:
            return None
        graph = traced_graph(lambda *arrays: opened(arrays, ())[0], specs, None)
        program = function_text("environment", graph, inputs, outputs)
    except NoRule:
        return None
    starts = jax.jit(jax.vmap(lambda key: _started(inner.reset(key))))(keys)
    return PageEnvironment(
        program,
        inputs,
        outputs,
        [dict(zip((*observed, *names), (np.asarray(x[i]) for x in starts), strict=True)) for i in range(NUM_STARTS)],
        row.max_episode_steps,
    )


def random_observations(env: VectorEnv) -> list[list[np.ndarray]] | None:
    """Collect ``NUM_STARTS`` observations of a JAX environment with a random policy.

    Returns:
        For each observation, the list of its arrays. ``None`` if the environment is not written in JAX, has several
        agents, or simulates physics, which would take long to compile.
    """
    inner = WrappedRow(env).inner
    if env.steps_on_host or env.num_agents > 1 or isinstance(inner, PhysicsEnv):
        return None

    def turn(state: EnvState, key: jax.Array) -> tuple[EnvState, Any]:
        obs = jax.tree.map(lambda x: x[None], state.obs)
        after = inner.step(state, jax.tree.map(lambda x: x[0], random_actions(inner.action_space, key, 1, obs)))
        state = tree_where(after.done, inner.reset(key), after)
        return state, state.obs

    keys = jax.random.split(jax.random.key(1), _STEPS_BETWEEN * NUM_STARTS)
    seen = jax.jit(lambda: jax.lax.scan(turn, inner.reset(jax.random.key(0)), keys)[1])()
    leaves = [np.asarray(x)[::_STEPS_BETWEEN] for x in jax.tree.leaves(seen)]
    return [[x[i] for x in leaves] for i in range(NUM_STARTS)]


def _dynamic_state(state: EnvState) -> tuple[Any, Any]:
    """Return the entries of a state that the next step reads."""
    return state.env_state, state._internal


def _started(state: EnvState) -> list[jax.Array]:
    return [*jax.tree.leaves(state.obs), *jax.tree.leaves(_dynamic_state(state))]
