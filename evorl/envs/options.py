"""Options that all environments have (``EnvOptions``), and conversion of other options to hashable values."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from evorl.config.names import no_such
from evorl.config.values import checked_value, field_types, positive, whole_number
from evorl.envs.env import AutoresetMode

MAX_FRAMES = 4096  # maximum of ``history``: each stacked frame is an operand of one compiled operation


@dataclasses.dataclass(frozen=True)
class EnvOptions:
    """Options of every environment in every library. Each option adds a wrapper, or sets up the vector environment.

    ``configs/env/_options.yaml`` lists the options that a run may set, with these defaults.

    Attributes:
        parallel: number of environments B, or of rows B if each environment has several agents.
        autoreset_mode: behavior at the end of an episode, an ``AutoresetMode`` or its name.
        max_episode_steps: time limit in environment steps; ``None`` for the environment's default. With
            ``action_repeat``, an episode has ``max_episode_steps / action_repeat`` actions, rounded up; the last action
            may be repeated fewer times.
        action_repeat: number of environment steps per action. Rewards are summed; observations, ``info.metrics`` and
            ``info.is_success`` are from the last step. ``info.steps`` counts actions.
        history: number of most recent observations that are stacked, see ``FrameStackWrapper``; 1 stacks nothing.
        reward_transform: sign-preserving function of the reward: tanh, arctan, sign, sqrt or log; ``None`` for none.
        reward_clip: maximum absolute reward; ``None`` for no limit. No reward option changes ``info.episode_return``.
        reward_scale: factor of the reward; ``None`` for 1.
        sparse_reward_interval: number of steps over which rewards are summed; the sum is the reward of the last of
            these steps, or of the last step of the episode, and other rewards are 0. ``None`` changes nothing.
        channels: axis of the channels of images: ``last``, or ``first``, which moves them to the end (EnvPool: always).
        flatten_obs: true one-hot encodes discrete entries, and joins all but an ``action_mask`` into one vector.
            ``None`` only one-hot encodes discrete entries (``Discrete``, ``MultiDiscrete``); false changes nothing.
        observed: indices of the components of a flat observation that the agent sees; ``None`` for all.
        goal_setter: method that chooses goals, see ``make_goal_setter``; ``None`` for the environment's own goals.
        randomization: ranges of the physics parameters sampled at the start of each episode, by field name, see
            ``randomized``; ``None`` keeps the environment's own values.
        skills: number of skills; observations include the skill that each episode samples; ``None`` for no skills.
        skill: index of the skill of all episodes, from 0, see ``SkillWrapper``; ``None`` samples a skill per episode.

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
            if name != "skill":  # an index, which may be 0; SkillWrapper checks it
                object.__setattr__(self, name, checked_value(getattr(self, name), annotation, f"env.{name}"))
        whole_number(self.history, "env.history", 1, MAX_FRAMES)


OPTION_NAMES = tuple(field.name for field in dataclasses.fields(EnvOptions))


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split ``options`` into two dicts: the fields of ``EnvOptions``, and the options of the environment itself."""
    shared = {name: value for name, value in options.items() if name in OPTION_NAMES}
    return shared, {name: value for name, value in options.items() if name not in OPTION_NAMES}


def move_option(shared: dict[str, Any], arguments: dict[str, Any], option: str, argument: str) -> None:
    """Move a positive option to ``arguments``, as ``argument``; raise ``ValueError`` if that has another value."""
    value = shared.pop(option, None)
    if value is None:
        return
    if arguments.get(argument) not in (None, value):
        raise ValueError(f"env.{option}={value} and env.{argument}={arguments[argument]} are one setting: remove one.")
    arguments[argument] = positive(value, f"env.{option}")


def check_options(env_name: str, names: Iterable[str], valid: Iterable[str]) -> None:
    """Raise ``ValueError`` if one of ``names`` is neither in ``valid`` nor a field of ``EnvOptions``."""
    valid = [*sorted(valid), *OPTION_NAMES]
    for name in names:
        if name not in valid:
            raise ValueError(no_such(f"option of {env_name}", name, valid))


def takes_kwargs(function: Any) -> bool:
    """Return True if a class or function accepts arguments of any name, that is, if it has ``**kwargs``."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())


def parameter_names(constructor: Any) -> set[str]:
    """Return the parameters of a class or function that may be passed by name, without ``*args`` and ``**kwargs``."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, parameter in inspect.signature(constructor).parameters.items() if parameter.kind in kinds}


def as_hashable(value: Any) -> Any:
    """Convert ``value``, with nested mappings, lists and arrays, to a hashable tuple, which ``from_hashable`` inverts.

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
    return ("value", value, type(value))  # 1 == True == 1.0


def from_hashable(value: tuple) -> Any:
    """Return the value that ``as_hashable`` converted; its lists become tuples, and keys of mappings become strings."""
    tag, content = value[0], value[1]
    if tag == "dict":
        return {name: from_hashable(item) for name, item in content}
    if tag == "list":
        return tuple(from_hashable(item) for item in content)
    if tag == "array":
        return np.frombuffer(value[3], dtype=np.dtype(content)).reshape(value[2])
    return content
