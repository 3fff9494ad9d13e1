"""Adapter for PettingZoo's parallel environments: each agent is a row of the batch. Imports PettingZoo on first use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evorl.config.gate import admit_arguments
from evorl.config.names import explain_missing_package, load_named, no_such
from evorl.config.values import positive
from evorl.envs.gymnasium_spaces import action_space_of, batch_rows, space_of
from evorl.envs.host import answers
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from evorl.envs.host.seed_bits import fold_seeds

ENV_NAMES: tuple[str, ...] = ()  # users can extend PettingZoo's registry, and its import is slow
ENDS = ("all", "any")


class PettingZooVectorEnv(HostVectorEnv):
    """Copies of an environment with A agents as rows: agent a of copy c is row ``c * A + a``. Agents share one policy.

    The rows of a copy start and end together. With ``ends="all"`` a copy ends when all agents have terminated, or when
    an agent is truncated. Until then a terminated agent observes zeros, has reward 0, and its actions are ignored, so
    that its state has value 0. Its ``episode_return`` is correct, but its ``episode_length`` is that of the copy.
    With ``ends="any"`` a copy ends when the first agent ends, and its other agents are truncated.

    Args:
        make: function that creates one copy.
        num_envs: number of rows, a multiple of A.
        ends: condition that ends a copy, ``"all"`` or ``"any"``.
        metrics: entries of the agents' ``info`` for ``info.metrics``; they are 0 for agents that have ended.
        name: name of the environment for messages.
        max_episode_steps: time limit to add, in steps; ``None`` for none.

    Raises:
        ValueError: ``num_envs`` is not a multiple of A; ``ends`` is unknown; the agents have different spaces; or
            ``make`` does not create a parallel environment.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        ends: str = "all",
        metrics: Sequence[str] = (),
        name: str = "this environment",
        *,
        max_episode_steps: int | None = None,
    ) -> None:
        if ends not in ENDS:
            raise ValueError(no_such("value of env.ends", ends, ENDS))
        first = make()
        self._agents = _agents_of(first, name)
        self.num_agents = num_agents = len(self._agents)
        self.num_envs = positive(num_envs, "num_envs")
        if num_envs % num_agents:
            raise ValueError(
                f"{name} has {num_agents} agents, each a row of the batch: num_envs (per actor in async mode), or "
                f"in evolution episodes_per_individual, must be a multiple of {num_agents}, got {num_envs} rows."
            )
        agent = self._agents[0]
        self.obs_space = space_of(first.observation_space(agent))
        self.action_space, self._convert_actions = action_space_of(first.action_space(agent))
        self.info_spec = dict.fromkeys(metrics, ((), np.float32))
        self._envs = [first, *(make() for _ in range(num_envs // num_agents - 1))]
        self._ends_with_first = ends == "any"
        self._has_ended = np.zeros((len(self._envs), num_agents), np.bool_)
        self._was_reset = np.zeros(len(self._envs), np.bool_)
        self.max_episode_steps = max_episode_steps
        self._num_steps = np.zeros(len(self._envs), np.int64)

    def stateful_objects(self) -> list[Any]:
        return [getattr(env, "unwrapped", env) for env in self._envs]

    def reset(self, seeds: np.ndarray) -> Any:
        """Start episodes in all copies; a copy uses the seed of its first row."""
        return self.partial_reset(np.ones(self.num_envs, np.bool_), seeds)

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> Any:
        """Restart the copies where ``mask`` is True; a copy uses the seed of its first row. See ``HostVectorEnv``.

        Raises:
            ValueError: the mask is not equal for all rows of a copy.
            HostEnvError: a copy failed.
        """
        masks, num_agents = mask.reshape(self._has_ended.shape), len(self._agents)
        if (masks.any(axis=1) != masks.all(axis=1)).any():
            raise ValueError(f"the {num_agents} rows of a copy start together: the mask must be equal for all of them.")
        batch, seeds = answers.blank_observations(self.obs_space, self.num_envs), fold_seeds(seeds)
        for copy in np.flatnonzero(masks[:, 0]).tolist():
            seed = int(seeds[copy * num_agents])
            observations = self._called(copy, "reset", lambda env, seed=seed: answers.as_start(env.reset(seed=seed)))
            self._check_agents(copy, self._envs[copy].agents, observations=observations)
            for i, agent in enumerate(self._agents):
                if agent in observations:
                    self._put(batch, copy, i, observations[agent])
            self._has_ended[copy], self._was_reset[copy], self._num_steps[copy] = False, True, 0
        return batch

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step all copies; see ``HostVectorEnv.step``. Raises ``HostEnvError`` if a copy failed or was never reset."""
        converted = batch_rows(self.action_space, self._convert_actions(actions))
        rewards = np.zeros(self._has_ended.shape, np.float32)
        termination, truncation = np.zeros_like(self._has_ended), np.zeros_like(self._has_ended)
        metrics = {name: np.zeros(self._has_ended.shape, np.float32) for name in self.info_spec}
        batch = answers.blank_observations(self.obs_space, self.num_envs)
        for copy, env in enumerate(self._envs):
            if not self._was_reset[copy]:
                raise HostEnvError(f"environment copy {copy} was stepped before its first reset: call reset first.")
            acting = list(env.agents)
            rows = {agent: converted[copy * len(self._agents) + i] for i, agent in enumerate(self._agents)}
            sent = {agent: rows[agent] for agent in acting}
            # An environment may keep agents that have terminated.
            acting = [agent for i, agent in enumerate(self._agents) if agent in sent and not self._has_ended[copy, i]]
            observations, agent_rewards, terminated, truncated, info = self._called(
                copy, "step", lambda env, sent=sent: answers.as_step(env.step(sent))
            )
            remaining = [agent for agent in acting if agent in env.agents]
            self._check_agents(
                copy,
                remaining,
                observations=observations,
                rewards=agent_rewards,
                terminations=terminated,
                truncations=truncated,
            )
            terminated = self._flags(copy, acting, "terminations", terminated)
            truncated = self._flags(copy, acting, "truncations", truncated)
            self._num_steps[copy] += 1
            is_over = self._note_ends(copy, acting, terminated, truncated)
            continuing = [
                agent for i, agent in enumerate(self._agents) if agent in acting and not self._has_ended[copy, i]
            ]
            # Agents of a truncated copy need an observation, too, because their value is bootstrapped from it.
            self._check_agents(copy, continuing, observations=observations)
            termination[copy], truncation[copy] = is_over & self._has_ended[copy], is_over & ~self._has_ended[copy]
            for i, agent in enumerate(self._agents):
                if agent in acting:
                    rewards[copy, i] = self._checked(copy, agent, answers.as_reward, agent_rewards.get(agent, 0.0))
                is_absent = agent not in acting or (self._has_ended[copy, i] and not is_over)
                if not is_absent and agent in observations:
                    self._put(batch, copy, i, observations[agent])
                for name in metrics if agent in acting else ():
                    metrics[name][copy, i] = self._checked(
                        copy, agent, functools.partial(answers.as_metric, name=name), info.get(agent) or {}
                    )
        flat = {name: value.reshape(-1) for name, value in metrics.items()}
        return batch, rewards.reshape(-1), termination.reshape(-1), truncation.reshape(-1), flat

    def _note_ends(
        self, copy: int, acting: list[Any], terminated: Mapping[Any, Any], truncated: Mapping[Any, Any]
    ) -> bool:
        """Record the agents of a copy that have terminated or left; return True if the copy's episode is over."""
        left = self._envs[copy].agents
        is_cut = [bool(truncated.get(agent)) and not terminated.get(agent) for agent in self._agents]
        has_ended = [agent in acting and (bool(terminated.get(agent)) or agent not in left) for agent in self._agents]
        cuts, ends = np.array(is_cut), np.array(has_ended) & ~np.array(is_cut)
        self._has_ended[copy] |= ends
        if not left or cuts.any() or self._num_steps[copy] == self.max_episode_steps:
            return True
        return bool(ends.any() if self._ends_with_first else self._has_ended[copy].all())

    def render(self) -> np.ndarray | None:
        """Return an image ``[H, W, 3]`` of the first copy; ``None`` without ``render_mode: rgb_array``."""
        return self._envs[0].render() if getattr(self._envs[0], "render_mode", None) == "rgb_array" else None

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _called(self, copy: int, method: str, call: Callable[[Any], Any]) -> Any:
        try:
            return call(self._envs[copy])
        except BaseException as error:
            first = copy * len(self._agents)
            subject = f"environments {first} to {first + len(self._agents) - 1} (copy {copy})"
            raise answers.failure_of(subject, method, error) from error

    @staticmethod
    def _check_agents(copy: int, agents: Sequence[Any], **parts: Any) -> None:
        """Raise ``HostEnvError`` unless every part of a result is a dict with an entry for each of ``agents``."""
        for name, part in parts.items():
            if not isinstance(part, Mapping):
                raise HostEnvError(f"{name} of copy {copy} must be a dict keyed by agent, got {type(part).__name__}.")
            missing = [str(agent) for agent in agents if agent not in part]
            if missing:
                raise HostEnvError(
                    f"{name} of copy {copy} must have an entry for each of its agents, but lacks {', '.join(missing)}: "
                    "return these entries, or remove the agents from env.agents."
                )

    def _put(self, batch: Any, copy: int, number: int, observations: Any) -> None:
        row = copy * len(self._agents) + number
        put = functools.partial(answers.put_observation, self.obs_space, batch, row)
        self._checked(copy, self._agents[number], put, observations)

    def _flags(self, copy: int, acting: list[Any], name: str, flags: Mapping[Any, Any]) -> dict[Any, bool]:
        return {
            agent: self._checked(copy, agent, lambda x: answers.as_flag(x, name), flags.get(agent, False))
            for agent in acting
        }

    def _checked(self, copy: int, agent: Any, check: Callable[[Any], Any], value: Any) -> Any:
        try:
            return check(value)
        except HostEnvError as error:
            raise HostEnvError(f"{agent} in copy {copy}: {error}") from error


def make_pettingzoo_simulators(
    name: str,
    num_envs: int,
    *,
    ends: str = "all",
    metrics: Sequence[str] = (),
    max_episode_steps: int | None = None,
    **kwargs: Any,
) -> PettingZooVectorEnv:
    """Create copies of a parallel environment as simulators on the host, with one row per agent.

    Args:
        name: name in PettingZoo's registry, such as ``sisl/pursuit-v5``; or ``package.module:function``, a function
            that creates a parallel environment.
        num_envs: number of rows, a multiple of the number of agents.
        ends: see ``PettingZooVectorEnv``.
        metrics: see ``PettingZooVectorEnv``.
        max_episode_steps: see ``PettingZooVectorEnv``.
        **kwargs: arguments of the environment.

    Raises:
        ValueError: the environment or option does not exist, or the environment is not supported.
        ImportError: PettingZoo, or a library that the environment needs, is not installed.
    """
    make = functools.partial(_make_copy, name, kwargs)
    return PettingZooVectorEnv(make, num_envs, ends, metrics, name, max_episode_steps=max_episode_steps)


def _make_copy(name: str, kwargs: Mapping[str, Any]) -> Any:
    admit_arguments(kwargs)
    try:
        if ":" in name:
            return load_named(name, "env.name")(**kwargs)
        pettingzoo = _pettingzoo()
        if name not in pettingzoo.parallel_registry:
            raise ValueError(no_such("parallel PettingZoo environment", name, pettingzoo.parallel_registry))
        try:
            return pettingzoo.make("parallel", name, **kwargs)
        except pettingzoo.env_registry.exceptions.FailedToImport as error:
            raise ImportError(str(error)) from error
    except (TypeError, AttributeError, ModuleNotFoundError) as error:
        raise ValueError(f"{name} cannot be created with {dict(kwargs)}: {error}") from error


@functools.cache
def _pettingzoo() -> Any:
    with explain_missing_package("PettingZoo environments", "pettingzoo"):
        import pettingzoo
    return pettingzoo


def _agents_of(env: Any, name: str) -> list[Any]:
    """Return all possible agents of ``env``. Raises ``ValueError`` if they are unknown or have different spaces."""
    agents = list(getattr(env, "possible_agents", ()))
    if not agents or not hasattr(env, "observation_space"):
        raise ValueError(f"{name} must be a parallel PettingZoo environment with possible_agents.")
    for kind in ("observation_space", "action_space"):
        spaces = [getattr(env, kind)(agent) for agent in agents]
        other = next((i for i, space in enumerate(spaces) if space != spaces[0]), None)
        if other is not None:
            raise ValueError(
                f"agents are rows of one batch and must have equal spaces; in {name} the {kind} of {agents[0]} is "
                f"{spaces[0]}, but that of {agents[other]} is {spaces[other]}: pad them with a wrapper."
            )
    return agents
