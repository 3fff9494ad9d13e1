"""The command ``evorl play``: plays a run's policy in a Gymnasium environment, as an animation or on the screen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evorl.cli.command_options import FPS, NUM_EPISODES, NUM_FRAMES, SEED, Option, read_options, whole
from evorl.config.gate import scope
from evorl.config.values import LONGEST_AXIS
from evorl.export.export_command import POLICY_OPTIONS, policy_of

if TYPE_CHECKING:
    import numpy as np

    from evorl.envs.host.host_vector_env import HostVectorEnv
    from evorl.export.stored_policy import LoadedPolicy, StoredPolicy

LIBRARY = "gymnasium"
OPTIONS = {
    "env": Option(None, "the environment, as in gymnasium/CartPole-v1; null for that of the run", text=True),
    "episodes": Option(1, "how many are played", NUM_EPISODES),
    "seed": Option(0, "of the first episode; the others follow", SEED),
    "max_steps": Option(1000, "of an episode, at most", whole(1, LONGEST_AXIS)),
    "to": Option(None, "the animation, a .gif or .webp; null for the folder play of the run", text=True),
    "screen": Option(False, "whether to play on the screen instead, as fast as the environment says"),
    "frames": Option(200, "of the animation, at most", NUM_FRAMES),
    "fps": Option(30, "steps shown in a second", FPS),
    **POLICY_OPTIONS,
}


@scope()
def play_from_arguments(arguments: Sequence[str]) -> Path | None:
    """Play episodes and print their lengths, their returns and the path of the animation.

    Args:
        arguments: ``run=<folder>|latest``, and other ``OPTIONS``.

    Returns:
        Path of the animation; ``None`` if episodes were played on the screen.

    Raises:
        ValueError: an option is invalid, or the policy does not fit the environment.
        RunFolderError: the run does not exist.
        HostEnvError: the environment failed, or cannot be rendered on this machine.
    """
    settings, _ = read_options(arguments, OPTIONS, "evorl play")
    on_screen = settings["screen"]
    if not on_screen:
        from evorl.envs.mujoco_frames import draw_without_screen

        draw_without_screen()  # has to precede the first import of MuJoCo
        for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):  # for Pygame, which Gymnasium renders with
            os.environ.setdefault(name, "dummy")
    stored = policy_of(settings, "play")

    from evorl.export.stored_policy import LoadedPolicy

    name, options = environment_of(stored, settings["env"])
    simulators = _simulators(name, options, "human" if on_screen else "rgb_array")
    try:
        check_fits(stored, simulators, name)
        policy = LoadedPolicy(stored.policy, settings["seed"])
        frames: list[np.ndarray] = []
        for number in range(settings["episodes"]):
            kept = None if on_screen else frames
            length, total = play_episode(policy, simulators, settings["seed"] + number, settings["max_steps"], kept)
            print(f"episode {number + 1}: {length} steps, return {total:.2f}")
        return None if on_screen else _write(stored, name, frames, settings)
    finally:
        simulators.close()


def environment_of(stored: StoredPolicy, asked: str | None) -> tuple[str, dict[str, Any]]:
    """Return the id of the Gymnasium environment, and its options.

    A run in Gymnasium is played in its own environment, and a run in a gymnax environment that Gymnasium also has in
    Gymnasium's version.

    Raises:
        ValueError: the environment is of another library.
    """
    from evorl.envs.options import split_options

    library, _, name = stored.title.partition("/")
    options = {}
    if asked is not None:
        library, _, name = asked.partition("/") if asked.startswith(f"{LIBRARY}/") else (LIBRARY, "/", asked)
    elif library == LIBRARY:
        _, options = split_options(stored.env_config)
        left_out = ("library", "name", "host", "vectorization")
        options = {key: value for key, value in options.items() if key not in left_out and value is not None}
    if library == LIBRARY or (library == "gymnax" and name in _known()):
        return name, options
    raise ValueError(
        f"{stored.title} is not a Gymnasium environment: set one with the same observations and actions, such as "
        "env=gymnasium/CartPole-v1. Bodies of a run are shown by evorl evaluate evaluation.save_episodes=1 and "
        "evorl show-episode."
    )


def _known() -> tuple[str, ...]:
    """Return the ids of Gymnasium environments that gymnax reimplements."""
    return ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")


def _simulators(name: str, options: dict[str, Any], render_mode: str) -> HostVectorEnv:
    from evorl.config.names import load
    from evorl.envs.factory import HOST_LIBRARIES

    return load(HOST_LIBRARIES[LIBRARY])(name, num_envs=1, **{**options, "render_mode": render_mode})


def check_fits(stored: StoredPolicy, simulators: HostVectorEnv, name: str) -> None:
    """Raise ``ValueError`` unless the environment's observations and actions have the policy's shapes."""
    import jax

    from evorl.envs.multi_discrete import MultiDiscrete
    from evorl.envs.space import Discrete

    ours, theirs = stored.policy, simulators
    for what, expected, found in (
        ("observations", ours.obs_space, theirs.obs_space),
        ("actions", ours.action_space, theirs.action_space),
    ):
        shapes = [jax.tree.map(lambda spec: spec.shape, space.spec) for space in (expected, found)]
        are_choices = any(isinstance(space, Discrete | MultiDiscrete) for space in (expected, found))
        if shapes[0] != shapes[1] or (are_choices and expected != found):
            raise ValueError(
                f"the policy of {stored.title} does not fit {name}: its {what} are {expected}, and those of {name} "
                f"{found}."
            )


def play_episode(
    policy: LoadedPolicy, simulators: HostVectorEnv, seed: int, max_steps: int, frames: list[np.ndarray] | None = None
) -> tuple[int, float]:
    """Play one episode in a single simulator and return its length and return.

    Args:
        policy: the policy.
        simulators: a single simulator.
        seed: seed of the episode.
        max_steps: number of steps after which the episode is stopped.
        frames: list to which images are appended, uint8 ``[height, width, 3]``, one more than steps; ``None`` for none.

    Raises:
        HostEnvError: the environment renders no images.
    """
    import numpy as np

    policy.reset()
    obs = simulators.reset(np.asarray([seed], np.uint64))
    length, total = 0, 0.0
    _keep(simulators, frames)
    ended = False
    while not ended and length < max_steps:
        action = policy(obs)
        for _ in range(policy.action_repeat):
            obs, reward, termination, truncation, _ = simulators.step(action)
            length, total = length + 1, total + float(reward[0])
            _keep(simulators, frames)
            ended = bool(termination[0] or truncation[0])
            if ended or length >= max_steps:
                break
    return length, total


def _keep(simulators: HostVectorEnv, frames: list[np.ndarray] | None) -> None:
    import numpy as np

    from evorl.envs.host.host_vector_env import HostEnvError

    if frames is None:
        return
    picture = simulators.render()
    if picture is None:
        raise HostEnvError("this environment does not render images (render_mode rgb_array): set screen=true.")
    frames.append(np.array(picture))  # a copy: the environment may reuse the array


def _write(stored: StoredPolicy, name: str, frames: list[np.ndarray], settings: dict[str, Any]) -> Path:
    import numpy as np

    from evorl.rendering.animation import frame_numbers, write_animation

    plain = name.replace("/", "-").replace(":", "-")
    path = Path(settings["to"] or stored.folder / "play" / f"{plain}_{settings['seed']}.gif")
    numbers = frame_numbers(len(frames), settings["frames"])
    seconds = len(frames) / len(numbers) / settings["fps"]
    write_animation(path, np.stack([frames[i] for i in numbers]), seconds)
    print(f"{len(numbers)} pictures: {path}")
    return path
