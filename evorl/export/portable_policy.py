"""A policy as one pure function of named arrays, including its normalizer, memory and environment wrappers."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import Agent, AgentState
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace, leaf_values
from evorl.envs.vector import VectorEnv
from evorl.envs.wrapped_row import WrappedRow
from evorl.export.inlined_program import RANDOM, Opened
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict

OBS, ACTION, MEMORY, SCORES = "obs", "action", "memory", "action_scores"
NEXT = "next_"


class Port(NamedTuple):
    """Name, shape and dtype of an input or output array of a policy.

    Attributes:
        name: a valid Python identifier.
        shape: shape without the batch axis.
        dtype: NumPy dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class PortablePolicy:
    """One step of a policy as a pure function of a single observation; all arrays have fixed shapes.

    Inputs are observations of the environment without wrappers, the memory (zeros at the start of an episode) and, for
    a policy that samples, random numbers. Outputs are the action in the environment's own range, the next memory and,
    if the action is the argmax over a Discrete space, the maximized scores (``action_scores``).

    Attributes:
        observations: one port for each array of an observation.
        memory: one port for each array of the memory.
        draws: one port for each array of random numbers.
        kinds: distribution of each of ``draws``: ``uniform`` in [0, 1), or ``normal`` of mean 0 and variance 1.
        results: one port for each array of the action, then one for ``action_scores`` if the policy has scores.
        row: ``row(*inputs)`` returns the outputs; all are arrays without batch axis, in the order of the ports.
        obs_space: observation space of the environment without wrappers.
        action_space: action space of the environment without wrappers.
        action_repeat: number of environment steps per action.
        normalizer: mean and standard deviation of each of ``observations``; ``None`` if not known in these shapes.
    """

    observations: tuple[Port, ...]
    memory: tuple[Port, ...]
    draws: tuple[Port, ...]
    kinds: tuple[str, ...]
    results: tuple[Port, ...]
    row: Callable[..., tuple[jax.Array, ...]]
    obs_space: Space
    action_space: Space
    action_repeat: int = 1
    normalizer: tuple[tuple[np.ndarray, np.ndarray], ...] | None = None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Ports of all inputs: observations, memory, draws."""
        return (*self.observations, *self.memory, *self.draws)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Ports of all outputs: results, then the next memory, ``next_<name>``."""
        return (*self.results, *(port._replace(name=NEXT + port.name) for port in self.memory))

    @property
    def has_scores(self) -> bool:
        """True if the outputs include scores whose argmax is the action."""
        return self.results[-1].name == SCORES

    def rows(self, inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Map inputs ``[B, ...]`` by name to outputs ``[B, ...]`` by name; can be used with ``jax.jit``."""
        outputs = jax.vmap(self.row)(*(inputs[port.name] for port in self.inputs))
        return {port.name: output for port, output in zip(self.outputs, outputs, strict=True)}

    def runnable(self) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
        """Return ``rows``, compiled by ``jax.jit`` once per batch size."""
        return jax.jit(self.rows)

    def initial_memory(self, num_rows: int) -> dict[str, np.ndarray]:
        """Return the memory at the start of episodes: zeros ``[num_rows, ...]`` by name."""
        return {port.name: np.zeros((num_rows, *port.shape), port.dtype) for port in self.memory}

    def drawn(self, rng: np.random.Generator, num_rows: int) -> dict[str, np.ndarray]:
        """Sample the random numbers of one step: float32 arrays ``[num_rows, ...]`` by name."""
        numbers = {}
        for port, kind in zip(self.draws, self.kinds, strict=True):
            draw = rng.random if kind == "uniform" else rng.standard_normal
            numbers[port.name] = draw((num_rows, *port.shape), np.float32)
        return numbers

    def arrays_of(self, obs: Any) -> dict[str, Any]:
        """Return the arrays of an observation by name, for any batch size."""
        return dict(zip((port.name for port in self.observations), leaf_values(self.obs_space, obs), strict=True))

    def action_of(self, outputs: Mapping[str, Any]) -> Any:
        """Return the action among the outputs, in the structure of the action space."""
        names = [port.name for port in self.results if port.name != SCORES]
        structure = jax.tree.structure(self.action_space.spec)
        return jax.tree.unflatten(structure, [outputs[name] for name in names])

    def describe_repeat(self) -> str:
        """Return text that states ``action_repeat``, to append to a description; empty if it is 1."""
        return f", one action per {self.action_repeat} environment steps" if self.action_repeat > 1 else ""

    def describe(self) -> dict[str, Any]:
        """Return JSON data about inputs, outputs, memory, random numbers, spaces and action repeat."""

        def ports(ports: tuple[Port, ...]) -> list[dict[str, Any]]:
            return [{"name": p.name, "shape": ["rows", *p.shape], "dtype": p.dtype.name} for p in ports]

        return {
            "inputs": ports(self.inputs),
            "outputs": ports(self.outputs),
            "memory": {port.name: NEXT + port.name for port in self.memory},
            "random": {port.name: kind for port, kind in zip(self.draws, self.kinds, strict=True)},
            "observation_space": described_space(self.obs_space),
            "action_space": described_space(self.action_space),
            "action_repeat": self.action_repeat,
        }


def portable_policy(agent: Agent, agent_state: AgentState, env: VectorEnv, sample: bool = False) -> PortablePolicy:
    """Build the portable policy of an agent for the environments inside the wrappers of ``env``.

    Args:
        agent: the agent.
        agent_state: trained state of the agent.
        env: environments that the agent acts in; only their spaces and wrappers are read.
        sample: sample actions as in training (``compute_actions``) instead of greedy actions.

    Raises:
        ValueError: the agent always samples its actions, and ``sample`` is False; or its sampling cannot be exported.
    """
    wrapped = WrappedRow(env)
    remembered = PyTreeDict(recurrent=agent_state.recurrent_state, frames=wrapped.initial_memory())
    memory = _ports(MEMORY, remembered)
    observations = _ports(OBS, wrapped.obs_space.spec)
    obs_structure, memory_structure = (jax.tree.structure(tree) for tree in (wrapped.obs_space.spec, remembered))
    act = agent.compute_actions if sample else agent.evaluate_actions

    def step(*arrays: jax.Array) -> list[jax.Array]:
        obs = obs_structure.unflatten(arrays[: len(observations)])
        before = memory_structure.unflatten(arrays[len(observations) :])
        seen, frames = wrapped.seen(obs, before.frames)
        batch, recurrent = jax.tree.map(lambda x: x[None], (seen, before.recurrent))
        extras = PyTreeDict() if recurrent is None else PyTreeDict(recurrent_state=recurrent)
        actions, extras_out = act(agent_state, SampleBatch(obs=batch, extras=extras), jax.random.key(0))
        recurrent = None if recurrent is None else jax.tree.map(lambda x: x[0], extras_out["recurrent_state"])
        action = wrapped.done(jax.tree.map(lambda x: x[0], actions), obs)
        return [*jax.tree.leaves(action), *jax.tree.leaves(PyTreeDict(recurrent=recurrent, frames=frames))]

    with jax.default_matmul_precision("highest"):  # so that a GPU computes the same as a CPU
        opened = Opened(step, [jax.ShapeDtypeStruct(port.shape, port.dtype) for port in (*observations, *memory)])
    if opened.draws and not sample:
        raise ValueError(
            f"{type(agent).__name__} samples its actions even in evaluations, so it has no greedy actions: "
            "set sample=true."
        )
    draws = tuple(Port(f"random_{i}", d.shape, np.dtype(d.dtype)) for i, d in enumerate(opened.draws))
    actions = _ports(ACTION, wrapped.action_space.spec, {SCORES})
    needed = _needed_memory(opened, len(actions), len(observations))
    row = _row(opened, observations, memory, needed, wrapped.action_space)
    memory = tuple(memory[i] for i in needed)
    specs = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in (*observations, *memory, *draws)]
    outputs = jax.eval_shape(row, *specs)
    has_scores = len(outputs) > len(actions) + len(memory)
    return PortablePolicy(
        observations,
        memory,
        draws,
        tuple(draw.kind for draw in opened.draws),
        (*actions, Port(SCORES, outputs[1].shape, np.dtype(outputs[1].dtype))) if has_scores else actions,
        row,
        wrapped.obs_space,
        wrapped.action_space,
        wrapped.action_repeat,
        _normalizer(agent_state, observations),
    )


def _needed_memory(opened: Opened, num_actions: int, num_observations: int) -> list[int]:
    """Return the sorted indices of the memory arrays that the current action or a later one depends on."""
    origins = opened.origins()
    needed: set[int] = set()
    sources = set().union(*origins[:num_actions])
    while sources:
        if RANDOM in sources:
            raise ValueError(
                "the actions depend on random numbers that an export cannot take as inputs (jax.random.bits, "
                "permutation, gamma, or draws in loops): sample with uniform, normal, randint or functions of these, "
                "such as categorical, outside of loops."
            )
        new = {i - num_observations for i in sources if i >= num_observations} - needed
        needed |= new
        sources = set().union(*(origins[num_actions + i] for i in new))
    return sorted(needed)


def _row(
    opened: Opened, observations: tuple[Port, ...], memory: tuple[Port, ...], needed: list[int], space: Space
) -> Callable[..., tuple[jax.Array, ...]]:
    """Return ``PortablePolicy.row``. Its memory inputs are ``memory[i]`` for i in ``needed``; other memory is zeros."""

    def row(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        num_observations, num_inputs = len(observations), len(observations) + len(needed)
        before = [jnp.zeros(port.shape, port.dtype) for port in memory]
        for i, x in zip(needed, arrays[num_observations:num_inputs], strict=True):
            before[i] = x
        outputs, chosen_from = opened((*arrays[:num_observations], *before), arrays[num_inputs:])
        num_actions = len(outputs) - len(memory)
        results, after = outputs[:num_actions], outputs[num_actions:]
        if isinstance(space, Discrete) and chosen_from[0] is not None and chosen_from[0].size == space.n:
            results.append(jnp.reshape(chosen_from[0], (space.n,)))
        return (*results, *(after[i] for i in needed))

    return row


def _normalizer(agent_state: AgentState, ports: tuple[Port, ...]) -> Any:
    """Return mean and standard deviation for each port; ``None`` unless the agent has statistics of those shapes."""
    statistics = agent_state.obs_preprocessor_state
    if statistics is None:
        return None
    means, variances = (jax.tree.leaves(tree) for tree in (statistics.mean, statistics.variance))
    if [np.shape(mean) for mean in means] != [port.shape for port in ports]:
        return None
    return tuple((np.asarray(m), np.sqrt(np.asarray(v))) for m, v in zip(means, variances, strict=True))


def _ports(name: str, tree: Any, reserved: Collection[str] = ()) -> tuple[Port, ...]:
    """Return a port per leaf; its name, from its path in the tree, is a unique ASCII identifier not in ``reserved``."""
    ports, taken = [], set(reserved)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        parts = [name, *(jax.tree_util.keystr((entry,), simple=True) for entry in path)]
        plain = re.sub(r"[^0-9A-Za-z]", "_", "_".join(parts))
        others = (f"{plain}_{i}" for i in itertools.count(2))
        unique = next(each for each in itertools.chain([plain], others) if each not in taken)
        taken.add(unique)
        ports.append(Port(unique, tuple(leaf.shape), np.dtype(leaf.dtype)))
    return tuple(ports)


def described_space(space: Space) -> dict[str, Any]:
    """Describe a space as JSON data, which ``exported_policy.space_of`` reads; infinite bounds become ``None``."""
    if isinstance(space, DictSpace):
        return {"kind": "dict", "spaces": {name: described_space(s) for name, s in space.spaces.items()}}
    if isinstance(space, TupleSpace):
        return {"kind": "tuple", "spaces": [described_space(s) for s in space.spaces]}
    if isinstance(space, Discrete):
        start = {"start": space.start} if space.start else {}
        return {"kind": "discrete", "n": space.n, **start}
    if isinstance(space, MultiDiscrete):
        sizes, start = space.sizes.tolist(), space.start.tolist()
        return {"kind": "multi_discrete", "sizes": sizes, "start": start, "dtype": space.dtype.name}
    if isinstance(space, Box):
        low, high = (_bounds(bound) for bound in (space.low, space.high))
        return {"kind": "box", "shape": list(space.shape), "dtype": space.dtype.name, "low": low, "high": high}
    return {"kind": repr(space)}


def _bounds(bound: np.ndarray) -> Any:
    """Return bounds as nested lists, or as one number if all are equal; ``None`` replaces infinities."""
    numbers = np.asarray(bound, object)
    numbers[~np.isfinite(np.asarray(bound, np.float64))] = None
    is_one = bool(bound.size) and bool(np.all(bound == bound.flat[0]))
    return numbers.flat[0] if is_one else numbers.tolist()
