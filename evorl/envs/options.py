"""Options of environments: those that every library has, declared once; and a library's, as hashable values."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from evorl.config.names import no_such
from evorl.config.values import checked_value, field_types
from evorl.envs.env import AutoresetMode

MOST_FRAMES = 4096  # of a history: each is an operand of a compiled operation


@dataclasses.dataclass(frozen=True)
class EnvOptions:
    """What can be asked of any environment, whatever its library. Each is a wrapper, or a setting of the vector env.

    ``configs/env/_options.yaml`` lists those that a run may set, with these defaults.

    Attributes:
        parallel: number of environments B.
        autoreset_mode: what follows the end of an episode, an ``AutoresetMode`` or its name.
        max_episode_steps: the time limit in steps of the environment: with action repeat an episode has that many
            divided by ``action_repeat`` decisions, rounded up, the last one then being shorter. ``None`` for the
            environment's usual one.
        action_repeat: apply each action that many times; ``info.steps`` counts decisions.
        history: how many of the last observations are seen together, see ``FrameStackWrapper``.
        reward_transform: a function of the reward: tanh, arctan, sign, sqrt or log, all of which keep its sign.
        reward_clip: bound of the size of the reward; it and the next two leave ``info.episode_return`` as it is.
        reward_scale: factor of the reward.
        sparse_reward_interval: pay the summed reward every so many steps, and at the end.
        channels: position of the channels in images: ``last``, or ``first``, which moves them behind height and width,
            where convolutions read them.
        flatten_obs: join an observation to one vector, choices one-hot encoded. ``None`` joins nothing and encodes
            choices (``Discrete``, ``MultiDiscrete``) where they are; ``False`` leaves even these as they are.
        observed: the components of a flat observation that are seen; ``None`` for all.
        goal_setter: who chooses the goals of an environment with goals, see ``make_goal_setter``; ``None`` for its own.
        randomization: which numbers of the physics are drawn at the start of each episode, and from where to where, by
            the names of fields, see ``ranges_from_config``; ``None`` for the environment's own.
        skills: number of skills, one of which each episode draws and observations end with, see ``SkillWrapper``.
        skill: the one skill of all episodes; ``None`` draws one for each.

    Raises:
        ValueError: a value is of another type or out of range.
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
        if self.history > MOST_FRAMES:
            raise ValueError(f"history must be at most {MOST_FRAMES:,} observations, got {self.history:,}.")


OPTION_NAMES = tuple(field.name for field in dataclasses.fields(EnvOptions))


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of ``EnvOptions`` among ``options``, and the others, which the environment itself must know."""
    shared = {name: value for name, value in options.items() if name in OPTION_NAMES}
    return shared, {name: value for name, value in options.items() if name not in OPTION_NAMES}


def as_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """An ``AutoresetMode`` from itself or its name in any case. Raises ``ValueError`` for another name."""
    if isinstance(mode, AutoresetMode):
        return mode
    if str(mode).upper() not in AutoresetMode.__members__:
        raise ValueError(no_such("autoreset_mode", mode, [member.value for member in AutoresetMode]))
    return AutoresetMode[str(mode).upper()]


def check_options(env_name: str, names: Iterable[str], valid: Iterable[str]) -> None:
    """Raises ``ValueError`` for an option that neither the environment (``valid``) nor ``EnvOptions`` has."""
    valid = [*sorted(valid), *OPTION_NAMES]
    for name in names:
        if name not in valid:
            raise ValueError(no_such(f"option of {env_name}", name, valid))


def parameter_names(constructor: Any) -> set[str]:
    """The named parameters of a class or function."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, parameter in inspect.signature(constructor).parameters.items() if parameter.kind in kinds}


def as_hashable(value: Any) -> Any:
    """``value`` with mappings, lists and arrays as hashable tuples, tagged so that ``from_hashable`` restores them.

    Raises:
        TypeError: something in it can be neither hashed nor converted.
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
    """The inverse of ``as_hashable``; lists come back as tuples."""
    tag, content = value[0], value[1]
    if tag == "dict":
        return {name: from_hashable(item) for name, item in content}
    if tag == "list":
        return tuple(from_hashable(item) for item in content)
    if tag == "array":
        return np.frombuffer(value[3], dtype=np.dtype(content)).reshape(value[2])
    return content
