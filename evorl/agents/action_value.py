"""Base agent of value-based algorithms: values of discrete actions with epsilon-greedy exploration.

An algorithm adds its loss and hyperparameters. With a target network, the parameters are ``online`` and ``target``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState
from evorl.agents.observations import allowed_only, observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import NetworkSettings
from evorl.envs.action_spaces import ActionSpaces, num_outputs
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.networks.heads import apply_network
from evorl.networks.q_networks import QNetwork
from evorl.networks.torsos import build_torso
from evorl.ops.exploration import epsilon_greedy
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.random import draw, split_rows
from evorl.ops.schedules import Schedule, value_at
from evorl.ops.trees import hard_update, polyak_update
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field


class ActionValueAgent(Agent):
    """Agent that learns the values of discrete actions and acts epsilon-greedily.

    Attributes:
        network: maps observations to values ``[..., A]``, or to parameters of return distributions, ``[..., A, M]``.
        epsilon: probability of a uniformly random action that is not masked; a number or a schedule.
        max_final_epsilon: every episode samples its final epsilon uniformly between epsilon's final value and this
            value, so that environments explore to different degrees; ``None`` uses ``epsilon`` everywhere. (Mnih et
            al. 2016, section 5.1, sample the final epsilon of each learner.)
        obs_key: entry of a dict observation that the network reads; ``None`` for the whole observation.
    """

    network: nn.Module = pytree_field(static=True)
    epsilon: Annotated[float | Schedule, Within("[0, 1]")] = Schedule(1.0, 0.05, share=0.2)
    max_final_epsilon: Annotated[float | None, Within("[0, 1]")] = None
    obs_key: str | None = None

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.DISCRETE
    can_draw_epsilon: ClassVar[bool] = True  # True if ``max_final_epsilon`` is supported
    part_settings: ClassVar[PyTreeNode] = NetworkSettings()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        return {"network": cls.build_network(settings, env)}

    @classmethod
    def build_network(cls, settings: dict[str, Any], env: Env, **heads: Any) -> QNetwork:
        """Pop ``network`` from ``settings`` and build the network; ``heads`` are other fields of ``QNetwork``.

        Raises:
            ValueError: a setting is invalid.
        """
        return QNetwork(
            build_torso(settings.pop("network")),
            num_outputs(env.action_space),
            observation_ndim(env.obs_space, settings.get("obs_key")),
            **heads,
        )

    def __post_init__(self) -> None:
        if self.max_final_epsilon is not None and not self.can_draw_epsilon:
            raise ValueError(
                f"agent.max_final_epsilon={self.max_final_epsilon!r} is not supported by {type(self).__name__}, "
                "whose recurrent_state holds the network's state: remove it."
            )
        low, high = self.epsilon.end if isinstance(self.epsilon, Schedule) else self.epsilon, self.max_final_epsilon
        if isinstance(low, int | float) and isinstance(high, int | float) and high < low:
            raise ValueError(
                f"agent.max_final_epsilon={high:g} is below {low:g}, the final value of agent.epsilon: increase it, or "
                "decrease agent.epsilon (agent.epsilon.end of a schedule)."
            )

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Return the initial state; with ``max_final_epsilon``, ``recurrent_state`` determines an episode's epsilon."""
        state = super().init(obs_space, action_space, key)
        if self.max_final_epsilon is None:
            return state
        return state.replace(recurrent_state=PyTreeDict(drawn=jnp.zeros(())))

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        return self.network.init(key, one_observation(obs_space, self.obs_key))

    def outputs(
        self,
        agent_state: AgentState,
        params: Params,
        obs: Observation,
        key: Key | None = None,
        fractions: jax.Array | None = None,
    ) -> jax.Array:
        """Return outputs of the network: values ``[..., A]`` or distributions ``[..., A, M]``; no noise without a key.

        ``fractions`` ``[..., M]`` are the second input of an implicit quantile network.
        """
        obs = preprocess(agent_state, obs, self.obs_key)
        return apply_network(self.network, params, obs, fractions, key if self.network.noisy else None)

    def q_values(self, agent_state: AgentState, params: Params, obs: Observation, key: Key | None = None) -> jax.Array:
        """Return expected returns ``[..., A]`` of all actions, including masked ones; no noise without a key."""
        return self.outputs(agent_state, params, obs, key)

    def acting_params(self, params: Params) -> Params:
        """Return the parameters of the network that selects actions; by default all of ``params``."""
        return params

    def at_progress(self, agent_state: AgentState, progress: jax.Array) -> AgentState:
        """Return the state with epsilon at ``progress``, or its bounds over episodes ``[2]``, as ``extra_state``."""
        return agent_state.replace(extra_state=self._epsilon_at(progress))

    def _epsilon_at(self, progress: jax.Array | float) -> Any:
        """Return epsilon; with ``max_final_epsilon``, the bounds of epsilon over all episodes, ``[2]``."""
        epsilon, max_final = self.epsilon, self.max_final_epsilon
        if max_final is None:
            return value_at(epsilon, progress)
        highest = epsilon.replace(end=max_final) if isinstance(epsilon, Schedule) else max_final
        return jnp.stack([jnp.asarray(value_at(x, progress), jnp.float32) for x in (epsilon, highest)])

    def _explore(
        self, agent_state: AgentState, q_values: jax.Array, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return epsilon-greedy actions and extras: a ``recurrent_state`` if epsilon is random, otherwise empty."""
        epsilon = self._epsilon_at(0.0) if agent_state.extra_state is None else agent_state.extra_state
        if self.max_final_epsilon is None:
            return epsilon_greedy(key, q_values, epsilon), PyTreeDict()
        key, draw_key = split_rows(key)
        drawn = sample_batch.extras.recurrent_state.drawn
        new = 1.0 - draw(jax.random.uniform, draw_key, drawn.shape)  # above 0: 0 marks the start of an episode
        drawn = jnp.where(drawn > 0.0, drawn, new)
        actions = epsilon_greedy(key, q_values, epsilon[0] + drawn * (epsilon[1] - epsilon[0]))
        return actions, PyTreeDict(recurrent_state=PyTreeDict(drawn=drawn))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return epsilon-greedy actions; a noisy network samples independent noise for every environment."""
        noise_key, action_key = split_rows(key)
        obs = sample_batch.obs
        q_values = self.q_values(agent_state, self.acting_params(agent_state.params), obs, noise_key)
        return self._explore(agent_state, allowed_only(q_values, obs), sample_batch, action_key)

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return the greedy actions; extras are empty, or copied from ``sample_batch`` with ``max_final_epsilon``."""
        q_values = self.q_values(agent_state, self.acting_params(agent_state.params), sample_batch.obs)
        actions = jnp.argmax(allowed_only(q_values, sample_batch.obs), axis=-1).astype(jnp.int32)
        return actions, PyTreeDict() if self.max_final_epsilon is None else PyTreeDict(sample_batch.extras or {})


def values_of_actions(outputs: jax.Array, actions: jax.Array) -> jax.Array:
    """Return the outputs for the actions ``[N]``: ``[N]`` from ``[N, A]``, or ``[N, M]`` from ``[N, A, M]``."""
    return outputs[jnp.arange(actions.shape[0]), actions]


def values_of_actions_along(values: jax.Array, actions: jax.Array) -> jax.Array:
    """Return the values ``[T, N]`` of the actions ``[T, N]``, from the values ``[T, N, A]`` of all actions."""
    return jnp.take_along_axis(values, actions[..., None], axis=-1)[..., 0]


def init_online_optimizer(optimizer: Optimizer, agent_state: AgentState) -> PyTreeDict:
    """Return the initial state of the optimizer as ``network``, and ``num_updates``, an int32 zero."""
    return PyTreeDict(network=optimizer.init(agent_state.params.online), num_updates=jnp.zeros((), jnp.int32))


def update_online_and_target(
    loss_fn: Callable[..., tuple[jax.Array, Any]],
    optimizer: Optimizer,
    agent_state: AgentState,
    opt_state: PyTreeDict,
    *args: Any,
    progress: jax.Array,
    tau: jax.Array | float,
    interval: int,
) -> tuple[AgentState, PyTreeDict, Any]:
    """Update the target if due, then take a step on ``loss_fn(online, agent_state, *args) -> (loss, auxiliary)``.

    The target is updated before the step that follows its interval, not after the last step of the interval: a worker
    of a parameter server receives the parameters after a step only with its next update.

    Args:
        loss_fn: loss of the parameters of the online network.
        optimizer: optimizer of the network.
        agent_state: state with ``online`` and ``target`` in its parameters.
        opt_state: state created by ``init_online_optimizer``.
        *args: additional arguments of the loss.
        progress: completed fraction of training in [0, 1].
        tau: Polyak step size of the target network; 1 copies the online network.
        interval: number of gradient steps between two updates of the target network.

    Returns:
        The agent state, the optimizer's state and the auxiliary output of the loss.
    """
    params, num_updates = agent_state.params, opt_state.num_updates
    due = (num_updates > 0) & (num_updates % interval == 0)
    target = hard_update(params.target, polyak_update(params.target, params.online, tau), due)
    agent_state = agent_state.replace(params=params | {"target": target})
    online, network_opt, auxiliary = gradient_step(
        loss_fn, optimizer, params.online, opt_state.network, agent_state, *args, progress=progress
    )
    agent_state = agent_state.replace(params=params | {"online": online, "target": target})
    return agent_state, PyTreeDict(network=network_opt, num_updates=num_updates + 1), auxiliary
