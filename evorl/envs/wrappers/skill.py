"""Wrapper that samples a skill for each episode and appends it to the observations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.values import positive, whole_number
from evorl.envs.env import Env, EnvState
from evorl.envs.space import Box
from evorl.envs.wrappers.wrapper import Wrapper
from evorl.types import Action, Key

_STREAM = 0x5C111  # folded into the key of a reset, so that the environment's own random numbers do not change


class SkillWrapper(Wrapper):
    """Appends a skill to the observation, as a one-hot vector: ``[O] -> [O + num_skills]``.

    The skill is sampled uniformly at the start of an episode and fixed until its end, as in DIAYN (Eysenbach et al.
    2018, https://arxiv.org/abs/1802.06070, algorithm 1).

    Args:
        env: an environment that observes vectors of floats.
        num_skills: number of skills, at least 2.
        skill: fixed skill of every episode, ``0 .. num_skills - 1``; ``None`` samples a skill per episode.

    Raises:
        ValueError: observations are not vectors of floats, num_skills is below 2, or ``skill`` is out of range.
    """

    def __init__(self, env: Env, num_skills: int, skill: int | None = None) -> None:
        super().__init__(env)
        space = env.obs_space
        if not isinstance(space, Box) or len(space.shape) != 1 or not jnp.issubdtype(space.dtype, jnp.floating):
            raise ValueError(
                f"env.skills appends the skill to a vector of floats, but the environment's observations are {space}: "
                "use another environment."
            )
        if positive(num_skills, "env.skills") < 2:
            raise ValueError(
                f"env.skills must be at least 2, got {num_skills}: with a single skill there is nothing to learn."
            )
        self._num_skills = num_skills
        self._skill = None if skill is None else whole_number(skill, "env.skill", 0, num_skills - 1)
        low, high = np.zeros(num_skills, space.dtype), np.ones(num_skills, space.dtype)
        self._space = Box(np.concatenate([space.low, low]), np.concatenate([space.high, high]), dtype=space.dtype)

    @property
    def num_skills(self) -> int:
        return self._num_skills

    @property
    def obs_space(self) -> Box:
        """The space of ``env``, extended by ``num_skills`` components in [0, 1]."""
        return self._space

    def reset(self, key: Key) -> EnvState:
        """Return the first state of an episode, with a newly sampled skill, or with the fixed skill."""
        skill = jax.random.randint(jax.random.fold_in(key, _STREAM), (), 0, self._num_skills, jnp.int32)
        if self._skill is not None:
            skill = jnp.asarray(self._skill, jnp.int32)
        return self._shown(self.env.reset(key), skill)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """Return the state after one step, with the skill of the episode."""
        return self._shown(self.env.step(env_state, action), env_state._internal.skill)

    def _shown(self, state: EnvState, skill: jax.Array) -> EnvState:
        one_hot = jax.nn.one_hot(skill, self._num_skills, dtype=self._space.dtype)
        return state.replace(obs=jnp.concatenate([state.obs, one_hot]), _internal=state._internal | {"skill": skill})
