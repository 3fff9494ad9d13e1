"""Agents of JaxMARL's environments as rows of one batch, which learn one policy. JaxMARL is imported when it is used.

With A agents, agent a of copy c is row ``c * A + a``, with its own observation and the reward that the library pays it.
The rows of a copy start and end together: until all is over an agent that has died is a row still, of which the
library says what it sees, may do and is paid. Where the library says which actions are available, observations are
dicts with an ``action_mask``.

JaxMARL tells the end by its time limit as any other. Here environments are built without a limit, and the clock is
evorl's, by default as long: that end is told as truncation.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import no_such
from evorl.envs.env import Env, EnvState
from evorl.envs.options import as_hashable, check_options, from_hashable, parameter_names, split_options
from evorl.envs.space import ACTION_MASK, Box, DictSpace, Discrete, Space
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.collectives import agent_number, of_all_agents
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeDict

ENV_NAMES = (
    "HeuristicEnemySMAX",
    "MPE_simple_reference_v3",
    "MPE_simple_spread_v3",
    "MPE_simple_v3",
    "SMAX",
    "hanabi",
    "overcooked_v2",
)
_GAMES = "it is a series of games that restart by themselves within an episode"
_PREY = "its agents are predators and a prey, which have equal spaces and contrary tasks"
_LIMBS = "its agents are parts of one body, most of them with other spaces: take the whole one of brax"
EXCLUDED = {
    **dict.fromkeys(("coin_game", "storm", "storm_2p", "storm_np"), _GAMES),
    **dict.fromkeys([f"MPE_simple_facmac{size}_v1" for size in ("", "_3a", "_6a", "_9a")], _PREY),
    **dict.fromkeys(("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3"), _LIMBS),
    "LearnedPolicyEnemySMAX": "it needs the network and the parameters of its enemy: take HeuristicEnemySMAX",
    "jaxnav": "it has not been tried",
    "overcooked": "what it shows depends on its time limit, which is evorl's here: take overcooked_v2",
    "switch_riddle": "its time limit cannot be told from its other ends",
}
_NOT_ITS_OWN = "JaxRobotarium"  # of a package that it does not bring
_NO_LIMIT = 2**30


class JaxmarlAdapter(Env):
    """One agent of a JaxMARL environment as an ``Env``, without a clock and without the library's autoreset.

    It is stepped beside the others of its copy, see ``over_agents``: all have the state of the copy, computed once.

    Args:
        jaxmarl_env: an instance of JaxMARL's ``MultiAgentEnv``; what it tells as the end of all is a termination.
        spec: what it was built from, hashable: adapters of equal spec are equal. Without it, only those of the very
            same ``jaxmarl_env``.

    Raises:
        ValueError: agents are not alike.
    """

    def __init__(self, jaxmarl_env: Any, spec: Any = None) -> None:
        self.jaxmarl_env = jaxmarl_env
        self._spec = spec
        self._agents = list(jaxmarl_env.agents)
        self._tell_available = _availability_of(jaxmarl_env)
        with jax.ensure_compile_time_eval():  # an environment may be made inside a trace
            obs, self._action_space = _spaces_of(jaxmarl_env, self._agents)
        # Not in there, where each operation on known numbers would be compiled and run.
        key = jax.eval_shape(lambda: jax.random.key(0))
        start = jax.eval_shape(jaxmarl_env.reset, key)
        actions = jax.eval_shape(lambda: {a: self._action_space.zeros(()) for a in self._agents})
        seen, game, _, _, self._info = jax.eval_shape(jaxmarl_env.step_env, key, start[1], actions)
        # After a step some numbers have other dtypes than after a reset.
        self._dtypes = jax.tree.map(lambda x: x.dtype, game)
        self._obs_space: Space = _with_dtype(obs, seen[self._agents[0]])
        if self._tell_available is not None and isinstance(self._action_space, Discrete):
            mask = Box(False, True, (self._action_space.n,), jnp.bool_)
            self._obs_space = DictSpace({"observation": self._obs_space, ACTION_MASK: mask})

    @property
    def num_agents(self) -> int:
        """See ``Env.num_agents``."""
        return len(self._agents)

    @property
    def obs_space(self) -> Space:
        """The space of one agent's observations; a dict where there is an action mask."""
        return self._obs_space

    @property
    def action_space(self) -> Space:
        """The space of one agent's actions."""
        return self._action_space

    def reset(self, key: Key) -> EnvState:
        """The start of an episode, from the ``key`` of the copy's first agent."""
        start_key, steps_key = jax.random.split(self._of_copy(as_typed_key(key)))
        obs, game = self.jaxmarl_env.reset(start_key)
        info = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._info)
        nothing = dict.fromkeys(self._agents, jnp.zeros(()))
        return self._env_state(game, steps_key, obs, nothing, jnp.zeros((), jnp.bool_), info)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        copy = self._of_copy(env_state.env_state)
        key, steps_key = jax.random.split(copy.key)
        chosen = of_all_agents(action, self.num_agents)
        actions = {agent: chosen[i] for i, agent in enumerate(self._agents)}
        obs, game, rewards, dones, info = self.jaxmarl_env.step_env(key, copy.game, actions)
        return self._env_state(game, steps_key, obs, rewards, dones["__all__"], info)

    def _of_copy(self, tree: Any) -> Any:
        """What every agent of the copy has alike, as its first one has it."""
        return jax.tree.map(lambda x: x[0], of_all_agents(tree, self.num_agents))

    def _own(self, by_agent: Mapping[str, jax.Array]) -> jax.Array:
        return jnp.stack([by_agent[agent] for agent in self._agents])[agent_number()]

    def _env_state(
        self, game: Any, key: Key, obs: Mapping, rewards: Mapping, over: jax.Array, info: Mapping
    ) -> EnvState:
        game = jax.tree.map(jnp.asarray, game, self._dtypes)
        own_obs: Any = self._own(obs)
        if isinstance(self._obs_space, DictSpace):
            allowed = self._own(self._tell_available(game)) > 0
            own_obs = PyTreeDict(observation=own_obs.astype(self._obs_space["observation"].dtype), action_mask=allowed)
        else:
            own_obs = own_obs.astype(self._obs_space.dtype)
        over = jnp.asarray(over, jnp.bool_)
        metrics = PyTreeDict({name: self._metric(value) for name, value in info.items()})
        told = PyTreeDict(termination=over, truncation=jnp.zeros_like(over), metrics=metrics)
        state = PyTreeDict(game=game, key=key)
        return EnvState(state, own_obs, jnp.asarray(self._own(rewards), jnp.float32), over, told)

    def _metric(self, value: Any) -> jax.Array:
        return self._own(value) if isinstance(value, Mapping) else jnp.asarray(value, jnp.asarray(value).dtype)

    def _identity(self) -> Any:
        return self._spec if self._spec is not None else id(self.jaxmarl_env)

    def __repr__(self) -> str:
        return f"JaxmarlAdapter({type(self.jaxmarl_env).__name__})"


