"""Parallel environments of PettingZoo, their agents side by side. PettingZoo itself is imported when it is used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evorl.config.gate import admit_arguments
from evorl.config.names import load_named, missing_in_words, no_such
from evorl.config.values import positive
from evorl.envs.gymnasium_spaces import action_space_of, batch_rows, space_of
from evorl.envs.host.answers import (
    as_flag,
    as_reward,
    as_start,
    as_step,
    blank_observations,
    failure_of,
    put_observation,
)
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.host.seed_bits import fold_seeds

ENV_NAMES: tuple[str, ...] = ()  # PettingZoo's registry is open, and importing it takes long
ENDS = ("all", "any")


class PettingZooVectorEnv(HostVectorEnv):
    """Copies of an environment with A agents as rows: agent a of copy c is row ``c * A + a``. All learn one policy.

    The rows of a copy start and end together. With ``ends="all"`` that is when the last agent has reached its end, or
    when time has cut any of them. Until then an agent that has reached its own end observes zeros, is paid 0, and its
    actions reach nobody: a state that is worth nothing, which is what an end means. Its return is right, its length
    that of the copy. With ``ends="any"`` the first agent to end ends the copy, and the others count as cut by time.

    Args:
        make: makes one copy.
        num_envs: rows, a multiple of A.
        ends: what ends a copy.
        metrics: numbers in the info of agents that are reported; 0 for agents that are gone.
        name: for messages.

    Raises:
        ValueError: rows that are no multiple of A, agents with unequal spaces, or no parallel environment.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        ends: str = "all",
        metrics: Sequence[str] = (),
        name: str = "this environment",
    ) -> None:
        if ends not in ENDS:
            raise ValueError(no_such("value of env.ends", ends, ENDS))
        first = make()
        self._agents = _agents_of(first, name)
        num_agents = len(self._agents)
        self.num_envs = positive(num_envs, "num_envs")
        if num_envs % num_agents:
            raise ValueError(
                f"{name} has {num_agents} agents, which are rows: take a multiple of {num_agents} environments (also "
                f"to evaluate), not {num_envs}."
            )
        agent = self._agents[0]
        self.obs_space = space_of(first.observation_space(agent))
        self.action_space, self._convert_actions = action_space_of(first.action_space(agent))
        self.info_spec = dict.fromkeys(metrics, ((), np.float32))
        self._envs = [first, *(make() for _ in range(num_envs // num_agents - 1))]
        self._ends_with_first = ends == "any"
        self._gone = np.zeros((len(self._envs), num_agents), np.bool_)

    def reset(self, seeds: np.ndarray) -> Any:
        """See ``HostVectorEnv.reset``; a copy has the seed of its first row."""
        return self.partial_reset(np.ones(self.num_envs, np.bool_), seeds)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        """See ``HostVectorEnv.partial_reset``.

        Raises:
            ValueError: some rows of a copy are to start anew and others are not.
            HostEnvError: a copy failed.
        """
        masks, num_agents = mask.reshape(self._gone.shape), len(self._agents)
        if (masks.any(axis=1) != masks.all(axis=1)).any():
            raise ValueError(f"the {num_agents} rows of a copy start together: mask all of them, or none.")
        batch, seeds = blank_observations(self.obs_space, self.num_envs), fold_seeds(seeds)
        for copy in np.flatnonzero(masks[:, 0]).tolist():
            seen = self._called(copy, "reset", lambda env, c=copy: as_start(env.reset(seed=int(seeds[c * num_agents]))))
            self._check_agents(copy, self._envs[copy].agents, observations=seen)
            for i, agent in enumerate(self._agents):
                if agent in seen:
                    self._put(batch, copy, i, seen[agent])
            self._gone[copy] = False
        return batch

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """See ``HostVectorEnv.step``. Raises ``HostEnvError`` if a copy failed."""
        converted = batch_rows(self.action_space, self._convert_actions(actions))
        rewards = np.zeros(self._gone.shape, np.float32)
        termination, truncation = np.zeros_like(self._gone), np.zeros_like(self._gone)
        metrics = {name: np.zeros(self._gone.shape, np.float32) for name in self.info_spec}
        batch = blank_observations(self.obs_space, self.num_envs)
        for copy, env in enumerate(self._envs):
            acting = list(env.agents)
            rows = {agent: converted[copy * len(self._agents) + i] for i, agent in enumerate(self._agents)}
            sent = {agent: rows[agent] for agent in acting}
            seen, paid, ended, cut, info = self._called(copy, "step", lambda env, sent=sent: as_step(env.step(sent)))
            staying = [agent for agent in acting if agent in env.agents]
            self._check_agents(copy, staying, observations=seen, rewards=paid, terminations=ended, truncations=cut)
            ended, cut = self._flags(copy, acting, "terminations", ended), self._flags(copy, acting, "truncations", cut)
            over = self._note_ends(copy, acting, ended, cut)
            going_on = [agent for i, agent in enumerate(self._agents) if agent in acting and not self._gone[copy, i]]
            self._check_agents(copy, going_on, observations=seen)  # also of a cut episode, whose value counts
            termination[copy], truncation[copy] = over & self._gone[copy], over & ~self._gone[copy]
            for i, agent in enumerate(self._agents):
                if agent in acting:
                    rewards[copy, i] = self._checked(copy, agent, as_reward, paid.get(agent, 0.0))
                is_absent = agent not in acting or (self._gone[copy, i] and not over)
                if not is_absent and agent in seen:
                    self._put(batch, copy, i, seen[agent])
                for name in metrics if agent in acting else ():
                    metrics[name][copy, i] = self._metric(copy, agent, info, name)
        flat = {name: value.reshape(-1) for name, value in metrics.items()}
        return batch, rewards.reshape(-1), termination.reshape(-1), truncation.reshape(-1), flat

    def _note_ends(self, copy: int, acting: list[Any], ended: Mapping[Any, Any], cut: Mapping[Any, Any]) -> bool:
        """Note which agents have reached their own end; whether the copy's episode is over."""
        left = self._envs[copy].agents
        cuts = np.array([bool(cut.get(agent, False)) and not ended.get(agent, False) for agent in self._agents])
        has_ended = [agent in acting and (bool(ended.get(agent, False)) or agent not in left) for agent in self._agents]
        ends = np.array(has_ended) & ~cuts
        self._gone[copy] |= ends
        if self._ends_with_first:
            return bool(ends.any() or cuts.any() or not left)
        return bool(cuts.any() or not left or self._gone[copy].all())

    @property
    def num_agents(self) -> int:
        """A."""
        return len(self._agents)

    def render(self) -> np.ndarray | None:
        """A picture of the first copy, made with ``render_mode: rgb_array``."""
        return self._envs[0].render() if getattr(self._envs[0], "render_mode", None) == "rgb_array" else None

    def close(self) -> None:
        """Close every copy."""
        for env in self._envs:
            env.close()

    def _called(self, copy: int, method: str, call: Callable[[Any], Any]) -> Any:
        try:
            return call(self._envs[copy])
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit of an environment, too
            first = copy * len(self._agents)
            who = f"environments {first} to {first + len(self._agents) - 1} (copy {copy})"
            raise failure_of(who, method, error) from error

    @staticmethod
    def _check_agents(copy: int, agents: Sequence[Any], **parts: Any) -> None:
        """Raise ``HostEnvError`` unless every part of an answer is a dict with an entry for each of ``agents``."""
        for name, part in parts.items():
            if not isinstance(part, Mapping):
                raise HostEnvError(f"{name} of copy {copy} must be a dict by agent, got {type(part).__name__}.")
            missing = [str(agent) for agent in agents if agent not in part]
            if missing:
                raise HostEnvError(
                    f"{name} of copy {copy} must have an entry for each of its agents, and {', '.join(missing)} have "
                    "none: return one, or remove them from env.agents."
                )

    def _put(self, batch: Any, copy: int, number: int, seen: Any) -> None:
        row = copy * len(self._agents) + number
        self._checked(copy, self._agents[number], lambda x: put_observation(self.obs_space, batch, row, x), seen)

    def _flags(self, copy: int, acting: list[Any], name: str, flags: Mapping[Any, Any]) -> dict[Any, bool]:
        return {
            agent: self._checked(copy, agent, lambda x: as_flag(x, name), flags.get(agent, False)) for agent in acting
        }

    def _checked(self, copy: int, agent: Any, check: Callable[[Any], Any], value: Any) -> Any:
        try:
            return check(value)
        except HostEnvError as error:
            raise HostEnvError(f"{agent} in copy {copy}: {error}") from error

    def _metric(self, copy: int, agent: Any, info: Mapping[Any, Any], name: str) -> Any:
        known = info.get(agent, {})
        if name not in known:
            raise HostEnvError(f"the info of {agent} in copy {copy} has no {name!r}; it has {sorted(known)}.")
        return known[name]


def make_pettingzoo_simulators(
    name: str, num_envs: int, *, ends: str = "all", metrics: Sequence[str] = (), **kwargs: Any
) -> PettingZooVectorEnv:
    """Agents of parallel environments as simulators.

    Args:
        name: in PettingZoo's registry, such as ``sisl/pursuit-v5``; or ``package.module:function``, which makes one.
        num_envs: how many rows, a multiple of the number of agents.
        ends: see ``PettingZooVectorEnv``.
        metrics: numbers in the info of agents that are reported.
        **kwargs: of the environment.

    Raises:
        ValueError: there is no such environment or option, or it cannot be stepped so; in words.
        ImportError: PettingZoo, or a library that the environment needs, is not installed.
    """
    return PettingZooVectorEnv(functools.partial(_make_copy, name, kwargs), num_envs, ends, metrics, name)


def _make_copy(name: str, kwargs: Mapping[str, Any]) -> Any:
    admit_arguments(kwargs, "env")
    try:
        if ":" in name:
            return load_named(name, "env.name")(**kwargs)
        pettingzoo = _pettingzoo()
        if name not in pettingzoo.parallel_registry:
            raise ValueError(no_such("parallel environment of PettingZoo", name, pettingzoo.parallel_registry))
        try:
            return pettingzoo.make("parallel", name, **kwargs)
        except pettingzoo.env_registry.exceptions.FailedToImport as error:
            raise ImportError(str(error)) from error
    except (TypeError, AttributeError, ModuleNotFoundError) as error:
        raise ValueError(f"{name} cannot be made with {dict(kwargs)}: {error}") from error


@functools.cache
def _pettingzoo() -> Any:
    with missing_in_words("environments of PettingZoo", "pettingzoo"):
        import pettingzoo
    return pettingzoo


def _agents_of(env: Any, name: str) -> list[Any]:
    """All agents that there may be. Raises ``ValueError`` if they are unknown, or not alike."""
    agents = list(getattr(env, "possible_agents", ()))
    if not agents or not hasattr(env, "observation_space"):
        raise ValueError(f"{name} must be a parallel environment of PettingZoo that says its possible_agents.")
    for kind in ("observation_space", "action_space"):
        spaces = [getattr(env, kind)(agent) for agent in agents]
        other = next((i for i, space in enumerate(spaces) if space != spaces[0]), None)
        if other is not None:
            raise ValueError(
                f"agents are rows of one batch, and must have equal spaces; in {name} the {kind} of {agents[0]} is "
                f"{spaces[0]} and that of {agents[other]} {spaces[other]}: pad them by a wrapper."
            )
    return agents
