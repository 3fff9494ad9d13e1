"""``evorl check-env``: checks the contract of a user's environment, and steps it with random actions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax

from evorl.agents.random_actions import random_actions
from evorl.cli.command_options import read_options
from evorl.cli.options import CHECK_ENV
from evorl.config.names import load_named
from evorl.envs import create_env
from evorl.envs.action_conversion import refusal_of
from evorl.envs.env import Env
from evorl.envs.env_check import env_problems
from evorl.envs.env_trial import Trial, try_env
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.options import parameter_names, split_options, takes_kwargs
from evorl.envs.user import call_checked
from evorl.execution.host_errors import translate_host_errors
from evorl.reports.summary_table import number


def check_env_from_arguments(arguments: Sequence[str]) -> Trial:
    """Check an environment, step it with random actions, and print and return the results of these steps."""
    settings, unnamed = read_options(arguments, CHECK_ENV, "evorl check-env", unnamed="module:function")
    if len(unnamed) != 1:
        raise ValueError(
            f"expected one environment (function or class), got {' '.join(unnamed) or 'none'}: use evorl check-env "
            "my:Walk."
        )
    return _check(unnamed[0], settings)


def _check(factory: str, settings: dict[str, Any]) -> Trial:
    single = _single_env(factory, settings["arguments"])
    started = time.perf_counter()
    if single is not None:
        _refuse(factory, list(env_problems(single)))
    seconds = time.perf_counter() - started
    limits = (settings["max_episode_steps"], settings["arguments"].get("max_episode_steps"))
    limit = next((limit for limit in limits if limit is not None), None)
    if limit is None and single is not None and single.max_episode_steps is None:
        limit = max(1, settings["steps"] // 2)
    env = create_env(
        {"factory": factory, **settings["arguments"]}, parallel=settings["num_envs"], max_episode_steps=limit
    )
    try:
        print(factory)
        print(f"  observations  {env.obs_space}")
        print(f"  actions       {env.action_space}")
        refusal = refusal_of(env.action_space)
        _refuse(factory, [f"No agent can act in its action space: {refusal}"] if refusal else [])
        if single is not None:
            print(f"  contract      satisfied, traced in {1000 * seconds:.0f} ms")
        with translate_host_errors():
            trial = try_env(env, settings["steps"], jax.random.key(settings["seed"]), random_actions)
    except HostEnvError as error:
        raise ValueError(f"{factory}: {error}") from error
    finally:
        env.close()
    print(f"  played        {trial.num_steps:,} random steps, {len(trial.returns):,} episodes ended")
    if len(trial.returns):
        lengths, returns = trial.lengths, trial.returns
        print(f"  episodes      mean length {lengths.mean():.1f} ({lengths.min()} to {lengths.max()}),", end=" ")
        print(f"mean return {number(returns.mean())} ({number(returns.min())} to {number(returns.max())})")
    print("  rewards       {} to {}, mean {}".format(*(number(trial.rewards[i]) for i in (0, 2, 1))))
    for note in trial.notes:
        print(f"Note: {note}")
    _refuse(factory, list(trial.problems))
    print("No errors were found in these steps.")
    return trial


def _single_env(factory: str, arguments: dict[str, Any]) -> Any:
    """Return the object that a function creates; ``None`` for simulators on the host, or if an argument is unknown."""
    function = load_named(factory, "the environment")
    if "num_envs" in parameter_names(function):
        return None
    _, arguments = split_options(arguments)
    unknown = not takes_kwargs(function) and bool(set(arguments) - parameter_names(function))
    made = None if unknown else call_checked(function, arguments)  # ``create_env`` reports unknown arguments
    if made is not None and not isinstance(made, Env) and hasattr(made, "observation_space"):
        made.close()
        return None
    return made


def _refuse(factory: str, problems: list[str]) -> None:
    if len(problems) == 1:
        raise ValueError(f"{factory}: {problems[0]}")
    if problems:
        lines = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
        raise ValueError(f"{factory} has {len(problems)} problems:{lines}")
