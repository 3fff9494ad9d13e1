"""Simulator for any Gymnasium environment, selected by name in ``app.yaml``.

``python environment/gymnasium_app.py --spaces`` prints the spaces of the environment in the format of ``app.yaml``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from evorl.apps.files.app_options import Options, read_options, stop
from evorl.serving.client import Image, TrainingBase


class GymnasiumTraining(TrainingBase):
    """Episodes of a Gymnasium environment.

    Options in ``app.yaml``, below ``environment``: ``name``, ``arguments`` of ``gymnasium.make``, ``limit`` (steps per
    episode), ``frame_skip`` (steps for which each action is repeated), ``no_op_max`` (maximum number of initial steps
    with action 0), ``record`` (a folder for videos), ``seed``. For image observations: ``frames`` with ``size``,
    ``grey`` and ``crop``, and ``as_image`` to send the protocol's ``Image``, with values in [0, 1], instead of arrays.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(**options.connection())
        self.env = make_env(options)
        self.frames = options.get("environment/frames")
        self.frame_skip = int(options.get("environment/frame_skip", 1))
        self.no_op_max = int(options.get("environment/no_op_max", 0))
        self.seed = options.seed
        check_spaces(options, spaces_of(self.env, self.frames))

    def episode(self, number: int) -> float:
        """Play one episode and return the sum of rewards."""
        obs, _ = self.env.reset(seed=self.seed)
        self.seed = None  # only the first reset is seeded: later episodes continue its random stream
        nothing = as_action(0 * self.env.action_space.sample(), self.env.action_space)
        for _ in range(int(self.env.np_random.integers(self.no_op_max + 1))):
            obs, _, terminated, truncated, _ = self.env.step(nothing)
            if terminated or truncated:
                obs, _ = self.env.reset()
        total = 0.0
        action = self.agent.update(None, seen(obs, self.frames), False)
        while True:
            obs, reward, terminated, truncated = self.step(action)
            total += reward
            ended = terminated or truncated
            action = self.agent.update(reward, seen(obs, self.frames), ended, truncated=truncated and not terminated)
            if ended:
                return total

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Repeat an action for ``frame_skip`` steps; return (obs, sum of rewards, terminated, truncated)."""
        total, action = 0.0, as_action(action, self.env.action_space)
        for _ in range(self.frame_skip - 1):
            obs, reward, terminated, truncated, _ = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                return obs, total, bool(terminated), bool(truncated)
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return obs, total + float(reward), bool(terminated), bool(truncated)


def make_env(options: Options) -> Any:
    """Create the environment named in ``app.yaml``, with the time limit and video wrappers that it requests."""
    name = options.get("environment/name", "CartPole-v1")
    try:
        import gymnasium

        if name.startswith("ALE/"):
            import ale_py

            gymnasium.register_envs(ale_py)
        shown = {"render_mode": "human"} if options.get("show_ui") else {}
        record = options.get("environment/record")
        shown = {"render_mode": "rgb_array"} if record else shown
        limit = int(options.get("environment/limit") or 0) or None
        arguments = {"max_episode_steps": limit, **options.get("environment/arguments", {}), **shown}
        env = gymnasium.make(name, **arguments)
        prefix = f"environment-{options.get('number', 0)}"
        return gymnasium.wrappers.RecordVideo(env, str(record), name_prefix=prefix) if record else env
    except ImportError as error:
        extra = "gymnasium[atari]" if error.name == "ale_py" else "gymnasium[classic-control,other]"
        stop(f"this environment needs a package that is not installed ({error}): pip install '{extra}'")
    except Exception as error:
        if type(error).__module__.startswith("gymnasium."):
            stop(f"environment.name in app.yaml is {name}: {error}")
        raise


def seen(obs: Any, frames: dict[str, Any] | None) -> Any:
    """Return the observation to send: preprocessed as ``frames`` specifies, as an array or an ``Image``.

    An ``Image`` has no axis for a single channel: the server reads a grayscale image as ``[height, width]``.
    """
    if frames is None:
        return obs
    from evorl.apps.files.app_frames import small_frame

    pixels = small_frame(obs, **{name: value for name, value in frames.items() if name != "as_image"})
    if not frames.get("as_image"):
        return pixels
    height, width, channels = pixels.shape
    return Image("L" if channels == 1 else "RGB", width, height, pixels.tobytes())


def as_action(action: Any, space: Any) -> Any:
    """Convert an agent's action, whose discrete choices count from 0, to an element of a Gymnasium space."""
    import numpy as np

    if hasattr(space, "low"):
        return np.clip(np.asarray(action, space.dtype).reshape(space.shape), space.low, space.high)
    if not space.shape:
        return int(action) + int(space.start)
    return (np.asarray(action).reshape(space.shape) + getattr(space, "start", 0)).astype(space.dtype)


