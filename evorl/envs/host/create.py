"""Creates a vector environment from a function that creates simulators on the host."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container
from typing import Any

from evorl.envs.host.bridge import HostBackedEnv
from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.options import OPTION_NAMES, EnvOptions, check_options, parameter_names, split_options, takes_kwargs


def create_host_env(make: Callable[..., HostVectorEnv], title: str, *names: str, **options: Any) -> HostBackedEnv:
    """Create a vector environment of simulators on the host.

    Args:
        make: function that creates simulators. It is called with ``names``, ``num_envs`` and its options; and with
            ``max_episode_steps`` and ``action_repeat`` if it has these parameters, and they are required or set.
        title: name of the environment for messages.
        *names: positional arguments of ``make``.
        **options: the fields of ``EnvOptions``, ``host`` (see ``HostBackedEnv``), and the options of ``make``.

    Raises:
        ValueError: an option or the environment does not exist, or a value is invalid.
        HostEnvError: ``make`` calls ``sys.exit``, or creates the wrong number of simulators; other errors propagate.
    """
    shared, arguments = split_options(options)
    host = arguments.pop("host", "auto")
    parameters, signature = parameter_names(make), inspect.signature(make).parameters
    passed = {*list(signature)[: len(names)], "num_envs"}
    if not takes_kwargs(make):
        check_options(title, arguments, parameters - passed | {"host"})
    for name, default in (("max_episode_steps", None), ("action_repeat", 1)):
        value = shared.get(name, default)
        is_required = name in parameters and signature[name].default is inspect.Parameter.empty
        if name in parameters and value is not None and (value != default or is_required):
            arguments[name] = value
    check_arguments(make, {*passed, *arguments})

    def make_rows(num_envs: int) -> HostVectorEnv:
        return functools.partial(make, *names)(num_envs=num_envs, **arguments)

    return HostBackedEnv(make_rows, EnvOptions(**shared), host)


def check_arguments(function: Callable[..., Any], names: Container[str]) -> None:
    """Raise ``ValueError`` if ``names``, the passed arguments, lack a parameter of ``function`` without a default."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a decorator may pass arguments itself
    except ValueError:  # of a decorator in C, such as functools.cache
        signature = inspect.signature(function)
    for name, p in signature.parameters.items():
        is_named = p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if is_named and p.default is p.empty and name not in names:
            advice = f"add +env.{name}=VALUE on the command line, or {name} to the section env of a config"
            if name == "max_episode_steps" and "num_envs" in names:
                advice = f"set env.{name}"
            elif name in (*OPTION_NAMES, "host", "library", "name", "factory"):
                advice = f"evorl uses env.{name} itself, so it is not passed. Rename the parameter or give it a default"
            raise ValueError(f"{getattr(function, '__qualname__', function)} requires {name}: {advice}.")
