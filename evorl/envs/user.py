"""Environments of the user: made by a function that a config names."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from evorl.envs.env import Env
from evorl.envs.naming import check_options, frozen, nearest_name, parameter_names, thawed
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers.vector import VectorEnv
from evorl.envs.wrappers.wrapper import Wrapper

_STACK_OPTIONS = tuple(name for name in inspect.signature(wrap_env).parameters if name != "env")


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
        **options: those of ``evorl.envs.stack.wrap_env`` go there, every other one to the function.

    Raises:
        ValueError: there is no such module or function, it has no such option, or what it returns is no single
            ``Env``; in words.
    """
    function = _function(factory)
    stack = {name: value for name, value in options.items() if name in _STACK_OPTIONS}
    own = {name: value for name, value in options.items() if name not in _STACK_OPTIONS}
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        check_options(factory, own, parameter_names(function))
    return wrap_env(_made_by(function, factory, frozen(own)), **stack)


@functools.lru_cache(maxsize=16)
def _made_by(function: Callable[..., Env], factory: str, options: tuple) -> UserEnv:
    env = function(**thawed(options))
    if not isinstance(env, Env) or isinstance(env, VectorEnv):
        raise ValueError(
            f"env.factory={factory} must return a single evorl.envs.Env, got {type(env).__name__}: wrappers for the "
            "clock and for several environments are put around it."
        )
    return UserEnv(env, (factory, options))


def _function(factory: Any) -> Callable[..., Any]:
    module_name, colon, name = str(factory).partition(":")
    if not (isinstance(factory, str) and module_name and colon and name):
        raise ValueError(f"env.factory must be like package.module:function, got {factory!r}.")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks another one
        raise ValueError(
            f"env.factory={factory}: Python finds no module {error.name!r}. Put the folder that holds it on "
            "PYTHONPATH, or install it."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        found = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ValueError(f"env.factory={factory}: {module_name} has no function {name!r}{nearest_name(name, found)}")
    return function
