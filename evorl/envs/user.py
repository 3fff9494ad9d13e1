"""Environments of the user: made by a function that a config names."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from evorl.config.names import no_such
from evorl.envs.env import Env
from evorl.envs.options import as_hashable, check_options, from_hashable, parameter_names, split_options
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.envs.wrappers.wrapper import Wrapper


class UserEnv(Wrapper):
    """An environment that a function made; equal to every other one of the same function and options.

    Args:
        env: the environment.
        spec: what it was made of, hashable.
    """

    def __init__(self, env: Env, spec: Any) -> None:
        super().__init__(env)
        self._spec = spec

    def _identity(self) -> Any:
        return self._spec


def create_wrapped_user_env(factory: str, **options: Any) -> VectorEnv:
    """A vector env of the environment that ``factory`` makes.

    Args:
        factory: ``"package.module:function"``; the function returns one ``Env``, without a clock.
        **options: the fields of ``EnvOptions``; every other one goes to the function.

    Raises:
        ValueError: there is no such module or function, it has no such option, or what it returns is no single
            ``Env``; in words.
    """
    function = _import_function(factory)
    shared, arguments = split_options(options)
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        check_options(factory, arguments, parameter_names(function))
    return wrap_env(_make_env(function, factory, as_hashable(arguments)), **shared)


@functools.lru_cache(maxsize=16)
def _make_env(function: Callable[..., Env], factory: str, arguments: tuple) -> UserEnv:
    env = function(**from_hashable(arguments))
    if not isinstance(env, Env) or isinstance(env, VectorEnv):
        raise ValueError(
            f"env.factory={factory} must return a single evorl.envs.Env, got {type(env).__name__}: wrappers for the "
            "clock and for several environments are put around it."
        )
    return UserEnv(env, (factory, arguments))


def _import_function(factory: Any) -> Callable[..., Any]:
    module_name, colon, name = str(factory).partition(":")
    if not (isinstance(factory, str) and module_name and colon and name):
        raise ValueError(f"env.factory must be like package.module:function, got {factory!r}.")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, and lacks another one
        raise ValueError(
            f"env.factory={factory}: Python finds no module {error.name!r}. Put the folder that holds it on "
            "PYTHONPATH, or install it."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ValueError(f"env.factory={factory}: {no_such(f'function of {module_name}', name, functions)}")
    return function
