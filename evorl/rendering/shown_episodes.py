"""Plays episodes for rendering, and selects the renderer: the environment, MuJoCo, a simulator or line drawings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import AgentState
from evorl.config.names import load_named
from evorl.envs import create_env
from evorl.envs.env import EnvState
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.mujoco_frames import BodyRenderer
from evorl.envs.options import parameter_names
from evorl.envs.remote import refuse_remote
from evorl.envs.vector import VectorEnv
from evorl.episodes.physics import physics_in
from evorl.episodes.replay import Player, episode_title, replay_episodes
from evorl.episodes.saved_episode import SavedEpisode
from evorl.evaluators.episodes import episode_keys, most_steps
from evorl.execution.host_errors import translate_host_errors
from evorl.rendering.line_drawings import drawing_of
from evorl.rendering.tiles import Shown
from evorl.rollout import ActionFn, env_step, with_recurrent_state
from evorl.types import Key

_NO_IMAGE = "render() of {} with render_mode=rgb_array returned no image: it must return uint8 [height, width, 3]."


@contextlib.contextmanager
def shown_episodes(
    env: VectorEnv,
    env_config: Mapping[str, Any] | str,
    action_fn: ActionFn,
    players: Sequence[Player],
    key: Key,
    *,
    size: int,
    num_frames: int,
    num_steps: int | None = None,
    as_bodies: bool = True,
) -> Iterator[list[Shown]]:
    """Context manager that plays episodes and yields them with their renderers, which are closed at its end.

    The first available renderer is used: the environment's own ``render(state)``, MuJoCo for environments with a model,
    the renderer of a simulator on the host, line drawings.

    Args:
        env: vector environment that does not reset ended episodes (``autoreset_mode="disabled"``).
        env_config: config of the environment, for a copy that is rendered while it is played.
        action_fn: ``agent.evaluate_actions``.
        players: policies; all play the same episodes.
        key: key of an evaluation; its first episodes are played again.
        size: image height, in pixels.
        num_frames: number of images per episode, see ``render_live``; other renderers draw any step on request.
        num_steps: maximum number of steps shown of each episode; ``None`` for whole episodes.
        as_bodies: for environments with a MuJoCo model, True renders the bodies; False yields no images (replay pages).

    Raises:
        HostEnvError: no graphics library works, or a simulator failed or returned ``None`` instead of an image.
    """
    longest = most_steps(env) if num_steps is None else num_steps
    has_own_render = has_render(env)
    if has_own_render or (env.mujoco_model is None and env.steps_on_host and hasattr(env, "render")):
        single = _rendering_env(env, env_config)
        try:
            look = user_renderer(single, size) if has_own_render else simulator_renderer(single, size)
            with translate_host_errors():
                seen = render_live(single, action_fn, players, key, look, num_frames=num_frames, num_steps=longest)
            yield seen
        finally:
            single.close()
        return
    with translate_host_errors():
        episodes = replay_episodes(env, action_fn, players, key)
    with contextlib.ExitStack() as stack:
        if env.mujoco_model is None:
            shown = draw_as_lines(episodes, size)
        elif as_bodies:
            shown = stack.enter_context(draw_as_bodies(episodes, env, size))
        else:
            shown = [Shown(title, episode.arrays["reward"], _not_drawn, episode) for title, episode in episodes]
        yield [each.first(longest) for each in shown]


def _not_drawn(step: int) -> np.ndarray:
    raise RuntimeError(f"There is no image of step {step}: the replay page draws these episodes from their arrays.")


def draw_as_lines(episodes: Sequence[tuple[str, SavedEpisode]], size: int) -> list[Shown]:
    """Return titled episodes drawn from their arrays, see ``drawing_of``; ``size`` is the image height in pixels."""
    return [
        Shown(title, episode.arrays["reward"], drawing_of(episode.arrays, size), episode) for title, episode in episodes
    ]


@contextlib.contextmanager
def draw_as_bodies(episodes: Sequence[tuple[str, SavedEpisode]], env: VectorEnv, size: int) -> Iterator[list[Shown]]:
    """Context manager that yields titled episodes, drawn by MuJoCo as images of ``size`` times ``size`` pixels.

    Raises:
        HostEnvError: no graphics library works.
        ValueError: an episode has no positions and velocities, or they do not match the environment's model.
    """
    renderer = BodyRenderer(env.mujoco_model, size)
    try:
        yield [
            Shown(title, episode.arrays["reward"], _bodies(renderer, episode, env), episode)
            for title, episode in episodes
        ]
    finally:
        renderer.close()


def _bodies(renderer: BodyRenderer, episode: SavedEpisode, env: VectorEnv) -> Callable[[int], np.ndarray]:
    qpos, qvel = physics_in(episode, env)
    return lambda moment: renderer.frame_of(qpos[moment], qvel[moment])


def render_live(
    env: VectorEnv,
    action_fn: ActionFn,
    players: Sequence[Player],
    key: Key,
    look: Callable[[EnvState], np.ndarray],
    *,
    num_frames: int,
    num_steps: int,
) -> list[Shown]:
    """Play episodes sequentially and render them while they run, for renderers that need the live environment.

    Args:
        env: vector environment of one copy that does not reset ended episodes: one row, or one row per agent, whose
            rewards are averaged.
        action_fn, players, key: see ``shown_episodes``.
        look: function from a state to an image, uint8 ``[height, width, 3]``.
        num_frames: number of images needed per episode; up to twice as many are stored, see ``Album``.
        num_steps: maximum number of steps per episode.
    """
    rows = jnp.arange(env.num_envs)  # one, or one per agent

    @jax.jit
    def step(agent_state: AgentState, env_state: EnvState, keys: Key, number: jax.Array) -> tuple[EnvState, Any]:
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
        env_state, transition = env_step(env.step, action_fn, env_state, agent_state, step_keys)
        return env_state, (transition.rewards.mean(), transition.dones.all())

    shown = []
    for title, agent_state, number in players:
        for episode in range(number):
            reset_keys, action_keys = episode_keys(key, episode * env.num_envs + rows)
            env_state = with_recurrent_state(env.reset(reset_keys), agent_state)
            album, rewards, done = Album(num_frames), [], False
            album.add(0, lambda state=env_state: look(state))
            for moment in range(num_steps):
                env_state, outcome = step(agent_state, env_state, action_keys, jnp.int32(moment))
                reward, done = jax.device_get(outcome)
                rewards.append(reward)
                is_last = bool(done) or moment + 1 == num_steps
                album.add(moment + 1, lambda state=env_state: look(state), is_last)
                if is_last:
                    break
            is_whole = bool(done) or num_steps >= most_steps(env)
            title_of_episode = episode_title(title, episode, number)
            shown.append(Shown(title_of_episode, np.array(rewards, np.float32), album.picture, is_whole=is_whole))
    return shown


class Album:
    """Collects evenly spaced images of an episode of unknown length, and the image of its last step.

    Args:
        num_frames: number of images needed; when more than twice as many are stored, every second one is dropped.
    """

    def __init__(self, num_frames: int) -> None:
        self._most, self._every = 2 * num_frames, 1
        self._pictures: dict[int, np.ndarray] = {}

    def add(self, moment: int, look: Callable[[], np.ndarray], is_last: bool = False) -> None:
        """Store the image ``look()`` if the step ``moment`` is a multiple of the current spacing, or the last step."""
        if moment % self._every and not is_last:
            return
        self._pictures[moment] = look()
        if len(self._pictures) > self._most:
            self._every *= 2
            self._pictures = {at: x for at, x in self._pictures.items() if at % self._every == 0 or at == moment}

    def picture(self, moment: int) -> np.ndarray:
        """Return the stored image closest to the step ``moment``."""
        return self._pictures[min(self._pictures, key=lambda at: abs(at - moment))]


def user_renderer(env: VectorEnv, size: int) -> Callable[[EnvState], np.ndarray]:
    """Return a function that renders the first row of a batched state with the user's ``render(state)``.

    Raises:
        ValueError: (by the returned function) the result of ``render`` is not uint8 ``[height, width, 3]``.
    """
    render: Any = env.unwrapped.render  # pyright: ignore[reportAttributeAccessIssue]  # checked by ``has_render``

    def look(env_state: EnvState) -> np.ndarray:
        picture = np.asarray(render(jax.tree.map(lambda x: x[0], env_state)))
        return _fitted(picture, size, f"{type(env.unwrapped).__name__}.render(state)")

    return look


def has_render(env: VectorEnv) -> bool:
    """Return True if the innermost environment has a method ``render``."""
    return callable(getattr(env.unwrapped, "render", None))


def simulator_renderer(env: Any, size: int) -> Callable[[EnvState], np.ndarray]:
    """Return a function that waits for a state, then renders the current state of a simulator on the host.

    Raises:
        HostEnvError: (by the returned function) rendering fails or returns ``None``; ``ValueError`` for non-RGB images.
    """

    def look(env_state: EnvState) -> np.ndarray:
        jax.block_until_ready(env_state)  # wait until the simulator has been stepped
        try:
            picture = env.render()
        except HostEnvError:
            raise
        except Exception as error:  # graphics libraries raise various types
            raise HostEnvError(f"{env.title} cannot be rendered: {type(error).__name__}: {error}") from error
        if picture is None:
            raise HostEnvError(_NO_IMAGE.format(env.title))
        return _fitted(np.array(picture), size, env.title)  # a copy: the simulator may reuse the array

    return look


def _rendering_env(env: VectorEnv, env_config: Mapping[str, Any] | str) -> Any:
    """Create a copy of ``env`` from its config, without autoreset; a simulator renders images in this process."""
    refuse_remote(env)
    settings = {"name": env_config} if isinstance(env_config, str) else dict(env_config)
    if env.steps_on_host:
        settings.pop("vectorization", None)  # render in this process
        factory = settings.get("factory")
        if factory is None or "render_mode" in parameter_names(load_named(factory, "env.factory")):
            settings["render_mode"] = "rgb_array"
    copy: Any = create_env(settings, parallel=env.num_agents, autoreset_mode="disabled")
    if env.steps_on_host:
        copy.simulators.shows_pictures = True  # also the last frame, before the next episode starts
    return copy


def _fitted(picture: np.ndarray, size: int, source: str) -> np.ndarray:
    """Resize an image to the height ``size``; raise ``ValueError`` unless it is uint8 ``[height, width, 3]``."""
    from PIL import Image

    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise ValueError(
            f"{source} must return an image, uint8 [height, width, 3]; got {picture.dtype} {list(picture.shape)}."
        )
    width = max(1, round(size * picture.shape[1] / picture.shape[0]))
    smooth = Image.Resampling.LANCZOS if picture.shape[0] > size else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(np.ascontiguousarray(picture)).resize((width, size), smooth))
