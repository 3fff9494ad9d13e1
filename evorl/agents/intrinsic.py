"""Intrinsic rewards: bonuses for novel observations, or for behavior that distinguishes skills.

``intrinsic=icm``, ``intrinsic=rnd`` or ``intrinsic=diayn`` adds a bonus to the rewards of any algorithm that learns
from transitions; ``intrinsic=e3b`` supports on-policy algorithms. A model trained on the same trajectories as the agent
computes the bonus, which is added before the algorithm uses or stores the transitions. Reported returns exclude
bonuses. Bonuses in a replay buffer are not recomputed.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from evorl.agents.observations import observation_ndim, one_observation, select_observation
from evorl.agents.part_settings import TorsoSettings
from evorl.envs.action_spaces import ActionSpaces, kind_of, num_outputs
from evorl.envs.space import Discrete, Space
from evorl.envs.vector import VectorEnv
from evorl.fields import Within
from evorl.networks.curiosity import CuriosityModel, DistillationNetwork
from evorl.networks.torsos import Torso, build_torso
from evorl.ops import collectives
from evorl.ops.normalization import RunningStatistics, init_statistics, normalize, update_statistics
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeData, PyTreeDict, PyTreeNode, State, pytree_field

_CLIP = 5.0  # bound of normalized observations (Burda et al. 2018, section 2.4)
_SMALLEST = 1e-8


class IntrinsicState(PyTreeData):
    """State of an intrinsic reward, identical on all devices.

    Attributes:
        params: trainable parameters of the model.
        fixed: fixed parameters of the model; ``None`` if all are trainable.
        opt_state: state of the optimizer.
        observations: statistics of all observations, which normalize the model's inputs.
        squares: statistics of the squared bonuses of all steps, which determine the unit of the bonus.
    """

    params: Params
    fixed: Params
    opt_state: Any
    observations: RunningStatistics
    squares: RunningStatistics


class IntrinsicReward(PyTreeNode):
    """A bonus that a model computes for each step. Subclasses define the model.

    Attributes:
        weight: factor of the bonus, which is divided by the root mean square of all bonuses so far, except for diayn.
        environment_weight: factor of the environment's reward.
        num_updates: number of gradient steps of the model per trajectory.
        network: settings of the network that computes the features of an observation.
        optimizer: optimizer of the model.
        obs_key: entry of a dict observation that the model reads; ``None`` for the whole observation.
        model: networks of the model, set by ``built``.
        action_space: action space of the agent, set by ``built``.
    """

    weight: Annotated[float, Within("[0, inf)")] = 0.1
    environment_weight: Annotated[float, Within("[0, inf)")] = 1.0
    num_updates: int = pytree_field(static=True, default=4)
    network: TorsoSettings = TorsoSettings(activation="elu")
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    obs_key: str | None = None
    model: nn.Module | None = pytree_field(static=True, setting=False, default=None)
    action_space: Any = pytree_field(static=True, setting=False, default=None)

    # True if bonuses depend on earlier steps of the episode: the state then has an entry ``episodic``.
    is_episodic: ClassVar[bool] = False

    @abstractmethod
    def make_model(self, torso: Torso, action_space: Space, obs_ndim: int) -> nn.Module:
        """Build the networks for observations with ``obs_ndim`` axes."""

    @abstractmethod
    def init_params(self, obs: jax.Array, key: Key) -> tuple[Params, Params]:
        """Return initial trainable and fixed parameters (or ``None``); ``obs`` is ``[1, *observation]``."""

    @abstractmethod
    def errors(
        self, params: Params, fixed: Params, obs: jax.Array, actions: jax.Array, next_obs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the bonuses of steps and the losses of the model, both ``[...]``.

        Args:
            params: trainable parameters.
            fixed: fixed parameters, or ``None``.
            obs: observations, ``[..., *observation]``, normalized.
            actions: actions, one-hot if discrete, ``[..., A]``.
            next_obs: true next observations, ``[..., *observation]``, normalized.
        """

    def built(self, env: VectorEnv) -> Self:
        """Return a copy whose model is built for the spaces of ``env``.

        Raises:
            ValueError: observations are not a single array, the action space is not supported, or a layer is invalid.
        """
        names = ("torso", "activation", "layer_norm", "orthogonal", "dtype")
        torso = build_torso({name: getattr(self.network, name) for name in names}, where="intrinsic.network")
        if kind_of(env.action_space) is ActionSpaces.OTHERS:
            raise ValueError(
                f"intrinsic rewards need discrete actions or a flat box, got {env.action_space!r}: remove intrinsic."
            )
        obs_ndim = observation_ndim(env.obs_space, self.obs_key)
        return self.replace(model=self.make_model(torso, env.action_space, obs_ndim), action_space=env.action_space)

    def init(self, obs_space: Space, key: Key, num_envs: int = 0) -> State:
        """Return entries of a workflow's state: ``intrinsic``, and ``intrinsic_metrics``, which are 0 at first.

        ``num_envs`` is the number of environments on this device; only episodic bonuses use it.
        """
        obs = one_observation(obs_space, self.obs_key)
        params, fixed = self.init_params(jnp.asarray(obs, jnp.float32), key)
        intrinsic = IntrinsicState(
            params=params,
            fixed=fixed,
            opt_state=self.optimizer.init(params),
            observations=init_statistics(select_observation(obs_space.zeros(), self.obs_key)),
            squares=init_statistics(jax.ShapeDtypeStruct((), jnp.float32)),
        )
        metrics = PyTreeDict(intrinsic_reward=jnp.zeros(()), intrinsic_loss=jnp.zeros(()))
        return State(intrinsic=intrinsic, intrinsic_metrics=metrics)

    def bonuses(self, intrinsic: IntrinsicState, batch: SampleBatch) -> jax.Array:
        """Return the bonuses of the steps ``[...]`` of a batch, not divided by their root mean square."""
        return self.errors(intrinsic.params, intrinsic.fixed, *self._inputs(intrinsic, batch))[0]

    def step_bonuses(
        self, intrinsic: IntrinsicState, inputs: tuple[jax.Array, ...], batch: SampleBatch, state: State
    ) -> tuple[jax.Array, State]:
        """Return unscaled bonuses and the new state; ``inputs`` are obs, actions and next_obs of ``errors``."""
        return self.errors(intrinsic.params, intrinsic.fixed, *inputs)[0], state

    def pay(self, batch: SampleBatch, state: State) -> tuple[SampleBatch, State]:
        """Add bonuses to the rewards of this device's trajectory ``[T, B, ...]``; train the model on the trajectory.

        Rewards are ``environment_weight * reward + weight * bonus / unit``; observation statistics are updated first.

        Returns:
            The trajectory and the workflow's new state.
        """
        intrinsic: IntrinsicState = state.intrinsic
        next_obs = select_observation(batch.next_obs, self.obs_key)
        intrinsic = intrinsic.replace(observations=update_statistics(intrinsic.observations, next_obs, sharded=True))
        inputs = self._inputs(intrinsic, batch)
        bonuses, state = self.step_bonuses(intrinsic, inputs, batch, state)
        squares = update_statistics(intrinsic.squares, jnp.square(bonuses), sharded=True)
        unit = self.unit(squares)

        def loss(params: Params) -> tuple[jax.Array, jax.Array]:
            mean = self.errors(params, intrinsic.fixed, *inputs)[1].mean()
            return mean, mean

        def one_update(_: jax.Array, carry: tuple[Any, Any, jax.Array]) -> tuple[Any, Any, jax.Array]:
            return gradient_step(loss, self.optimizer, *carry[:2])

        carry = (intrinsic.params, intrinsic.opt_state, jnp.zeros(()))
        params, opt_state, last = jax.lax.fori_loop(0, self.num_updates, one_update, carry)
        means = collectives.mean_over_shares((bonuses.mean(), last))
        metrics = PyTreeDict(intrinsic_reward=means[0], intrinsic_loss=means[1])
        intrinsic = intrinsic.replace(params=params, opt_state=opt_state, squares=squares)
        rewards = self.environment_weight * batch.rewards + self.weight * bonuses / unit
        return batch.replace(rewards=rewards), state.replace(intrinsic=intrinsic, intrinsic_metrics=metrics)

    def unit(self, squares: RunningStatistics) -> jax.Array | float:
        """Return the divisor of bonuses, given statistics of their squares: by default the root mean square."""
        return jnp.sqrt(jnp.maximum(squares.mean, _SMALLEST))

    def _inputs(self, intrinsic: IntrinsicState, batch: SampleBatch) -> tuple[jax.Array, jax.Array, jax.Array]:
        obs, next_obs = (
            normalize(intrinsic.observations, select_observation(x, self.obs_key), _CLIP)
            for x in (batch.obs, batch.next_obs)
        )
        actions = batch.actions
        if isinstance(self.action_space, Discrete):
            actions = jax.nn.one_hot(actions, self.action_space.n)
        return obs, actions, next_obs


