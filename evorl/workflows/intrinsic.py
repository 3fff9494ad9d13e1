"""Intrinsic rewards: bonuses for novel observations, or for behaviour that tells skills apart.

``intrinsic=icm``, ``intrinsic=rnd`` or ``intrinsic=diayn`` adds them to any algorithm that learns from steps. A model
is trained along with the agent, on the same trajectories; the bonus of a step is computed from it and added before
anything is learned or stored. Reported returns stay those of the environment. In a replay buffer a bonus stays as it
was when the step was taken.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from evorl.agents.observations import observation_ndim, one_observation, select_observation
from evorl.agents.part_settings import TorsoSettings
from evorl.config.names import no_such
from evorl.config.nodes import node_from_config
from evorl.config.values import checked_mapping
from evorl.envs.action_spaces import ActionSpaces, kind_of, num_outputs
from evorl.envs.space import Discrete, Space
from evorl.envs.vector import VectorEnv
from evorl.networks.curiosity import CuriosityModel, DistillationNetwork
from evorl.networks.torsos import Torso, build_torso
from evorl.ops import collectives
from evorl.ops.normalization import RunningStatistics, init_statistics, normalize, update_statistics
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeData, PyTreeDict, PyTreeNode, State, pytree_field

_CLIP = 5.0  # of normalised observations (Burda et al. 2018, section 2.4)
_SMALLEST = 1e-8


class IntrinsicState(PyTreeData):
    """What changes as the model learns; equal on all devices.

    Attributes:
        params: that are learned.
        fixed: that are not; ``None`` for a model without any.
        opt_state: of the optimizer.
        observations: statistics of all observations, by which the model reads them.
        squares: of the squared bonuses of all steps, whose mean is the unit of the bonus.
    """

    params: Params
    fixed: Params
    opt_state: Any
    observations: RunningStatistics
    squares: RunningStatistics


class IntrinsicReward(PyTreeNode):
    """A bonus that a model computes for each step. A subclass defines the model.

    Attributes:
        weight: factor of the bonus, which is in units of the root mean square of all bonuses so far.
        environment_weight: factor of the environment's own reward.
        num_updates: gradient steps of the model on each trajectory.
        network: of the features of an observation.
        optimizer: of the model.
        obs_key: the entry of a dict observation that is looked at; null for what policies see by default.
        model: its networks.
        action_space: of the agent.
    """

    weight: float = 0.1
    environment_weight: float = 1.0
    num_updates: int = pytree_field(static=True, default=4)
    network: TorsoSettings = TorsoSettings(activation="elu")
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    obs_key: str | None = None
    model: nn.Module | None = pytree_field(static=True, setting=False, default=None)
    action_space: Any = pytree_field(static=True, setting=False, default=None)

    ranges: ClassVar[Mapping[str, str]] = {"weight": "[0, inf)", "environment_weight": "[0, inf)"}

    @abstractmethod
    def make_model(self, torso: Torso, action_space: Space, obs_ndim: int) -> nn.Module:
        """The networks, for observations of so many axes."""

    @abstractmethod
    def init_params(self, obs: jax.Array, key: Key) -> tuple[Params, Params]:
        """What is learned, and what stays; ``obs`` is ``[1, *observation]``."""

    @abstractmethod
    def errors(
        self, params: Params, fixed: Params, obs: jax.Array, actions: jax.Array, next_obs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The bonuses of steps and the losses of the model, both ``[...]``.

        Args:
            params: that are learned.
            fixed: that are not.
            obs: ``[..., *observation]``, normalised.
            actions: as numbers, ``[..., A]``.
            next_obs: the true successors, ``[..., *observation]``, normalised.
        """

    def built(self, env: VectorEnv) -> Self:
        """With its model, for the spaces of ``env``.

        Raises:
            ValueError: the observations are no single array, or a layer cannot work; in words.
        """
        names = ("torso", "activation", "layer_norm", "orthogonal")
        torso = build_torso({name: getattr(self.network, name) for name in names})
        if kind_of(env.action_space) is ActionSpaces.OTHERS:
            raise ValueError(f"intrinsic rewards know discrete actions and flat boxes, not {env.action_space!r}.")
        obs_ndim = observation_ndim(env.obs_space, self.obs_key)
        return self.replace(model=self.make_model(torso, env.action_space, obs_ndim), action_space=env.action_space)

    def init(self, obs_space: Space, key: Key) -> State:
        """Entries of a workflow's state: ``intrinsic``, and ``intrinsic_metrics`` of the last trajectory."""
        obs = one_observation(obs_space, self.obs_key)
        params, fixed = self.init_params(jnp.asarray(obs, jnp.float32), key)
        own = IntrinsicState(
            params=params,
            fixed=fixed,
            opt_state=self.optimizer.init(params),
            observations=init_statistics(select_observation(obs_space.zeros(), self.obs_key)),
            squares=init_statistics(jax.ShapeDtypeStruct((), jnp.float32)),
        )
        metrics = PyTreeDict(intrinsic_reward=jnp.zeros(()), intrinsic_loss=jnp.zeros(()))
        return State(intrinsic=own, intrinsic_metrics=metrics)

    def bonuses(self, own: IntrinsicState, batch: SampleBatch) -> jax.Array:
        """How new the steps ``[...]`` of a batch are to the model, in its own units."""
        return self.errors(own.params, own.fixed, *self._inputs(own, batch))[0]

    def pay(self, batch: SampleBatch, state: State) -> tuple[SampleBatch, State]:
        """A trajectory ``[T, B, ...]`` of this device's environments with the bonuses in its rewards; and the state of
        the workflow after the model has learned from it.

        Statistics count the trajectory before it is looked at, and the model learns from it afterwards.
        """
        own: IntrinsicState = state.intrinsic
        seen = select_observation(batch.next_obs, self.obs_key)
        own = own.replace(observations=update_statistics(own.observations, seen, sharded=True))
        inputs = self._inputs(own, batch)
        bonuses, _ = self.errors(own.params, own.fixed, *inputs)
        squares = update_statistics(own.squares, jnp.square(bonuses), sharded=True)
        unit = self.unit(squares)

        def loss(params: Params) -> tuple[jax.Array, jax.Array]:
            mean = self.errors(params, own.fixed, *inputs)[1].mean()
            return mean, mean

        def one_update(_: jax.Array, carry: tuple[Any, Any, jax.Array]) -> tuple[Any, Any, jax.Array]:
            params, opt_state, last = gradient_step(loss, self.optimizer, *carry[:2])
            return params, opt_state, last

        carry = (own.params, own.opt_state, jnp.zeros(()))
        params, opt_state, last = jax.lax.fori_loop(0, self.num_updates, one_update, carry)
        means = collectives.mean_over_shares((bonuses.mean(), last))
        metrics = PyTreeDict(intrinsic_reward=means[0], intrinsic_loss=means[1])
        own = own.replace(params=params, opt_state=opt_state, squares=squares)
        rewards = self.environment_weight * batch.rewards + self.weight * bonuses / unit
        batch = batch.replace(rewards=rewards)
        return batch, state.replace(intrinsic=own, intrinsic_metrics=metrics)

    def unit(self, squares: RunningStatistics) -> jax.Array | float:
        """Return the unit of the bonus, from the statistics of squared bonuses: by default their root mean square."""
        return jnp.sqrt(jnp.maximum(squares.mean, _SMALLEST))

    def _inputs(self, own: IntrinsicState, batch: SampleBatch) -> tuple[jax.Array, jax.Array, jax.Array]:
        obs, next_obs = (
            normalize(own.observations, select_observation(x, self.obs_key), _CLIP) for x in (batch.obs, batch.next_obs)
        )
        actions = batch.actions
        if isinstance(self.action_space, Discrete):
            actions = jax.nn.one_hot(actions, self.action_space.n)
        return obs, actions, next_obs


