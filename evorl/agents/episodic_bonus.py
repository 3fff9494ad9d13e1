"""E3B: intrinsic rewards for observations that are novel within their episode."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agents.intrinsic import ICM, IntrinsicState
from evorl.agents.observations import one_observation
from evorl.agents.part_settings import TorsoSettings
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.ops.trees import tree_where
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeData, State


class EpisodicState(PyTreeData):
    """State of E3B in the running episodes.

    Attributes:
        inverse: ``ridge C^-1`` of each environment, ``[B, F, F]``; the identity at the start of an episode.
    """

    inverse: jax.Array

    def end_episodes(self, mask: Any) -> EpisodicState:
        """Return the state with new episodes where ``mask`` ``[B]`` is True."""
        start = jnp.broadcast_to(jnp.eye(self.inverse.shape[-1]), self.inverse.shape)
        return EpisodicState(tree_where(mask, start, self.inverse))


class E3B(ICM):
    """Exploration by elliptical episodic bonuses (Henaff et al. 2022, https://arxiv.org/abs/2210.05805).

    The bonus of a step is ``phi^T C^-1 phi``, where ``phi`` are the features of the next observation and ``C`` is the
    sum of ``phi phi^T`` over the earlier steps of the episode, plus ``ridge I``. The features are trained as in ICM, to
    predict the action. The last step of an episode has no bonus.

    Attributes:
        ridge: regularization of ``C``: at the first step of an episode, the bonus is ``|phi|^2 / ridge``.
    """

    ridge: Annotated[float, Within("(0, inf)")] = 0.1
    network: TorsoSettings = TorsoSettings(torso=(64, 32), activation="elu")

    is_episodic: ClassVar[bool] = True

    def init(self, obs_space: Space, key: Key, num_envs: int = 0) -> State:
        """Return the entries of ``ICM.init``, and ``episodic``, an ``EpisodicState``."""
        state = super().init(obs_space, key, num_envs)
        obs = jnp.asarray(one_observation(obs_space, self.obs_key), jnp.float32)
        model: Any = self.model
        inputs = (obs, jnp.zeros((1, model.num_outputs)), obs)
        features = jax.eval_shape(lambda params: self._features(params, inputs), state.intrinsic.params)
        state.episodic = EpisodicState(self._start(num_envs, features.shape[-1]))
        return state

    def bonuses(self, intrinsic: IntrinsicState, batch: SampleBatch) -> jax.Array:
        """Return the unscaled bonuses of a trajectory ``[T, B]``, assuming that its first steps start episodes."""
        features = self._features(intrinsic.params, self._inputs(intrinsic, batch))
        return self._along(self._start(*features.shape[1:]), features, batch.dones)[1]

    def step_bonuses(
        self, intrinsic: IntrinsicState, inputs: tuple[jax.Array, ...], batch: SampleBatch, state: State
    ) -> tuple[jax.Array, State]:
        inverse, bonuses = self._along(state.episodic.inverse, self._features(intrinsic.params, inputs), batch.dones)
        return bonuses, state.replace(episodic=EpisodicState(inverse))

    def _features(self, params: Any, inputs: tuple[jax.Array, ...]) -> jax.Array:
        model: Any = self.model
        return model.apply({"params": params}, *inputs)[1]

    def _start(self, num_envs: int, size: int) -> jax.Array:
        return jnp.broadcast_to(jnp.eye(size), (num_envs, size, size))

    def _along(self, inverse: jax.Array, features: jax.Array, dones: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the inverses after a trajectory (see ``EpisodicState``), and the bonuses of its steps ``[T, B]``."""
        start = self._start(*features.shape[1:])

        def one_step(inverse: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            phi, done = step
            product = jnp.einsum("bij,bj->bi", inverse, phi)
            energy = (phi * product).sum(axis=-1)
            # C^-1 after C + phi phi^T (Sherman and Morrison 1950).
            change = product[:, :, None] * product[:, None, :] / (self.ridge + energy)[:, None, None]
            return tree_where(done, start, inverse - change), jnp.where(done, 0.0, energy / self.ridge)

        return jax.lax.scan(one_step, inverse, (features, dones.astype(bool)))
