"""Environments from a name or a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evorl.envs.brax import BRAX_ENV_NAMES, create_wrapped_brax_env
from evorl.envs.env import AutoresetMode
from evorl.envs.gymnax import GYMNAX_ENV_NAMES, create_wrapped_gymnax_env
from evorl.envs.naming import nearest_name
from evorl.envs.user import create_wrapped_user_env
from evorl.envs.wrappers.vector import VectorEnv
from evorl.envs.wrappers.wrapper import positive_int

_CREATE: dict[str, Callable[..., VectorEnv]] = {"brax": create_wrapped_brax_env, "gymnax": create_wrapped_gymnax_env}


def available_envs() -> dict[str, tuple[str, ...]]:
    """The names of environments by library. Nothing is imported for it."""
    return {"brax": BRAX_ENV_NAMES, "gymnax": GYMNAX_ENV_NAMES}


def create_env(
    config: Mapping[str, Any] | str | None = None,
    *,
    library: str | None = None,
    name: str | None = None,
    parallel: int | None = None,
    autoreset_mode: AutoresetMode | str | None = None,
    max_episode_steps: int | None = None,
    history: int | None = None,
    **options: Any,
) -> VectorEnv:
    """A vector env. Made twice with equal arguments, the two are equal and share compiled programs.

    Args:
        config: a mapping with ``library``, ``name`` and any option below; or a name such as ``"hopper"``,
            ``"brax/hopper"`` or ``"gymnax/CartPole-v1"``. Keyword arguments that are given win over it. Or with
            ``factory``, ``"package.module:function"``, instead of library and name: that function makes one ``Env``.
        library: ``"brax"`` or ``"gymnax"``; may be left out where the name is known in one library only.
        name: name of the environment in its library.
        parallel: number of environments B; 1 if nobody says.
        autoreset_mode: an ``AutoresetMode`` or its name; ``NORMAL`` if nobody says.
        max_episode_steps: the time limit; ``None`` for the usual one of the environment (1000 for brax).
        history: how many of the last observations are seen together; 1 if nobody says.
        **options: ``action_repeat``, ``reward_scale``, ``sparse_reward_interval``, ``flatten_obs``, ``observed``,
            ``backend`` (brax); every other one goes to the environment itself. ``None`` means the default.

    Raises:
        ValueError: an unknown library, environment or option; the message has the nearest valid name.
    """
    settings = _settings(config)
    explicit = {
        "library": library,
        "name": name,
        "parallel": parallel,
        "autoreset_mode": autoreset_mode,
        "max_episode_steps": max_episode_steps,
        "history": history,
        **options,
    }
    settings.update({key: value for key, value in explicit.items() if value is not None})
    if "history" in settings:
        if "frame_stack" in settings:
            raise ValueError("frame_stack and history are one option: give history alone.")
        settings["frame_stack"] = positive_int(settings.pop("history"), "history")
    if "factory" in settings:
        if "library" in settings or "name" in settings:
            raise ValueError("An environment is given by its library and name, or by a factory: leave one of them out.")
        return create_wrapped_user_env(settings.pop("factory"), **settings)
    library, name = _resolve(settings.pop("library", None), settings.pop("name", None))
    if "max_episode_steps" in settings:
        settings["episode_length"] = settings.pop("max_episode_steps")
    return _CREATE[library](name, **settings)


def _settings(config: Mapping[str, Any] | str | None) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, str):
        return {"name": config}
    if not isinstance(config, Mapping) and not hasattr(config, "items"):
        raise ValueError(f"An environment config is a name or a mapping, got {type(config).__name__}.")
    return {str(key): value for key, value in config.items() if value is not None}


def _resolve(library: str | None, name: str | None) -> tuple[str, str]:
    """Library and name of the environment, from either or from ``library/name``."""
    known = available_envs()
    if not name:
        raise ValueError("Which environment? Give its name, for example create_env('brax/hopper').")
    name = str(name)
    if library is None and name.split("/")[0] in known and "/" in name:
        library, name = name.split("/", 1)
    if library is None:
        libraries = [candidate for candidate, names in known.items() if name in names]
        if not libraries:
            every = [f"{candidate}/{env_name}" for candidate, names in known.items() for env_name in names]
            nearest = nearest_name(name, [e.split("/", 1)[1] for e in every])
            raise ValueError(f"No library has an environment {name!r}{nearest}")
        library = libraries[0]
    if library not in _CREATE:
        raise ValueError(f"There is no environment library {library!r}{nearest_name(library, _CREATE)}")
    return library, name
