"""Options common to all environments (``EnvOptions``), and conversion of library options to hashable values."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from evorl.config.names import no_such
from evorl.config.values import checked_value, field_types
from evorl.envs.env import AutoresetMode

MAX_FRAMES = 4096  # limit of ``history``: each frame is an operand of a compiled operation


@dataclasses.dataclass(frozen=True)
class EnvOptions:
    """Options available for every environment of every library. Each is a wrapper or a setting of the vector env.

    ``configs/env/_options.yaml`` lists the options that a run may set, with these defaults.

    Attributes:
        parallel: number of environments B.
        autoreset_mode: behavior at the end of an episode, an ``AutoresetMode`` or its name.
        max_episode_steps: time limit in environment steps; ``None`` for the environment's default. With
            ``action_repeat``, an episode has ``max_episode_steps / action_repeat`` actions, rounded up; the last one
            may last fewer steps.
        action_repeat: number of environment steps per action; ``info.steps`` counts actions.
        history: number of most recent observations that are stacked, see ``FrameStackWrapper``.
        reward_transform: sign-preserving function of the reward: tanh, arctan, sign, sqrt or log.
        reward_clip: bound of the absolute reward; like the next two options it does not change ``info.episode_return``.
        reward_scale: factor of the reward.
        sparse_reward_interval: steps after which the accumulated reward is paid; the remainder is paid at the end.
        channels: axis of the channels in the library's images: ``last``, or ``first``, which moves them to the last
            axis, where convolutions expect them.
        flatten_obs: true concatenates an observation to one vector, with discrete entries one-hot encoded. ``None``
            only one-hot encodes discrete entries (``Discrete``, ``MultiDiscrete``); false changes nothing.
        observed: indices of the components of a flat observation that the agent sees; ``None`` for all.
        goal_setter: method that chooses goals, see ``make_goal_setter``; ``None`` for the environment's own goals.
        randomization: ranges of the physics parameters sampled at the start of each episode, by field name, see
            ``ranges_from_config``; ``None`` keeps the environment's own values.
        skills: number of skills; each episode samples one, which is appended to observations, see ``SkillWrapper``.
        skill: fixed skill of all episodes; ``None`` samples one per episode.

    Raises:
        ValueError: a value has the wrong type or is out of range.
    """

    parallel: int = 1
    autoreset_mode: AutoresetMode | str = AutoresetMode.NORMAL
    max_episode_steps: int | None = None
    action_repeat: int = 1
    history: int = 1
    reward_transform: str | None = None
    reward_clip: float | None = None
    reward_scale: float | None = None
    sparse_reward_interval: int | None = None
    channels: Literal["last", "first"] = "last"
    flatten_obs: bool | None = None
    observed: Sequence[int] | None = None
    goal_setter: Any = None
    randomization: Any = None
    skills: int | None = None
    skill: int | None = None

    def __post_init__(self) -> None:
        for name, annotation in field_types(EnvOptions).items():
            object.__setattr__(self, name, checked_value(getattr(self, name), annotation, name))
        if self.history > MAX_FRAMES:
            raise ValueError(f"history must be at most {MAX_FRAMES:,} observations, got {self.history:,}.")


OPTION_NAMES = tuple(field.name for field in dataclasses.fields(EnvOptions))


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split ``options`` into the fields of ``EnvOptions`` and all others, which are for the environment itself."""
    shared = {name: value for name, value in options.items() if name in OPTION_NAMES}
    return shared, {name: value for name, value in options.items() if name not in OPTION_NAMES}


def as_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Return an ``AutoresetMode`` given as such or by name, in any case; raise ``ValueError`` for unknown names."""
    if isinstance(mode, AutoresetMode):
        return mode
    if str(mode).upper() not in AutoresetMode.__members__:
        raise ValueError(no_such("autoreset_mode", mode, [member.value for member in AutoresetMode]))
    return AutoresetMode[str(mode).upper()]


def check_options(env_name: str, names: Iterable[str], valid: Iterable[str]) -> None:
    """Raise ``ValueError`` for an option that is neither in ``valid`` nor a field of ``EnvOptions``."""
    valid = [*sorted(valid), *OPTION_NAMES]
    for name in names:
        if name not in valid:
            raise ValueError(no_such(f"option of {env_name}", name, valid))


def parameter_names(constructor: Any) -> set[str]:
    """Return the named parameters of a class or function."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, parameter in inspect.signature(constructor).parameters.items() if parameter.kind in kinds}


def as_hashable(value: Any) -> Any:
    """Convert mappings, lists and arrays in ``value`` to hashable, tagged tuples, which ``from_hashable`` restores.

    Raises:
        TypeError: a value can neither be hashed nor converted.
    """
    if isinstance(value, Mapping):
        return ("dict", tuple(sorted((str(k), as_hashable(v)) for k, v in value.items())))
    if isinstance(value, list | tuple) or type(value).__name__ == "ListConfig":
        return ("list", tuple(as_hashable(v) for v in value))
    if hasattr(value, "__array__") and np.ndim(value) > 0:
        array = np.asarray(value)
        return ("array", array.dtype.str, array.shape, array.tobytes())
    hash(value)
    return ("value", value)


def from_hashable(value: tuple) -> Any:
    """Invert ``as_hashable``; lists are returned as tuples."""
    tag, content = value[0], value[1]
    if tag == "dict":
        return {name: from_hashable(item) for name, item in content}
    if tag == "list":
        return tuple(from_hashable(item) for item in content)
    if tag == "array":
        return np.frombuffer(value[3], dtype=np.dtype(content)).reshape(value[2])
    return content