class ICM(IntrinsicReward):
    """Intrinsic curiosity module (Pathak et al. 2017, https://arxiv.org/abs/1705.05363).

    The bonus is the prediction error of a forward model in a feature space. The features are trained to predict the
    action, so changes that the agent does not cause contribute little.

    Attributes:
        forward_share: weight beta of the forward model's loss (eq. 7); the inverse model's loss has weight 1 - beta.
        hidden: width of the hidden layer of the forward and of the inverse model.
    """

    forward_share: Annotated[float, Within("[0, 1]")] = 0.2
    hidden: int = 256

    def make_model(self, torso: Torso, action_space: Space, obs_ndim: int) -> nn.Module:
        return CuriosityModel(torso, num_outputs(action_space), self.hidden, obs_ndim)

    def init_params(self, obs: jax.Array, key: Key) -> tuple[Params, Params]:
        assert isinstance(self.model, CuriosityModel), "the model must be built by built(env) before it is initialized"
        return self.model.init(key, obs, jnp.zeros((1, self.model.num_outputs)), obs)["params"], None

    def errors(
        self, params: Params, fixed: Params, obs: jax.Array, actions: jax.Array, next_obs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return ``L_F = 1/2 |prediction - features|^2`` (eq. 5) and the loss ``(1 - beta) L_I + beta L_F``.

        The inverse model's error ``L_I`` is the cross-entropy for discrete actions, otherwise half the squared error.
        """
        model: Any = self.model
        predicted, features, inverse = model.apply({"params": params}, obs, actions, next_obs)
        forward = 0.5 * jnp.square(predicted - features).sum(axis=-1)
        if isinstance(self.action_space, Discrete):
            backward = optax.softmax_cross_entropy(inverse, actions)
        else:
            backward = 0.5 * jnp.square(inverse - actions).sum(axis=-1)
        return forward, (1.0 - self.forward_share) * backward + self.forward_share * forward


class RND(IntrinsicReward):
    """Random network distillation (Burda et al. 2018, https://arxiv.org/abs/1810.12894).

    A network learns to predict the output of a fixed random network for the next observation. The bonus is its error.

    Attributes:
        size: number of outputs of the two networks.
        hidden: widths of the predictor's layers in addition to the target's architecture.
    """

    size: int = 64
    hidden: tuple[int, ...] = (64,)

    def make_model(self, torso: Torso, action_space: Space, obs_ndim: int) -> nn.Module:
        return DistillationNetwork(torso, self.size, self.hidden, obs_ndim)

    @property
    def _target(self) -> Any:
        assert self.model is not None, "the model must be built by built(env) before it is used"
        return self.model.clone(hidden=())

    def init_params(self, obs: jax.Array, key: Key) -> tuple[Params, Params]:
        model: Any = self.model
        predictor_key, target_key = jax.random.split(key)
        return model.init(predictor_key, obs)["params"], self._target.init(target_key, obs)["params"]

    def errors(
        self, params: Params, fixed: Params, obs: jax.Array, actions: jax.Array, next_obs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return ``|prediction - target|^2``, both as bonus and as loss."""
        model: Any = self.model
        target = self._target.apply({"params": fixed}, next_obs)
        error = jnp.square(model.apply({"params": params}, next_obs) - target).sum(axis=-1)
        return error, error


class DIAYN(IntrinsicReward):
    """Diversity is all you need (Eysenbach et al. 2018, https://arxiv.org/abs/1802.06070): unsupervised skills.

    The environment adds a skill to the observations, see ``SkillWrapper`` and ``env.skills``. A discriminator predicts
    the skill from the next observation, and the bonus ``log q(z | s') - log p(z)`` (eq. 3, with a uniform prior p)
    rewards observations that reveal the skill. By default the environment's reward has weight 0.

    Attributes:
        num_skills: number of skills of the environment.
    """

    weight: float = 1.0
    environment_weight: float = 0.0
    num_skills: int = pytree_field(static=True, setting=False, default=0)

    def built(self, env: VectorEnv) -> Self:
        """Return the bonus with its discriminator; raise ``ValueError`` if the environment has no skills."""
        if not env.num_skills:
            raise ValueError("intrinsic=diayn needs an environment with skills: set env.skills, for example to 8.")
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
            params: parameters of the discriminator.
            fixed: ``None``.
            obs: one-hot skills, ``[..., num_skills]``.
            actions: unused.
            next_obs: true next observations without their skills, ``[..., O]``, normalized.
        """
        model: Any = self.model
        cross_entropy = optax.softmax_cross_entropy(model.apply({"params": params}, next_obs), obs)
        return math.log(self.num_skills) - cross_entropy, cross_entropy

    def _inputs(self, intrinsic: IntrinsicState, batch: SampleBatch) -> tuple[jax.Array, jax.Array, jax.Array]:
        _, actions, next_obs = super()._inputs(intrinsic, batch)
        skills = select_observation(batch.obs, self.obs_key)[..., -self.num_skills :]
        return skills, actions, next_obs[..., : -self.num_skills]
