"""Agents: networks and losses as methods; the parameters are kept outside, in an ``AgentState``."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from evorl.config.defaults import completed
from evorl.config.names import did_you_mean, load_all
from evorl.config.nodes import node_from_config, node_type, plain
from evorl.config.values import checked_mapping, checked_value, field_types
from evorl.distributions import ActionDistribution, Categorical, distribution_for
from evorl.envs.action_conversion import ActionConversion, seen_by_agents
from evorl.envs.action_spaces import ActionSpaces, bounded_dimensions, describe_kinds, kind_of, num_outputs
from evorl.envs.env import Env
from evorl.envs.space import ACTION_MASK, GOAL_KEYS, Space
from evorl.networks.inputs import as_float
from evorl.ops.normalization import RunningStatistics, init_statistics, normalize
from evorl.ops.random import as_typed_key
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeData, PyTreeDict, PyTreeNode, pytree_field


class AgentState(PyTreeData):
    """Learned state of an agent.

    Attributes:
        params: network parameters, by network name.
        obs_preprocessor_state: running statistics of the observations; ``None`` without normalisation.
        extra_state: further state needed for acting.
        recurrent_state: recurrent state at the start of an episode, leaves ``[*]``; ``None`` for non-recurrent agents.
    """

    params: Params
    obs_preprocessor_state: RunningStatistics | None = None
    extra_state: Any = None
    recurrent_state: Any = None


class NoParts(PyTreeNode):
    """Settings of an agent that builds no parts."""


class Agent(PyTreeNode):
    """Policy and losses of an algorithm. Methods are pure; everything that changes is in ``AgentState``.

    Attributes:
        normalize_obs: normalise observations by running statistics.
    """

    normalize_obs: bool = pytree_field(static=True, default=False, kw_only=True)

    # Supported action spaces.
    acts_in: ClassVar[ActionSpaces] = ActionSpaces.DISCRETE_AND_BOXES
    # Settings of the parts that ``parts`` builds, with their defaults.
    part_settings: ClassVar[PyTreeNode] = NoParts()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Build the fields that a config's ``agent`` describes, mainly networks, for the spaces of ``env``.

        Removes the entries it uses from ``settings``, which has an entry for every field of ``part_settings``; the
        remaining entries are values of the other fields.

        Raises:
            ValueError: a description is invalid; the message explains it.
        """
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None, env: Env) -> Self:
        """Return the agent that a config's ``agent`` describes, with networks built for the spaces of ``env``.

        Raises:
            ValueError: the action space is unsupported, a key is unknown, or a value is invalid.
        """
        env_space = getattr(env, "unwrapped", env).action_space
        env = seen_by_agents(env)
        cls.check_action_space(env.action_space, env_space)
        settings = cls.complete_config(config)
        for name, annotation in field_types(type(cls.part_settings)).items():
            expected = Mapping if node_type(annotation) is not None else annotation
            settings[name] = checked_value(settings[name], expected, f"agent.{name}")
        parts = cls.parts(settings, env)
        return node_from_config(cls, settings, "agent", **parts)

    @classmethod
    def check_action_space(cls, space: Space, env_space: Space | None = None) -> None:
        """Raise an error if this agent does not support an action space.

        Args:
            space: action space as agents see it, see ``evorl.envs.action_conversion``.
            env_space: action space of the environment itself, for the message; defaults to ``space``.

        Raises:
            ValueError: the space is unsupported; the message lists the agents that support it.
        """
        kind, env_space = kind_of(space), space if env_space is None else env_space
        if kind in cls.acts_in:
            return
        if kind is ActionSpaces.OTHERS:
            ActionConversion(env_space)  # raises the error that explains why no agent supports it
        bounds = ""
        if kind is ActionSpaces.UNBOUNDED_BOXES and ActionSpaces.BOUNDED_BOXES in cls.acts_in:
            bounds = (
                " Or give both ends of every dimension, such as Box(-10.0, 10.0), where the environment is defined."
            )
        raise ValueError(
            f"{_name_of(cls)} acts in {describe_kinds(cls.acts_in)}, but this environment's action space is "
            f"{env_space!r}. Agents that act in it: {', '.join(agents_acting_in(kind))}.{bounds}"
        )

    @classmethod
    def complete_config(cls, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the ``agent`` part of a config, completed with the class's defaults."""
        config = plain(checked_mapping(config, "agent"))
        parts = type(cls.part_settings)
        part_values = {name: value for name, value in config.items() if name in field_types(parts)}
        fields = completed(
            cls, {name: value for name, value in config.items() if name not in part_values}, where="agent"
        )
        built = {f.name for f in dataclasses.fields(cls) if f.metadata.get("built")}
        fields = {name: value for name, value in fields.items() if name in config or name not in built}
        return {**completed(parts, part_values, cls.part_settings, "agent"), **fields}

    @abstractmethod
    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        """Return fresh network parameters for these spaces, by network name."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Return the initial state for these spaces: fresh parameters and empty observation statistics."""
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        return AgentState(params=self.init_params(obs_space, action_space, key), obs_preprocessor_state=statistics)

    def at_progress(self, agent_state: AgentState, progress: jax.Array) -> AgentState:
        """Return the state with exploration set for ``progress``, the completed fraction of training in [0, 1]."""
        return agent_state

    @abstractmethod
    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return exploratory actions for ``sample_batch.obs`` ``[B, ...]``, and extras for the learner.

        A recurrent agent reads its state from ``sample_batch.extras.recurrent_state`` and returns the next one as
        ``recurrent_state`` in the extras.

        ``key`` is one key for the batch, or one per environment ``[B]``.
        """

    @abstractmethod
    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return greedy actions, with the arguments and results of ``compute_actions``."""


def agents_acting_in(kind: ActionSpaces) -> list[str]:
    """Return the sorted names of evorl's agents that support ``kind``. Imports every algorithm."""
    modules = {Agent.__module__, *load_all("evorl.algorithms")}
    names, subclasses = set(), Agent.__subclasses__()
    while subclasses:
        agent = subclasses.pop()
        subclasses += agent.__subclasses__()
        if agent.__module__ in modules and kind in agent.acts_in:
            names.add(_name_of(agent))
    return sorted(names)


def _name_of(agent: type[Agent]) -> str:
    return agent.__name__.removesuffix("Agent")


def select_observation(obs: Observation, key: str | None) -> Observation:
    """Return the entry ``key`` of a dict observation; with ``None``, all entries that ``read_of_entries`` selects.

    Raises:
        ValueError: the entry does not exist, the observation is not a dict, or it cannot be joined with its goal.
    """
    if key is None:
        return read_of_entries(obs) if isinstance(obs, Mapping) else obs
    if not isinstance(obs, Mapping):
        raise ValueError(f"the observation is one array, it has no entry {key!r}: leave the observation key empty.")
    if key not in obs:
        available = f"There are: {', '.join(sorted(map(str, obs)))}."
        raise ValueError(f"the observation has no entry {key!r}.{did_you_mean(key, obs)} {available}")
    entries: Mapping[Any, Observation] = obs
    return entries[key]


def read_of_entries(obs: Mapping[str, Any]) -> Observation:
    """Return the part of a dict observation that networks read if no entry is named: all but the action mask.

    Observations with goals are joined with the desired goal. If the mask accompanies a single entry, that entry is
    returned by itself.
    """
    entries = obs
    if ACTION_MASK in obs:
        entries = PyTreeDict({name: entry for name, entry in obs.items() if name != ACTION_MASK})
    if set(entries) == GOAL_KEYS:
        return joined_with_goal(entries)
    return next(iter(entries.values())) if len(entries) == 1 < len(obs) else entries


def allowed_only(outputs: jax.Array, obs: Observation) -> jax.Array:
    """Set ``outputs`` of discrete actions to ``-inf`` where the ``action_mask`` of an observation forbids the action.

    No other function applies masks: it serves policy logits, and action values before an action is selected. A mask
    that forbids every action, as it may after the end of an episode, is ignored.

    Args:
        outputs: one value per action, ``[..., A]``.
        obs: observations ``[..., *observation]``; the entry ``action_mask`` ``[..., A]`` is nonzero where an action is
            allowed. Without that entry, the outputs are returned unchanged.

    Raises:
        ValueError: the mask and the outputs differ in the number of actions.
    """
    mask = obs.get(ACTION_MASK) if isinstance(obs, Mapping) else None
    if mask is None:
        return outputs
    if mask.shape[-1:] != outputs.shape[-1:]:
        raise ValueError(
            f"the observation's action_mask has shape {mask.shape}, but the network's outputs have {outputs.shape}: a "
            "mask has one entry for each discrete action."
        )
    mask = mask.astype(jnp.bool_)
    return jnp.where(mask | ~mask.any(axis=-1, keepdims=True), outputs, -jnp.inf)


def joined_with_goal(obs: Mapping[str, Any]) -> jax.Array:
    """Concatenate an observation and its desired goal, ``[..., O + G]``.

    Raises:
        ValueError: the observation is not a vector.
    """
    observation, goal = obs["observation"], obs["desired_goal"]
    if not hasattr(observation, "ndim") or observation.ndim != goal.ndim:
        raise ValueError(
            "the observation and the desired goal are concatenated and must both be vectors, but they "
            f"are {jax.tree.map(jnp.shape, observation)} and {goal.shape}: name the entry to read (policy_obs_key, "
            "value_obs_key), or set env.flatten_obs=true."
        )
    return jnp.concatenate([as_float(observation), as_float(goal)], axis=-1)


def preprocess(agent_state: AgentState, obs: Observation, obs_key: str | None = None) -> jax.Array:
    """Return the input of a network: normalised observations, then the entry ``obs_key``.

    No other function normalises observations: it serves acting, losses and evaluation.

    Raises:
        ValueError: the observation has no such entry.
    """
    if agent_state.obs_preprocessor_state is not None:
        obs = normalize(agent_state.obs_preprocessor_state, obs)
    return select_observation(obs, obs_key)


def action_distribution(action_space: Space, squashed: bool = True) -> ActionDistribution:
    """Return the distribution of a stochastic policy: categorical, or normal, squashed by tanh in bounded dimensions.

    Args:
        action_space: action space of the agent.
        squashed: if true, samples are squashed; otherwise call ``ActionDistribution.squash`` on them.

    Raises:
        ValueError: the space is neither ``Discrete`` nor a flat ``Box``.
    """
    kind = kind_of(action_space)
    if kind is ActionSpaces.OTHERS:
        known = describe_kinds(ActionSpaces.DISCRETE_AND_BOXES)
        raise ValueError(f"policies have distributions over {known}, but this action space is {action_space!r}.")
    if kind is ActionSpaces.DISCRETE:
        return distribution_for(num_actions=num_outputs(action_space))
    bounded = bounded_dimensions(action_space)
    return distribution_for(action_size=num_outputs(action_space), squashed=squashed, bounded=bounded)


def one_observation(obs_space: Space, obs_key: str | None = None) -> jax.Array:
    """Return zeros like one observation or its entry ``obs_key``, with a batch axis, to initialise networks."""
    return jax.tree.map(lambda x: x[None], select_observation(obs_space.zeros(), obs_key))


def observation_ndim(obs_space: Space, obs_key: str | None) -> int:
    """Return the number of axes of one observation or of its entry ``obs_key``.

    Raises:
        ValueError: the entry does not exist, or the observation has several entries and none is named.
    """
    obs = select_observation(obs_space.zeros(), obs_key)
    if not isinstance(obs, jax.Array):
        raise ValueError(
            f"observations have several entries, {obs_space!r}, and a network reads one: name it with "
            "agent.policy_obs_key and agent.value_obs_key, or set env.flatten_obs=true."
        )
    return obs.ndim


class RandomAgent(Agent):
    """Samples actions uniformly and learns nothing: a baseline, and the policy during warm-up."""

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.ANY

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        """Return an empty dict."""
        return PyTreeDict()

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Return a state that holds the action space."""
        return AgentState(params=PyTreeDict(), extra_state=_ActionSpace(action_space))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        num_rows = jax.tree.leaves(sample_batch.obs)[0].shape[0]
        return random_actions(
            agent_state.extra_state.space, as_typed_key(key), num_rows, sample_batch.obs
        ), PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        return self.compute_actions(agent_state, sample_batch, key)


class _ActionSpace(PyTreeData):
    """Action space inside an agent state: static, so that the state remains a pytree of arrays."""

    space: Space = pytree_field(static=True)


def random_actions(action_space: Space, key: Key, num_rows: int, obs: Observation = None) -> Action:
    """Sample allowed actions ``[num_rows, ...]`` uniformly; ``key`` is one key or one per row, ``[num_rows]``."""
    keys = jax.random.split(key, num_rows) if key.ndim == 0 else key
    has_mask = isinstance(obs, Mapping) and ACTION_MASK in obs
    return _random_allowed(num_outputs(action_space), keys, obs) if has_mask else jax.vmap(action_space.sample)(keys)


def _random_allowed(num_actions: int, keys: Key, obs: Observation) -> jax.Array:
    return Categorical(allowed_only(jnp.zeros((*keys.shape, num_actions)), obs)).sample(keys)
