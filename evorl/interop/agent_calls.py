"""Functions with which a collector calls an agent: before a step for the action, after it for the data to store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evorl.config.names import did_you_mean
from evorl.envs.action_conversion import ActionConversion
from evorl.envs.gymnasium_spaces import action_space_of, space_of
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.space import Space
from evorl.envs.wrappers.encoding import has_choices
from evorl.interop.host_agent import HostAgent
from evorl.interop.transitions import STEP_NAMES, Step, own_copies, own_copy

EnvStep = Callable[[Any], Any]
_METHODS = ("step", "view", "eval_step", "update", "terminal")

ActFn = Callable[[Any], tuple[Any, Mapping[str, Any]]]
# Completes a step with all the data to store, given the environment's info.
CompleteFn = Callable[[Step, Mapping[str, Any]], Step]


def check_agent(agent: Any) -> None:
    """Raise ``TypeError`` if the agent lacks one of the required methods of ``HostAgent``."""
    if isinstance(agent, HostAgent):  # inherited methods need no check before each rollout
        return
    missing = [name for name in _METHODS if not callable(getattr(agent, name, None))]
    if missing:
        raise TypeError(
            f"{type(agent).__name__} has no method {', '.join(missing)}: inherit from evorl.interop.HostAgent, or "
            "wrap an evorl Agent in JaxHostAgent(agent, agent_state)."
        )


def env_step_for(env: Any, agent: Any) -> EnvStep:
    """Return ``env.step``, preceded by a conversion of the actions if ``agent.gives_agent_actions`` is True.

    Raises:
        ValueError: evorl's agents do not support the environment's action space, or need its observations encoded.
    """
    conversion, to_dtypes = _conversion_for(env, agent)
    return env.step if conversion is None else lambda action: env.step(to_dtypes(conversion.to_env(action)))


def random_agent_for(env: Any, agent: Any, seed: int, num_envs: int | None) -> HostAgent:
    """Return a random agent that acts in the format of ``agent``; errors are as in ``env_step_for``."""
    conversion, _ = _conversion_for(env, agent)
    if conversion is None:
        return HostAgent(env.action_space, seed, num_envs)
    return _RandomAgent(conversion.agent_space, seed, num_envs)


class _RandomAgent(HostAgent):
    gives_agent_actions = True


def _conversion_for(env: Any, agent: Any) -> tuple[ActionConversion | None, Callable[[Any], Any]]:
    """Return the conversion of the agent's actions, ``None`` if not needed, and a cast.

    The cast is a function that casts converted actions to the environment's dtypes.
    """
    space, to_dtypes = getattr(env, "action_space", None), lambda action: action
    if not getattr(agent, "gives_agent_actions", False):
        return None, to_dtypes
    seen = getattr(env, "obs_space", getattr(env, "observation_space", None))
    if type(seen).__module__.startswith("gymnasium") and type(seen).__name__ != "Box":
        seen = space_of(seen)
    if isinstance(seen, Space) and has_choices(seen):
        raise ValueError(
            f"evorl's agents need one-hot encoded discrete observations, but this environment has {seen}: wrap it in "
            "gymnasium.wrappers.FlattenObservation (for simulators, make_gymnasium_simulators(..., "
            "wrappers=['FlattenObservation'])), or use evorl train env=gymnasium/<id>, which encodes them."
        )
    if type(space).__module__.startswith("gymnasium"):
        space, to_dtypes = action_space_of(space)
    conversion = ActionConversion(space) if isinstance(space, Space) else None
    return (None if conversion is None or conversion.is_identity else conversion), to_dtypes


def calls_of(agent: Any, info_names: Sequence[str] = (), agent_info: Any = None) -> tuple[ActFn, CompleteFn | None]:
    """Return the functions called before and after each step of one call of ``collect``.

    The second function is ``None`` if it would add nothing to a step.

    Args:
        agent: see ``HostAgent``.
        info_names: entries of the environment's info to store with each step.
        agent_info: new value of ``agent.agent_info``, also stored with each step; ``None`` changes and stores nothing.

    Raises:
        TypeError: the agent lacks a method.
    """
    check_agent(agent)
    if agent_info is not None:
        agent.agent_info = agent_info
        agent_info = own_copy(agent_info)
    history: list[dict[str, Any]] | None = [] if getattr(agent, "wants_history", False) else None
    act = agent.step if history is None else functools.partial(agent.step, history=history)
    is_inherited = getattr(type(agent), "view", None) is HostAgent.view and "view" not in vars(agent)
    if history is None and is_inherited and not info_names and agent_info is None:
        return act, None

    def complete(step: Step, info: Mapping[str, Any]) -> Step:
        transition, extras = dict(zip(STEP_NAMES, step[:6], strict=True)), step[6]
        if not is_inherited:
            extras = own_copies(agent.view(transition, extras))  # the agent may reuse its arrays
        if history is not None:
            history.append({**transition, **extras})
        if info_names:
            extras = {**extras, **own_copies(_entries(info, info_names))}
        if agent_info is not None:
            extras = {**extras, "agent_info": agent_info}
        return *step[:6], extras

    return act, complete


def _entries(info: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    for name in names:
        if name not in info:
            raise HostEnvError(f"{name!r} of info_names is not in the environment's info.{did_you_mean(name, info)}")
    return {name: info[name] for name in names}
