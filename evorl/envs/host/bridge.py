"""Simulators on the host as a vector environment, stepped from inside compiled programs or between them.

A training iteration is either one compiled program that calls the host at each step, or a loop on the host that steps
the simulators and calls a compiled program to act (``evorl.actors.host_loop``). Both use ``HostBackedEnv.request`` and
``HostBackedEnv.complete``, so their results are identical.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from evorl.config.names import no_such
from evorl.envs.env import AutoresetMode, Env, EnvState, as_autoreset_mode, compiled, freeze_ended
from evorl.envs.host.host_row import HostRow
from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.host.simulators import Simulators, joined_bytes
from evorl.envs.options import EnvOptions
from evorl.envs.stack import put_wrappers
from evorl.envs.vector import VectorEnv, outer_state
from evorl.envs.wrappers.action import ActionRepeatWrapper
from evorl.envs.wrappers.goal import wrap_goals
from evorl.ops.collectives import joined_under_vmap
from evorl.ops.trees import tree_where
from evorl.types import Action, Key, PyTreeDict

HOST_MODES = ("auto", "loop", "callback")
_MODES = (AutoresetMode.NORMAL, AutoresetMode.DISABLED)


class HostBackedEnv(VectorEnv):
    """Simulators on the host as a ``VectorEnv``, with the same states, keys and wrappers as JAX environments.

    The seed of episode n of environment i consists of the two words of ``fold_in(key_i, n)``, the key from which the
    same episode of a JAX environment starts. Unless the simulators can be saved, only their latest state may be
    stepped: stepping an older state raises an error.

    Args:
        make: function that creates a given number of simulators.
        options: number of environments, and settings of the wrappers. ``action_repeat`` must be that of the simulators,
            ``autoreset_mode`` must be ``NORMAL`` or ``DISABLED``.
        host: ``"loop"`` (or ``"auto"``) steps the simulators in a loop on the host if the workflow supports it;
            ``"callback"`` always calls them from the compiled program.

    Raises:
        ValueError: an option is invalid, or is not supported for simulators (goal setters, randomization, skills).
        HostEnvError: ``make`` calls ``sys.exit``, or creates the wrong number of simulators; other errors propagate.
    """

    steps_on_host = True

    def __init__(self, make: Callable[[int], HostVectorEnv], options: EnvOptions, host: str = "auto") -> None:
        mode = as_autoreset_mode(options.autoreset_mode)
        if mode not in _MODES:
            raise ValueError(f"autoreset_mode={mode.value} needs a JAX environment: use normal or disabled.")
        if options.goal_setter is not None:
            raise ValueError(
                "env.goal_setter needs a JAX environment: it may end episodes, which a simulator would not notice."
            )
        if options.randomization is not None:
            raise ValueError("env.randomization needs a JAX environment: the physics of a simulator cannot be changed.")
        if options.skills is not None or options.skill is not None:
            raise ValueError("env.skills needs a JAX environment: a skill is sampled with the key of the reset.")
        if host not in HOST_MODES:
            raise ValueError(no_such("value of env.host", host, HOST_MODES))
        self.autoreset_mode = mode  # pyright: ignore[reportAttributeAccessIssue]  # others have a class for each mode
        self.host = "loop" if host == "auto" else host
        repeats, limit = options.action_repeat, options.max_episode_steps
        self.simulators = Simulators(make, options.parallel, None if limit is None else -(-limit // repeats))
        main = self.simulators.main
        if main.action_repeat != repeats:
            self.simulators.close()
            raise ValueError(
                f"env.action_repeat={repeats} differs from the steps per action of these simulators: set it to "
                f"{main.action_repeat}, use a JAX or Gymnasium environment, or repeat actions inside the simulator."
            )
        if limit is not None and main.max_episode_steps is not None and limit > main.max_episode_steps:
            self.simulators.close()
            raise ValueError(
                f"env.max_episode_steps={limit} exceeds the limit of these simulators, {main.max_episode_steps} steps: "
                f"choose at most {main.max_episode_steps}, or raise the limit in the function that creates them."
            )
        self.is_remote = main.is_remote
        limits = [limit for limit in (options.max_episode_steps, main.max_episode_steps) if limit is not None]
        self._row = HostRow(main.obs_space, main.action_space, main.info_spec, min(limits, default=None))
        row: Env = self._row
        if main.goal_task is not None:
            row = wrap_goals(row, main.goal_task)
        if repeats > 1:
            row = ActionRepeatWrapper(row, repeats, on_host=True)
        channels = "last" if main.has_channels_last else options.channels
        of_row = dataclasses.replace(options, action_repeat=1, max_episode_steps=None, channels=channels)
        super().__init__(put_wrappers(row, of_row), options.parallel)
        self._num_agents = main.num_agents  # the wrappers process each agent separately
        self._saved = main.get_state()
        weakref.finalize(self, Simulators.close, self.simulators)

    def _identity(self) -> Any:
        return id(self)

    @property
    def num_agents(self) -> int:
        return self._num_agents

    @property
    def can_be_saved(self) -> bool:
        """True if the simulators can save and restore their state."""
        return self._saved is not None

    def close(self) -> None:
        self.simulators.close()

    def show_physics(self) -> None:
        """Include the simulators' physics in later states, for ``physics``; must be called before the first reset."""
        self.simulators.shows_physics = bool(self.simulators.main.physics())

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """Return positions and velocities by name, float64 as uint8 ``[B, 8 k]``; empty without ``show_physics``."""
        request, end, parts = env_state._internal.get("physics"), 0, PyTreeDict()
        if request is not None:
            for name, values in self.simulators.main.physics().items():
                start, end = end, end + 8 * values.shape[1]
                parts[name] = request[..., start:end]
        return parts

    @property
    def mujoco_model(self) -> Any:
        return self.simulators.main.mujoco_model

    def render(self) -> Any:
        """Return an image of the first simulator, uint8 ``[height, width, 3]``; ``None`` if it cannot be rendered."""
        picture = self.simulators.picture
        return self.simulators.main.render() if picture is None else picture

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        request = self.request(env_state, action)
        return self.complete(env_state, action, self._call("step", request, request.token.shape[0]))

    @compiled
    def partial_reset(self, env_state: EnvState, mask: jax.Array, key: Key) -> EnvState:
        keys, mask = self._restart_keys(env_state, mask, key)
        episode = jnp.zeros_like(env_state._internal.env_id)
        request = PyTreeDict(
            mask=mask,
            obs=jax.vmap(lambda _: self._row.obs_space.zeros())(mask),
            seeds=self._seeds(keys, episode),
            token=env_state._internal.token,
            saved=env_state._internal.saved,
        )
        answer = self._call("restart", request, mask.shape[0])
        fresh = self.started(answer, keys, env_state._internal.env_id, episode)
        state = tree_where(mask, fresh, env_state)
        return state.replace(_internal=state._internal.replace(**_position(answer)))

    def is_live(self, env_state: EnvState) -> bool:
        """Return True if ``env_state`` can be stepped: the simulators are in this state, or can restore it."""
        return self.can_be_saved or self.simulators.is_live(np.asarray(env_state._internal.token).reshape(-1))

    @compiled
    def next_episodes(self, env_state: EnvState) -> EnvState:
        """Return the start states of the next episodes; works in any state of the simulators.

        An environment that has not been stepped in its current episode restarts with the same seed.
        """
        internal = env_state._internal
        episode = internal.episode + (internal.inner.episode_steps > 0)
        answer = self._call("reset", self._seeds(internal.key, episode), episode.shape[0])
        fresh = self.started(answer, internal.key, internal.env_id, episode)
        # Other entries carried through episodes, such as an agent's recurrent state, start at zero.
        others = {name: value for name, value in internal.items() if name not in fresh._internal}
        return fresh.replace(_internal=fresh._internal | jax.tree.map(jnp.zeros_like, others))

    def request(self, env_state: EnvState, action: Action) -> PyTreeDict:
        """Return the argument of ``Simulators.step`` for a step with ``action``; a pure function."""
        self._check_action(env_state, action)
        internal = env_state._internal
        answer = jax.vmap(lambda _: self._row.blank_answer())(internal.env_id)
        stepped = jax.vmap(self.env.step)(env_state.replace(env_state=answer, _internal=internal.inner), action)
        return PyTreeDict(
            actions=stepped.env_state,
            seeds=self._seeds(internal.key, internal.episode + 1),
            episode_steps=internal.inner.episode_steps,
            token=internal.token,
            saved=internal.saved,
        )

    def complete(self, env_state: EnvState, action: Action, answer: Mapping[str, Any]) -> EnvState:
        """Return the state after a step from ``env_state``; ``answer`` is the simulators' result. A pure function."""
        answer = PyTreeDict(answer)
        internal = env_state._internal
        before = env_state.replace(_internal=internal.inner)
        outcome = PyTreeDict({name: answer[name] for name in self._row.blank_answer()})
        stepped = jax.vmap(self.env.step)(before.replace(env_state=outcome), action)
        return self._continue(env_state, stepped.replace(env_state=answer))

    def _continue(self, env_state: EnvState, stepped: EnvState) -> EnvState:
        answer, internal = stepped.env_state, env_state._internal
        # Episodes of frozen environments are counted, too, because their simulators advance.
        internal = internal.replace(episode=internal.episode + stepped.done, **_position(answer))
        stepped = stepped.replace(env_state=None)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            state = freeze_ended(env_state.replace(_internal=env_state._internal.inner), stepped)
            next_obs = state.obs
        else:
            start = jax.vmap(self.env.reset)(answer.start)
            obs, inner = tree_where(stepped.done, (start.obs, start._internal), (stepped.obs, stepped._internal))
            state, next_obs = stepped.replace(obs=obs, _internal=inner), stepped.obs
        return outer_state(state, next_obs, jnp.zeros_like(state.done), internal.replace(inner=state._internal))

    def _start(self, keys: jax.Array, env_id: jax.Array) -> EnvState:
        episode = jnp.zeros_like(env_id)
        answer = self._call("reset", self._seeds(keys, episode), env_id.shape[0])
        return self.started(answer, keys, env_id, episode)

    def started(self, answer: PyTreeDict, keys: jax.Array, env_id: jax.Array, episode: jax.Array) -> EnvState:
        """Return the first states of the episodes ``[B]``; ``answer`` is the simulators' result. A pure function."""
        inner = jax.vmap(self.env.reset)(answer.start)
        internal = PyTreeDict(env_id=env_id, key=keys, episode=episode, inner=inner._internal, **_position(answer))
        return outer_state(inner, inner.obs, jnp.zeros_like(inner.done), internal)

    @staticmethod
    def _seeds(keys: jax.Array, episode: jax.Array) -> jax.Array:
        """Return the seeds of episodes number ``episode`` in environments with these ``keys``, uint32 ``[B, 2]``."""
        return jax.random.key_data(jax.vmap(jax.random.fold_in)(keys, episode))

    def _call(self, method: str, request: Any, num_rows: int) -> PyTreeDict:
        """Call a method of ``Simulators`` from the compiled program, and return the result.

        Under ``vmap`` over random seeds, the environments of all seeds form one batch. Each request contains the token
        that the previous call returned, which keeps the calls in order.
        """

        def call(request: Any) -> PyTreeDict:
            shapes = self.answer_shapes(method, jax.tree.leaves(request)[0].shape[0])
            return io_callback(lambda request: PyTreeDict(getattr(self.simulators, method)(request)), shapes, request)

        return joined_under_vmap(call)(request)

    def answer_shapes(self, method: str, num_rows: int) -> PyTreeDict:
        """Return shapes and dtypes of the result of a method of ``Simulators``, for ``num_rows`` environments."""
        blank = self._row.blank_answer()
        answer = blank if method == "step" else PyTreeDict()
        answer |= {"start": blank.obs, "token": jnp.zeros((), jnp.uint32)}
        answer["saved"] = None if self._saved is None else jnp.zeros(self._saved.shape[1:], jnp.uint8)
        if self.simulators.shows_physics:
            answer["physics"] = jnp.zeros(joined_bytes(self.simulators.main.physics()).shape[1:], jnp.uint8)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_rows, *x.shape), x.dtype), answer)


def _position(answer: PyTreeDict) -> dict[str, Any]:
    """Return the entries of a result that a state stores: ``token``, and if present ``saved`` and ``physics``."""
    return {name: answer[name] for name in ("token", "saved", "physics") if name in answer}