def create_wrapped_jaxmarl_env(env_name: str, **options: Any) -> VectorEnv:
    """A vector env whose rows are the agents of JaxMARL's.

    Args:
        env_name: one of ``ENV_NAMES``.
        **options: the fields of ``EnvOptions``, of which ``parallel`` is a multiple of the number of agents and
            ``max_episode_steps`` as long as the library's by default; every other one is an argument of the
            environment's class (``num_agents`` of ``MPE_simple_spread_v3``). ``scenario`` of SMAX is a name (``3m``).

    Raises:
        ValueError: unknown environment or option, or one that cannot be stepped here; in words.
        ImportError: JaxMARL is not installed.
    """
    shared, arguments = split_options(options)
    env, limit = _make_adapter(env_name, as_hashable(arguments))
    if shared.get("max_episode_steps") is None:
        shared["max_episode_steps"] = limit
    return wrap_env(env, **shared)


@functools.lru_cache(maxsize=64)
def _make_adapter(env_name: str, arguments: tuple) -> tuple[JaxmarlAdapter, int | None]:
    """One agent, and the steps after which the library would end an episode."""
    if env_name in EXCLUDED:
        raise ValueError(f"jaxmarl {env_name} is not available here: {EXCLUDED[env_name]}.")
    jaxmarl, options = _jaxmarl(), from_hashable(arguments)
    if env_name not in jaxmarl.registered_envs or env_name.startswith(_NOT_ITS_OWN):
        raise ValueError(no_such("environment of JaxMARL", env_name, ENV_NAMES))
    with jax.ensure_compile_time_eval():
        usual = jaxmarl.make(env_name)
        classes = [*type(usual).__mro__[:-1], *(type(x) for x in [vars(usual).get("_env")] if x)]  # SMAX has one inside
        names = {name for cls in classes for name in parameter_names(cls)}
        check_options(f"jaxmarl {env_name}", options, names - {"max_steps"})
        if "scenario" in options:
            options["scenario"] = _scenario(options["scenario"])
        limit = getattr(usual, "max_steps", None)
        try:
            env = jaxmarl.make(env_name, **options, **({} if limit is None else {"max_steps": _NO_LIMIT}))
        except (AssertionError, TypeError) as error:
            raise ValueError(f"jaxmarl {env_name} cannot be made with {options}: {error}") from error
    # All but one compare the number of steps before the step with their limit.
    late = env_name != "overcooked_v2"
    return JaxmarlAdapter(env, ("jaxmarl", env_name, arguments)), None if limit is None else limit + late


