"""The learning agent: networks and losses as methods, parameters outside in an ``AgentState``."""

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
    """What an agent learns.

    Attributes:
        params: network parameters, by network name.
        obs_preprocessor_state: running statistics of the observations; ``None`` where they are used as they come.
        extra_state: whatever else acting needs.
        recurrent_state: that of an episode that starts, leaves ``[*]``; ``None`` for agents that have none.
    """

    params: Params
    obs_preprocessor_state: RunningStatistics | None = None
    extra_state: Any = None
    recurrent_state: Any = None


class NoParts(PyTreeNode):
    """Settings of an agent of which nothing is built."""


class Agent(PyTreeNode):
    """How to act, and the losses by which acting improves. Methods are pure; ``AgentState`` carries what changes.

    Attributes:
        normalize_obs: normalise observations by running statistics.
    """

    normalize_obs: bool = pytree_field(static=True, default=False, kw_only=True)

    # Action spaces that it acts in.
    acts_in: ClassVar[ActionSpaces] = ActionSpaces.DISCRETE_AND_BOXES
    # Whether its ``actor_loss`` improves any policy of its kind by replayed steps, see ``agents.critic_ensemble``.
    improves_policies: ClassVar[bool] = False
    # What a config says of the parts below, as it is where the config is silent.
    part_settings: ClassVar[PyTreeNode] = NoParts()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Fields that a config's ``agent`` describes, above all networks, built for the spaces of ``env``.

        What is described is taken out of ``settings``, which has an entry for every one of ``part_settings``; what is
        left are values of the other fields.

        Raises:
            ValueError: a description makes no sense, in words.
        """
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None, env: Env) -> Self:
        """The agent that a config's ``agent`` describes, its networks built for the spaces of ``env``.

        Raises:
            ValueError: the algorithm cannot act in the action space, a key is unknown, or a value cannot work.
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
        """Refuse an action space in which this agent cannot act.

        Args:
            space: action space for agents, see ``evorl.envs.action_conversion``.
            env_space: action space of the environment itself, for the message; ``None`` for ``space``.

        Raises:
            ValueError: this agent cannot act there; the message names agents that can.
        """
        kind, env_space = kind_of(space), space if env_space is None else env_space
        if kind in cls.acts_in:
            return
        if kind is ActionSpaces.OTHERS:
            ActionConversion(env_space)  # says why no agent can
        bounds = ""
        if kind is ActionSpaces.UNBOUNDED_BOXES and ActionSpaces.BOUNDED_BOXES in cls.acts_in:
            bounds = (
                " Or give both ends of every dimension, such as Box(-10.0, 10.0), where the environment is defined."
            )
        raise ValueError(
            f"{_name_of(cls)} acts in {describe_kinds(cls.acts_in)}, and this environment's action space is "
            f"{env_space!r}. Agents that act in it: {', '.join(agents_acting_in(kind))}.{bounds}"
        )

    @classmethod
    def complete_config(cls, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The ``agent`` part of a config, with the class's values where it is silent."""
        config = plain(checked_mapping(config, "agent"))
        parts = type(cls.part_settings)
        of_parts = {name: value for name, value in config.items() if name in field_types(parts)}
        fields = completed(cls, {name: value for name, value in config.items() if name not in of_parts}, where="agent")
        built = {f.name for f in dataclasses.fields(cls) if f.metadata.get("built")}
        fields = {name: value for name, value in fields.items() if name in config or name not in built}
        return {**completed(parts, of_parts, cls.part_settings, "agent"), **fields}

    @abstractmethod
    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        """Fresh network parameters for these spaces, by network name."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """The first state for these spaces: fresh parameters, statistics of no observation yet."""
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        return AgentState(params=self.init_params(obs_space, action_space, key), obs_preprocessor_state=statistics)

    def at_progress(self, agent_state: AgentState, progress: jax.Array) -> AgentState:
        """The state that explores when this share of the training is over, for exploration that changes with it."""
        return agent_state

    @abstractmethod
    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Exploring actions for ``sample_batch.obs`` ``[B, ...]``, and what the learner wants to know of them.

        A recurrent agent reads its state in ``sample_batch.extras.recurrent_state``, and gives the next one as
        ``recurrent_state`` among the extras.

        ``key`` is one key for the batch, or one per row ``[B]``.
        """

    @abstractmethod
    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The actions the agent is most confident of; the same arguments and results as ``compute_actions``."""


def agents_acting_in(kind: ActionSpaces) -> list[str]:
    """The names of evorl's agents that act in spaces of this kind, sorted."""
    return sorted({_name_of(agent) for agent in shipped_agents() if kind in agent.acts_in})


def shipped_agents() -> set[type[Agent]]:
    """Return the classes of evorl's own agents. All algorithms are imported to find them."""
    modules = {Agent.__module__, *load_all("evorl.algorithms")}
    found, heirs = set(), Agent.__subclasses__()
    while heirs:
        agent = heirs.pop()
        heirs += agent.__subclasses__()
        if agent.__module__ in modules:
            found.add(agent)
    return found


def _name_of(agent: type[Agent]) -> str:
    return agent.__name__.removesuffix("Agent")


def select_observation(obs: Observation, key: str | None) -> Observation:
    """The entry ``key`` of a dict observation. For ``None`` all of it, as ``read_of_entries`` says.

    Raises:
        ValueError: the observation has no such entry, or no entries at all; or it cannot be joined with its goal.
    """
    if key is None:
        return read_of_entries(obs) if isinstance(obs, Mapping) else obs
    if not isinstance(obs, Mapping):
        raise ValueError(f"the observation is one array, it has no entry {key!r}: leave the observation key empty.")
    if key not in obs:
        there_are = f"There are: {', '.join(sorted(map(str, obs)))}."
        raise ValueError(f"the observation has no entry {key!r}.{did_you_mean(key, obs)} {there_are}")
    entries: Mapping[Any, Observation] = obs
    return entries[key]


def read_of_entries(obs: Mapping[str, Any]) -> Observation:
    """What of a dict observation is read where no entry is named: all but the action mask.

    One with goals is joined with the desired one. A single entry beside a mask is read as if there were no mask.
    """
    entries = obs
    if ACTION_MASK in obs:
        entries = PyTreeDict({name: entry for name, entry in obs.items() if name != ACTION_MASK})
    if set(entries) == GOAL_KEYS:
        return joined_with_goal(entries)
    return next(iter(entries.values())) if len(entries) == 1 < len(obs) else entries


def allowed_only(outputs: jax.Array, obs: Observation) -> jax.Array:
    """``outputs`` of discrete actions, ``-inf`` where the ``action_mask`` of an observation forbids the action.

    This is the one place where masks are read: for logits of policies, and for action values wherever one of them is
    chosen. Where a mask forbids everything, as it may once an episode has ended, nothing is forbidden.

    Args:
        outputs: a number for each action, ``[..., A]``.
        obs: observations ``[..., *observation]``; without an entry ``action_mask``, nonzero where an action is allowed,
            ``[..., A]``, the outputs are returned as they are.

    Raises:
        ValueError: the mask has another number of actions.
    """
    mask = obs.get(ACTION_MASK) if isinstance(obs, Mapping) else None
    if mask is None:
        return outputs
    if mask.shape[-1:] != outputs.shape[-1:]:
        raise ValueError(
            f"the observation's action_mask has the shape {mask.shape}, and the network's outputs {outputs.shape}: a "
            "mask has one entry for each discrete action."
        )
    mask = mask.astype(jnp.bool_)
    return jnp.where(mask | ~mask.any(axis=-1, keepdims=True), outputs, -jnp.inf)


def joined_with_goal(obs: Mapping[str, Any]) -> jax.Array:
    """What a network reads of an observation with goals: itself and the desired goal, ``[..., O + G]``.

    Raises:
        ValueError: the observation itself is no vector.
    """
    observation, goal = obs["observation"], obs["desired_goal"]
    if not hasattr(observation, "ndim") or observation.ndim != goal.ndim:
        raise ValueError(
            "a network joins the observation and the desired goal where both are vectors, and here they are "
            f"{jax.tree.map(jnp.shape, observation)} and {goal.shape}: name the entry that it reads (policy_obs_key, "
            "value_obs_key), or set env.flatten_obs=true."
        )
    return jnp.concatenate([as_float(observation), as_float(goal)], axis=-1)


def preprocess(agent_state: AgentState, obs: Observation, obs_key: str | None = None) -> jax.Array:
    """The array a network reads: observations normalised by the agent's statistics, then the entry ``obs_key``.

    This is the one place where observations are normalised, for acting, for losses and for evaluation.

    Raises:
        ValueError: the observation has no such entry.
    """
    if agent_state.obs_preprocessor_state is not None:
        obs = normalize(agent_state.obs_preprocessor_state, obs)
    return select_observation(obs, obs_key)


def action_distribution(action_space: Space, squashed: bool = True) -> ActionDistribution:
    """Return the distribution of a stochastic policy: categorical, or normal, squashed by tanh in bounded dimensions.

    Args:
        action_space: the space in which the agent acts.
        squashed: whether samples of the distribution are squashed; otherwise its ``squash`` does it.

    Raises:
        ValueError: the space is neither ``Discrete`` nor a flat ``Box``.
    """
    kind = kind_of(action_space)
    if kind is ActionSpaces.OTHERS:
        known = describe_kinds(ActionSpaces.DISCRETE_AND_BOXES)
        raise ValueError(f"policies have distributions over {known}, and this action space is {action_space!r}.")
    if kind is ActionSpaces.DISCRETE:
        return distribution_for(num_actions=num_outputs(action_space))
    bounded = bounded_dimensions(action_space)
    return distribution_for(action_size=num_outputs(action_space), squashed=squashed, bounded=bounded)


def one_observation(obs_space: Space, obs_key: str | None = None) -> jax.Array:
    """Zeros like one observation, or its entry ``obs_key``, with a leading axis: what networks are initialised by."""
    return jax.tree.map(lambda x: x[None], select_observation(obs_space.zeros(), obs_key))


def observation_ndim(obs_space: Space, obs_key: str | None) -> int:
    """The number of axes of one observation, or of its entry ``obs_key``.

    Raises:
        ValueError: the observation has no such entry, or has several and none is named.
    """
    obs = select_observation(obs_space.zeros(), obs_key)
    if not isinstance(obs, jax.Array):
        raise ValueError(
            f"observations here have several parts, {obs_space!r}, and a network reads one: name it by "
            "agent.policy_obs_key and agent.value_obs_key, or set env.flatten_obs=true."
        )
    return obs.ndim


class RandomAgent(Agent):
    """Acts uniformly at random in its action space. It has nothing to learn: the baseline and the warm-up."""

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.ANY

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        """None."""
        return PyTreeDict()

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """A state that knows the action space."""
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
    """A space inside an agent state: static, so the state stays a pytree of arrays."""

    space: Space = pytree_field(static=True)


def random_actions(action_space: Space, key: Key, num_rows: int, obs: Observation = None) -> Action:
    """Uniform actions ``[num_rows, ...]`` of those that ``obs`` allows; ``key`` is one for all or one per row."""
    keys = jax.random.split(key, num_rows) if key.ndim == 0 else key
    has_mask = isinstance(obs, Mapping) and ACTION_MASK in obs
    return _random_allowed(num_outputs(action_space), keys, obs) if has_mask else jax.vmap(action_space.sample)(keys)


def _random_allowed(num_actions: int, keys: Key, obs: Observation) -> jax.Array:
    return Categorical(allowed_only(jnp.zeros((*keys.shape, num_actions)), obs)).sample(keys)