def spaces_of(env: Any, frames: dict[str, Any] | None) -> dict[str, Any]:
    """Return ``obs_space`` and ``action_space`` of an environment in the format of ``app.yaml``."""
    import numpy as np

    obs, action = _observations_as_setting(env.observation_space), None
    if frames is not None:
        picture = seen(env.observation_space.sample(), {**frames, "as_image": False})
        shape = list(picture.shape)
        if frames.get("as_image") and shape[-1] == 1:
            shape.pop()
        obs = {"shape": shape, "dtype": "uint8", "low": 0, "high": 255}
    if hasattr(env.action_space, "nvec"):
        action = {"n": env.action_space.nvec.tolist()}
    elif hasattr(env.action_space, "n") and env.action_space.shape:
        action = {"n": np.full(env.action_space.shape, 2).tolist()}
    return {"obs_space": obs, "action_space": action or _as_setting(env.action_space, every_end=True)}


def _observations_as_setting(space: Any) -> dict[str, Any]:
    """Return ``obs_space`` for ``app.yaml``; discrete observations count from ``start``, as in the environment."""
    if hasattr(space, "nvec"):
        return {"n": space.nvec.tolist(), "start": space.start.tolist()}
    if hasattr(space, "n") and space.shape:
        return {"shape": list(space.shape), "dtype": str(space.dtype), "low": 0, "high": 1}
    return _as_setting(space) | ({"start": int(space.start)} if getattr(space, "start", 0) else {})


def _as_setting(space: Any, every_end: bool = False) -> dict[str, Any]:
    """Return the setting of a Discrete or Box space; ``every_end`` includes finite bounds of a partly unbounded Box."""
    import numpy as np

    if hasattr(space, "n") and not space.shape:
        return {"n": int(space.n)}
    if not hasattr(space, "low"):
        stop(f"{space} is not Discrete, MultiDiscrete, MultiBinary or Box: write your own script for it")
    setting: dict[str, Any] = {"shape": list(space.shape), "dtype": str(space.dtype)}
    is_finite = np.isfinite([space.low, space.high])
    if is_finite.all() or (every_end and is_finite.any()):
        same = (space.low == space.low.flat[0]).all() and (space.high == space.high.flat[0]).all()
        bounds = [_finite(x.flat[0].item() if same else x.tolist()) for x in (space.low, space.high)]
        setting |= dict(zip(("low", "high"), bounds, strict=True))
    return setting


def _finite(bound: Any) -> Any:
    """Return a bound, a number or nested lists, with infinite values replaced by ``None``, null in ``app.yaml``."""
    if isinstance(bound, list):
        return [_finite(part) for part in bound]
    return bound if abs(bound) < float("inf") else None


def check_spaces(options: Options, spaces: dict[str, Any]) -> None:
    """Exit with an error message if ``n`` or ``shape`` of a space in ``app.yaml`` differs from the environment's."""
    for name, space in spaces.items():
        setting = options.get(f"environment/{name}", {})
        if any(setting.get(key) != space.get(key) for key in ("n", "shape")):
            stop(
                f"environment.{name} in app.yaml is {json.dumps(setting)}, but {options.get('environment/name')} has "
                f"{json.dumps(space)}: change app.yaml"
            )


if __name__ == "__main__":
    if "--spaces" in sys.argv:
        read = read_options([word for word in sys.argv[1:] if word != "--spaces"])
        print(json.dumps(spaces_of(make_env(read), read.get("environment/frames"))))
    else:
        GymnasiumTraining(read_options()).run()
