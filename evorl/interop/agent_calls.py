"""Functions with which a collector calls an agent: before a step for the action, after it for the data to store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evorl.config.names import did_you_mean
from evorl.envs.action_conversion import ActionConversion
from evorl.envs.gymnasium_spaces import action_space_of
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.space import Space
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
            "wrap an Agent of evorl as JaxHostAgent(agent, agent_state)."
        )


def env_step_for(env: Any, agent: Any) -> EnvStep:
    """Return ``env.step``, preceded by a conversion of the actions if ``agent.gives_agent_actions`` is True.

    Raises:
        ValueError: evorl's agents do not support the environment's action space.
    """
    space = getattr(env, "action_space", None) if getattr(agent, "gives_agent_actions", False) else None
    if space is None:
        return env.step
    to_dtypes = None
    if type(space).__module__.startswith("gymnasium"):
        space, to_dtypes = action_space_of(space)
    if not isinstance(space, Space) or ActionConversion(space).is_identity:
        return env.step
    to_env = ActionConversion(space).to_env
    return lambda action: env.step(to_env(action) if to_dtypes is None else to_dtypes(to_env(action)))


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
