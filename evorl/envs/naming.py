"""Names and options of environments: nearest valid names, and options as hashable values."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def nearest_name(name: str, valid: Iterable[str]) -> str:
    """The end of an error sentence: ``"; did you mean 'x'? There are: ..."``."""
    valid = list(valid)
    folded = {candidate.lower(): candidate for candidate in valid}
    near = difflib.get_close_matches(str(name).lower(), folded, n=1, cutoff=0.5)
    hint = f"; did you mean {folded[near[0]]!r}?" if near else "."
    return f"{hint} There are: {', '.join(valid)}."


WRAPPER_OPTIONS = (
    "max_episode_steps",
    "action_repeat",
    "history",
    "reward_scale",
    "sparse_reward_interval",
    "flatten_obs",
    "observed",
    "backend",
)


def parameter_names(constructor: Any) -> set[str]:
    """The named parameters of a class or function."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, parameter in inspect.signature(constructor).parameters.items() if parameter.kind in kinds}


def check_options(env_name: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Raises ``ValueError`` for an option that neither the environment nor a wrapper knows."""
    valid = sorted(valid)
    for option in given:
        if option not in valid:
            nearest = nearest_name(option, [*valid, *WRAPPER_OPTIONS])
            raise ValueError(f"{env_name} has no option {option!r}{nearest}")


def frozen(value: Any) -> Any:
    """``value`` with mappings, lists and arrays as hashable tuples, tagged so that ``thawed`` restores them.

    Raises:
        TypeError: something in it can be neither hashed nor converted.
    """
    if isinstance(value, Mapping):
        return ("dict", tuple(sorted((str(k), frozen(v)) for k, v in value.items())))
    if isinstance(value, list | tuple) or type(value).__name__ == "ListConfig":
        return ("list", tuple(frozen(v) for v in value))
    if hasattr(value, "__array__") and np.ndim(value) > 0:
        array = np.asarray(value)
        return ("array", array.dtype.str, array.shape, array.tobytes())
    hash(value)
    return ("value", value)


def thawed(value: tuple) -> Any:
    """The inverse of ``frozen``; lists come back as tuples."""
    tag, content = value[0], value[1]
    if tag == "dict":
        return {name: thawed(item) for name, item in content}
    if tag == "list":
        return tuple(thawed(item) for item in content)
    if tag == "array":
        return np.frombuffer(value[3], dtype=np.dtype(content)).reshape(value[2])
    return content