def _scenario(name: str) -> Any:
    known = _jaxmarl().environments.smax.smax_env.MAP_NAME_TO_SCENARIO
    if name not in known:
        raise ValueError(no_such("scenario of SMAX", name, known))
    return known[name]


@functools.cache
def _jaxmarl() -> Any:
    """The package."""
    try:
        # Its import puts the streams that the process began with in place of those it finds, a notebook's say.
        with contextlib.redirect_stdout(sys.stdout), contextlib.redirect_stderr(sys.stderr):
            import jaxmarl
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "jaxmarl":
            raise ImportError("environments of JaxMARL need the package jaxmarl: pip install jaxmarl") from error
        raise
    return jaxmarl


def _availability_of(env: Any) -> Any:
    """The function of a state that says which actions each agent may take; ``None`` where there is none."""
    if hasattr(env, "get_legal_moves"):
        return env.get_legal_moves
    try:
        game = jax.eval_shape(lambda: env.reset(jax.random.key(0)))[1]
        jax.eval_shape(env.get_avail_actions, game)
    except NotImplementedError:
        return None
    return env.get_avail_actions


def _spaces_of(env: Any, agents: list[str]) -> tuple[Box, Space]:
    """The spaces of every agent. Raises ``ValueError`` where agents differ."""
    found: list[Space] = []
    for kind in ("observation_space", "action_space"):
        spaces = [_space(getattr(env, kind)(agent)) for agent in agents]
        other = next((i for i, space in enumerate(spaces) if space != spaces[0]), None)
        if other is not None:
            raise ValueError(
                f"agents are rows of one batch, and must have equal spaces; in {type(env).__name__} the {kind} of "
                f"{agents[0]} is {spaces[0]} and that of {agents[other]} {spaces[other]}."
            )
        found.append(spaces[0])
    return found[0], found[1]  # pyright: ignore[reportReturnType]


def _space(space: Any) -> Space:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if not hasattr(space, "low"):
        raise ValueError(f"evorl has no space for {type(space).__name__} of JaxMARL.")
    shape = tuple(int(n) for n in np.ravel(space.shape))
    return Box(np.asarray(space.low), np.asarray(space.high), shape)


def _with_dtype(space: Box, obs: Any) -> Box:
    """The space of what is really observed, of which the library may say another dtype."""
    if space.shape != obs.shape:
        raise ValueError(f"an agent observes {obs.shape}, and its space says {space.shape}.")
    return Box(space.low, space.high, dtype=obs.dtype)