class ICM(IntrinsicReward):
    """Curiosity (Pathak et al. 2017, https://arxiv.org/abs/1705.05363): how wrong a model is about what comes next, in
    features that tell which action was taken, so that what the agent has no part in counts for little.

    Attributes:
        forward_share: of the forward model's loss in the loss, beta of eq. 7.
        hidden: width of the hidden layer of the forward and of the inverse model.
    """

    forward_share: float = 0.2
    hidden: int = 256

    ranges: ClassVar[Mapping[str, str]] = {"forward_share": "[0, 1]"}

    def make_model(self, torso: Torso, action_space: Space, obs_ndim: int) -> nn.Module:
        """See ``IntrinsicReward.make_model``."""
        return CuriosityModel(torso, num_outputs(action_space), self.hidden, obs_ndim)

    def init_params(self, obs: jax.Array, key: Key) -> tuple[Params, Params]:
        """See ``IntrinsicReward.init_params``; nothing stays."""
        assert isinstance(self.model, CuriosityModel), "a model is built before it is initialised, by built(env)"
        return self.model.init(key, obs, jnp.zeros((1, self.model.num_outputs)), obs)["params"], None

    def errors(
        self, params: Params, fixed: Params, obs: jax.Array, actions: jax.Array, next_obs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """``1/2 |prediction - features|^2`` (eq. 5), and with the inverse model's error ``(1 - beta) L_I + beta L_F``.

        That error is the cross-entropy of discrete actions, and half the squared distance of others.
        """
        model: Any = self.model
        predicted, came, inverse = model.apply({"params": params}, obs, actions, next_obs)
        forward = 0.5 * jnp.square(predicted - came).sum(axis=-1)
        if isinstance(self.action_space, Discrete):
            backward = optax.softmax_cross_entropy(inverse, actions)
        else:
            backward = 0.5 * jnp.square(inverse - actions).sum(axis=-1)
        return forward, (1.0 - self.forward_share) * backward + self.forward_share * forward


class RND(IntrinsicReward):
    """Random network distillation (Burda et al. 2018, https://arxiv.org/abs/1810.12894): how wrong a network is about
    the outputs of a random one that never changes, in the observation that a step leads to.

    Attributes:
        size: outputs of the two networks.
        hidden: widths of the layers that the predictor has beyond its target.
    """

    size: int = 64
    hidden: tuple[int, ...] = (64,)

    def make_model(self, torso: Torso, action_space: Space, obs_ndim: int) -> nn.Module:
        """See ``IntrinsicReward.make_model``: the predictor."""
        return DistillationNetwork(torso, self.size, self.hidden, obs_ndim)

    @property
    def _target(self) -> Any:
        assert self.model is not None, "a model is built before it is asked, by built(env)"
        return self.model.clone(hidden=())

    def init_params(self, obs: jax.Array, key: Key) -> tuple[Params, Params]:
        """See ``IntrinsicReward.init_params``: the target stays."""
        model: Any = self.model
        learned, fixed = jax.random.split(key)
        return model.init(learned, obs)["params"], self._target.init(fixed, obs)["params"]

    def errors(
        self, params: Params, fixed: Params, obs: jax.Array, actions: jax.Array, next_obs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """``|prediction - target|^2`` as bonus and as loss."""
        model: Any = self.model
        target = self._target.apply({"params": fixed}, next_obs)
        error = jnp.square(model.apply({"params": params}, next_obs) - target).sum(axis=-1)
        return error, error


class DIAYN(IntrinsicReward):
    """Diversity is all you need (Eysenbach et al. 2018, https://arxiv.org/abs/1802.06070): unsupervised skills.

    The environment shows the policy a skill, see ``SkillWrapper`` and ``env.skills``. A discriminator predicts the
    skill from the observation that a step leads to, and the bonus ``log q(z | s') - log p(z)`` (eq. 3, with a uniform
    prior p) pays for observations that reveal the skill. By default the environment's own reward does not count.

    Attributes:
        num_skills: number of skills of the environment.
    """

    weight: float = 1.0
    environment_weight: float = 0.0
    num_skills: int = pytree_field(static=True, setting=False, default=0)

    def built(self, env: VectorEnv) -> Self:
        """Return the bonus with its discriminator, for the spaces of ``env``.

        Raises:
            ValueError: the environment has no skills.
        """
        if not env.num_skills:
            raise ValueError("intrinsic=diayn needs skills to tell apart: set env.skills to their number, such as 8.")
        return super(DIAYN, self.replace(num_skills=env.num_skills)).built(env)

    def make_model(self, torso: Torso, action_space: Space, obs_ndim: int) -> nn.Module:
        return DistillationNetwork(torso, self.num_skills, (), obs_ndim)

    def init_params(self, obs: jax.Array, key: Key) -> tuple[Params, Params]:
        model: Any = self.model
        return model.init(key, obs[..., : -self.num_skills])["params"], None

    def unit(self, squares: RunningStatistics) -> float:
        """Return 1: the bonus is in nats, as in the paper."""
        return 1.0

    def errors(
        self, params: Params, fixed: Params, obs: jax.Array, actions: jax.Array, next_obs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return ``log q(z | s') - log p(z)`` and the discriminator's cross-entropy ``-log q(z | s')``.

        Args:
            params: of the discriminator.
            fixed: ``None``.
            obs: the one-hot skills, ``[..., num_skills]``.
            actions: unused.
            next_obs: the true successors without their skills, ``[..., O]``, normalised.
        """
        model: Any = self.model
        cross_entropy = optax.softmax_cross_entropy(model.apply({"params": params}, next_obs), obs)
        return math.log(self.num_skills) - cross_entropy, cross_entropy

    def _inputs(self, own: IntrinsicState, batch: SampleBatch) -> tuple[jax.Array, jax.Array, jax.Array]:
        _, actions, next_obs = super()._inputs(own, batch)
        skills = select_observation(batch.obs, self.obs_key)[..., -self.num_skills :]
        return skills, actions, next_obs[..., : -self.num_skills]


KINDS: dict[str, type[IntrinsicReward]] = {"diayn": DIAYN, "icm": ICM, "rnd": RND}


def make_intrinsic(config: Any, env: VectorEnv) -> IntrinsicReward:
    """What the setting ``intrinsic`` describes: a name, or a mapping with ``name`` and fields of its class.

    Raises:
        ValueError: there is no such name or field, or a value cannot work; in words.
    """
    options = dict(checked_mapping({"name": config} if isinstance(config, str) else config, "intrinsic"))
    name = options.pop("name", None)
    if name not in KINDS:
        raise ValueError(no_such("intrinsic reward", name, KINDS))
    given = {"model": None, "action_space": None}
    return node_from_config(KINDS[name], options, "intrinsic", **given).built(env)
