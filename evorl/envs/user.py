"""User-defined environments, created by a function that the setting ``env.factory`` names."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from evorl.config.names import load_named
from evorl.envs.env import Env
from evorl.envs.env_check import EnvContractError, check_env
from evorl.envs.gymnasium import InProcessGymnasiumEnv
from evorl.envs.gymnasium_repeat import with_repeated_actions
from evorl.envs.host.answers import refuse_exit
from evorl.envs.host.create import check_arguments, create_host_env
from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.options import as_hashable, check_options, from_hashable, parameter_names, split_options, takes_kwargs
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.envs.wrappers.wrapper import Wrapper


class UserEnv(Wrapper):
    """An environment created by a user's function; instances with equal ``spec`` are equal.

    Args:
        env: the environment that the function returned.
        spec: hashable value with the function, its options and the class of ``env``; the objects, not their names,
            because a notebook can redefine a name.
    """

    def __init__(self, env: Env, spec: Any) -> None:
        super().__init__(env)
        self._spec = spec

    def _identity(self) -> Any:
        return self._spec


def create_wrapped_user_env(factory: str, **options: Any) -> VectorEnv:
    """Create a vector environment with the function that ``factory`` names.

    Args:
        factory: ``"package.module:function"``. The function returns a single ``Env`` without a time limit, or a single
            ``gymnasium.Env``; or it has a parameter ``num_envs`` and returns a ``HostVectorEnv`` with this number of
            environments.
        **options: the fields of ``EnvOptions``; ``host``, see ``HostBackedEnv``, unless the function returns an
            ``Env``; all others are passed to the function.

    Raises:
        ValueError: the module, function or option does not exist, or the result is not a valid environment.
        HostEnvError: the function calls ``sys.exit``, or the number of environments it returns is not ``num_envs``.
    """
    function = load_named(factory, "env.factory")
    if "num_envs" in parameter_names(function):
        return create_host_env(function, factory, **options)
    shared, arguments = split_options(options)
    of_host = {"host": arguments.pop("host")} if "host" in arguments else {}
    names = None if takes_kwargs(function) else parameter_names(function)
    if names is not None:
        check_options(factory, arguments, names)
    made = call_checked(function, arguments)
    if hasattr(made, "observation_space") and not isinstance(made, Env):
        made.close()
        return create_host_env(functools.partial(_gymnasium_simulators, function), factory, **options)
    if names is not None:
        check_options(factory, of_host, names)
    made_class = type(made.unwrapped if isinstance(made, Env) else made)
    # ``None`` for a class nested in a function or class
    cls = getattr(sys.modules.get(made_class.__module__), made_class.__qualname__, None)
    return wrap_env(_make_env(function, factory, as_hashable(arguments | of_host), cls), **shared)


def _gymnasium_simulators(
    function: Callable[..., Any],
    /,
    num_envs: int,
    action_repeat: int = 1,
    max_episode_steps: int | None = None,
    **arguments: Any,
) -> HostVectorEnv:
    repeats = action_repeat, max_episode_steps
    simulators = InProcessGymnasiumEnv(lambda: with_repeated_actions(function(**arguments), *repeats), num_envs)
    simulators.action_repeat = action_repeat
    return simulators


@functools.lru_cache(maxsize=16)
def _make_env(function: Callable[..., Env], factory: str, arguments: tuple, cls: type | None) -> UserEnv:
    env = call_checked(function, from_hashable(arguments))
    if not isinstance(env, Env) or isinstance(env, VectorEnv):
        raise ValueError(
            f"env.factory={factory} must return a single evorl.envs.Env or gymnasium.Env, which evorl vectorizes "
            f"itself; got {type(env).__name__}."
        )
    check_env(env)
    return UserEnv(env, (function, arguments, cls))


def call_checked(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Return ``function(**arguments)``. Raises ``HostEnvError`` if the function calls ``sys.exit``.

    Raises:
        ValueError: a required argument is missing.
        EnvContractError: the function instantiates a class that lacks abstract methods; the message names them.
    """
    check_arguments(function, arguments)
    try:
        return function(**arguments)
    except BaseException as error:
        refuse_exit(error, f"{getattr(function, '__qualname__', function)}, which makes the environment,")
        missing = re.search(r"Can't instantiate abstract class (\w+) .*abstract methods? (.*)$", str(error))
        if missing is None or not isinstance(error, TypeError):
            raise
        names = missing[2].replace("'", "").replace(", ", " and ")
        raise EnvContractError(
            f"{missing[1]} has no {names}: an environment class needs the methods reset and step, and obs_space and "
            "action_space as class attributes or properties."
        ) from error
