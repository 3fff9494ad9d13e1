"""Base class of agents: methods apply networks and compute losses, and an ``AgentState`` holds the parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax

from evorl.config.names import load_all
from evorl.config.nodes import completed, named_section, node_from_config, node_type
from evorl.config.values import checked_mapping, checked_value, field_types, plain
from evorl.distributions import ActionDistribution, distribution_for
from evorl.envs.action_conversion import ActionConversion, with_agent_actions
from evorl.envs.action_spaces import ActionSpaces, bounded_dimensions, describe_kinds, kind_of, num_outputs
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.ops.normalization import RunningStatistics, init_statistics
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Params, PolicyExtras, PyTreeData, PyTreeDict, PyTreeNode, pytree_field

_BASELINE = "evorl.agents.random_actions"  # module of the only agent that does not belong to an algorithm


class AgentState(PyTreeData):
    """Learned state of an agent.

    Attributes:
        params: network parameters, by network name.
        obs_preprocessor_state: running statistics of the observations; ``None`` without normalization.
        extra_state: other state of the agent, such as the current epsilon or statistics of batch normalization.
        recurrent_state: recurrent state for one environment when an episode starts, zeros; ``None`` if not recurrent.
    """

    params: Params
    obs_preprocessor_state: RunningStatistics | None = None
    extra_state: Any = None
    recurrent_state: Any = None


class NoParts(PyTreeNode):
    """Empty ``part_settings``, for agents whose ``parts`` reads no settings."""


class Agent(PyTreeNode):
    """Policy and losses of an algorithm. Methods are pure; everything that changes is in ``AgentState``.

    Attributes:
        normalize_obs: normalize observations by their running mean and standard deviation.
    """

    normalize_obs: bool = pytree_field(static=True, default=False, kw_only=True)

    # Supported action spaces.
    acts_in: ClassVar[ActionSpaces] = ActionSpaces.DISCRETE_AND_BOXES
    # True if ``actor_loss`` can improve other policies on replayed transitions, see ``agents.critic_ensemble``.
    improves_policies: ClassVar[bool] = False
    learns: ClassVar[bool] = True  # False for baselines without parameters
    # Settings that ``parts`` reads, with their defaults.
    part_settings: ClassVar[PyTreeNode] = NoParts()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Return the fields, by name, that a config's ``agent`` describes, mainly networks for the spaces of ``env``.

        ``settings`` has an entry for every field of ``part_settings``. The method removes the entries that it uses; the
        remaining entries are values of other fields.

        Raises:
            ValueError: a setting is invalid.
        """
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None, env: Env) -> Self:
        """Return the agent that a config's ``agent`` describes, with networks built for the spaces of ``env``.

        Raises:
            ValueError: the action space is unsupported, a key is unknown, or a value is invalid.
        """
        env_space = getattr(env, "unwrapped", env).action_space
        env = with_agent_actions(env)
        cls.check_action_space(env.action_space, env_space)
        settings = cls.complete_config(config)
        for name, annotation in field_types(type(cls.part_settings)).items():
            expected = Mapping if node_type(annotation) is not None else annotation
            settings[name] = checked_value(settings[name], expected, f"agent.{name}")
        with named_section("agent"):
            return node_from_config(cls, settings, "agent", **cls.parts(settings, env))

    @classmethod
    def check_action_space(cls, space: Space, env_space: Space | None = None) -> None:
        """Raise an error if this agent does not support an action space.

        Args:
            space: action space in which agents act, see ``evorl.envs.action_conversion``.
            env_space: action space of the environment itself, for the message; defaults to ``space``.

        Raises:
            ValueError: the space is unsupported; the message explains why, or lists the agents that support it.
        """
        kind, env_space = kind_of(space), space if env_space is None else env_space
        if kind in cls.acts_in:
            return
        if kind is ActionSpaces.OTHERS:
            ActionConversion(env_space)  # raises the error that explains why no agent supports it
        bounds = ""
        if kind is ActionSpaces.UNBOUNDED_BOXES and ActionSpaces.BOUNDED_BOXES in cls.acts_in:
            bounds = (
                " Or bound every dimension on both sides in the environment's action space, as in Box(-10.0, 10.0)."
            )
        raise ValueError(
            f"{_name_of(cls)} acts in {describe_kinds(cls.acts_in)}, but this environment's action space is "
            f"{env_space!r}. Agents that act in it: {', '.join(agents_acting_in(kind))}.{bounds}"
        )

    @classmethod
    def complete_config(cls, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return ``config``, the section ``agent`` of a run's config, completed with the defaults of this class."""
        config = plain(checked_mapping(config, "agent"))
        parts = type(cls.part_settings)
        part_values = {name: value for name, value in config.items() if name in field_types(parts)}
        fields = completed(
            cls, {name: value for name, value in config.items() if name not in part_values}, where="agent"
        )
        return {**completed(parts, part_values, cls.part_settings, "agent"), **fields}

    @abstractmethod
    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        """Return initial network parameters for these spaces, by network name."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Return the initial state for these spaces: new parameters and, if used, empty observation statistics."""
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        return AgentState(params=self.init_params(obs_space, action_space, key), obs_preprocessor_state=statistics)

    def at_progress(self, agent_state: AgentState, progress: jax.Array) -> AgentState:
        """Return the state with scheduled values, such as epsilon, at ``progress`` in [0, 1]; by default unchanged."""
        return agent_state

    @abstractmethod
    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return exploratory actions for ``sample_batch.obs``, leaves ``[B, ...]``, and extra outputs for the learner.

        A recurrent agent reads its recurrent state from ``sample_batch.extras.recurrent_state`` and returns the next
        recurrent state as ``recurrent_state`` in the extra outputs.

        ``key`` is one key for the batch, or one per environment ``[B]``.
        """

    @abstractmethod
    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return greedy actions; arguments and results are as in ``compute_actions``."""


def agents_acting_in(kind: ActionSpaces) -> list[str]:
    """Return the sorted names of evorl's agents that support action spaces of this kind."""
    return sorted({_name_of(agent) for agent in shipped_agents() if kind in agent.acts_in})


def shipped_agents() -> set[type[Agent]]:
    """Return the classes of evorl's own agents. Imports every algorithm."""
    modules = {_BASELINE, *load_all("evorl.algorithms")}
    agents, subclasses = set(), Agent.__subclasses__()
    while subclasses:
        agent = subclasses.pop()
        subclasses += agent.__subclasses__()
        if agent.__module__ in modules:
            agents.add(agent)
    return agents


def _name_of(agent: type[Agent]) -> str:
    return agent.__name__.removesuffix("Agent")


def action_distribution(action_space: Space, squashed: bool = True, **options: Any) -> ActionDistribution:
    """Return the ``ActionDistribution`` of a policy: categorical, or normal, squashed by tanh in bounded dimensions.

    Args:
        action_space: action space of the agent.
        squashed: True if samples are squashed by tanh; otherwise the caller applies ``ActionDistribution.squash``.
        **options: bounds of the log standard deviation, see ``ActionDistribution``.

    Raises:
        ValueError: the space is neither ``Discrete`` nor a flat ``Box``.
    """
    kind = kind_of(action_space)
    if kind is ActionSpaces.OTHERS:
        known = describe_kinds(ActionSpaces.DISCRETE_AND_BOXES)
        raise ValueError(f"policies act in {known}, not {action_space!r}: use ActionConversion(space).agent_space.")
    if kind is ActionSpaces.DISCRETE:
        return distribution_for(num_actions=num_outputs(action_space), **options)
    bounded = bounded_dimensions(action_space)
    return distribution_for(action_size=num_outputs(action_space), squashed=squashed, bounded=bounded, **options)


def policy_improvers() -> list[str]:
    """Return the sorted names of evorl's algorithms whose ``actor_loss`` can train the policies of a population."""
    return sorted({agent.__module__.rpartition(".")[2] for agent in shipped_agents() if agent.improves_policies})


def update_params(
    loss_fn: Callable[..., tuple[jax.Array, PyTreeDict]],
    optimizer: Optimizer,
    agent_state: AgentState,
    opt_state: Any,
    *args: Any,
    progress: jax.Array,
) -> tuple[AgentState, Any, PyTreeDict]:
    """Take a gradient step on ``loss_fn(params, agent_state, *args)``; return agent state, optimizer state, metrics."""
    params, opt_state, metrics = gradient_step(
        loss_fn, optimizer, agent_state.params, opt_state, agent_state, *args, progress=progress
    )
    return agent_state.replace(params=params), opt_state, metrics
