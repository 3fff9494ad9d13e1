"""Adapter for JaxMARL: the agents are rows of one batch and share one policy. Imports JaxMARL on first use.

With A agents, agent a of environment copy c is row ``c * A + a``, with its own observation and reward. The rows of a
copy start and end together: an agent that dies keeps its row until the episode ends, with the observation, available
actions and reward of the library. If the library reports available actions, observations are dicts with an
``action_mask``; the option ``world_state`` adds an entry for centralized value functions.

JaxMARL does not distinguish its time limit from other ends of an episode. Here environments are created without a
limit, and ``EpisodeWrapper`` reports a truncation after the same number of steps.
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

from evorl.config.names import explain_missing_package, no_such
from evorl.config.values import checked_value
from evorl.envs.env import EnvState, EnvWithSpaces
from evorl.envs.options import as_hashable, check_options, from_hashable, parameter_names, split_options
from evorl.envs.space import ACTION_MASK, Box, DictSpace, Discrete, Space
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.collectives import agent_number, of_all_agents
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeDict

ENV_NAMES = (
    *("HeuristicEnemySMAX", "MPE_simple_reference_v3", "MPE_simple_spread_v3", "MPE_simple_v3", "SMAX"),
    *("hanabi", "overcooked_v2"),
)
_GAMES = "it plays a series of games that restart by themselves within an episode"
_PREY = "its agents are predators and a prey, with equal spaces but opposite objectives"
_LIMBS = "its agents are parts of one body, most with different spaces: use the whole body from brax"
EXCLUDED = {
    **dict.fromkeys(("coin_game", "storm", "storm_2p", "storm_np"), _GAMES),
    **dict.fromkeys([f"MPE_simple_facmac{size}_v1" for size in ("", "_3a", "_6a", "_9a")], _PREY),
    **dict.fromkeys(("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3"), _LIMBS),
    "LearnedPolicyEnemySMAX": "it needs the network and the parameters of its enemy: use HeuristicEnemySMAX",
    "jaxnav": "it has not been tested",
    "overcooked": "its observations depend on its time limit, which evorl replaces: use overcooked_v2",
    "switch_riddle": "its time limit cannot be distinguished from other ends of its episodes",
}
_FOREIGN_PREFIX = "JaxRobotarium"  # these environments need a package that JaxMARL does not install
_NO_LIMIT = 2**30
WORLD_STATE = "world_state"  # entry of observations: the whole state of a copy, equal for all its agents


class JaxmarlAdapter(EnvWithSpaces):
    """One agent of a JaxMARL environment as an ``Env``, without a time limit and without the library's autoreset.

    Several agents must be stepped together, by ``evorl.ops.collectives.over_agents``, and share the copy's state.

    Args:
        jaxmarl_env: an instance of JaxMARL's ``MultiAgentEnv``; its ``__all__`` done flag is a termination.
        spec: hashable description of ``jaxmarl_env``; adapters with equal ``spec`` are equal. Without ``spec``,
            adapters are equal only if they share the same ``jaxmarl_env`` object.
        world_state: true adds the entry ``world_state`` to observations, float32 ``[W]``, equal for all agents of a
            copy: the library's world state if it has one, otherwise the concatenated observations of all agents.

    Raises:
        ValueError: the agents have different spaces, or spaces of a kind that evorl does not support.
    """

    def __init__(self, jaxmarl_env: Any, spec: Any = None, world_state: bool = False) -> None:
        self.jaxmarl_env = jaxmarl_env
        self._spec, self._wrapped = spec, (jaxmarl_env,)
        self._agents = list(jaxmarl_env.agents)
        self._available_actions = _availability_of(jaxmarl_env)
        with jax.ensure_compile_time_eval():  # an environment may be created inside a trace
            obs, self._action_space = _spaces_of(jaxmarl_env, self._agents)
        # Not in ``ensure_compile_time_eval``, where JAX would compile and execute each operation.
        key = jax.eval_shape(lambda: jax.random.key(0))
        start = jax.eval_shape(jaxmarl_env.reset, key)
        actions = jax.eval_shape(lambda: {a: self._action_space.zeros(()) for a in self._agents})
        observations, game, _, _, self._info = jax.eval_shape(jaxmarl_env.step_env, key, start[1], actions)
        # Some leaves have different dtypes after a step and after a reset.
        self._dtypes = jax.tree.map(lambda x: x.dtype, game)
        self._obs_space: Space = _with_dtype(obs, observations[self._agents[0]])
        entries: dict[str, Space] = {}
        if self._available_actions is not None and isinstance(self._action_space, Discrete):
            entries[ACTION_MASK] = Box(False, True, (self._action_space.n,), jnp.bool_)
        if world_state:
            state = jax.eval_shape(self._world_state, observations)
            entries[WORLD_STATE] = Box(-np.inf, np.inf, state.shape, state.dtype)
        if entries:
            self._obs_space = DictSpace({"observation": self._obs_space, **entries})

    @property
    def num_agents(self) -> int:
        return len(self._agents)

    def reset(self, key: Key) -> EnvState:
        """Return the first state of an episode, drawn with the ``key`` of the copy's first agent."""
        start_key, steps_key = jax.random.split(self._of_copy(as_typed_key(key)))
        obs, game = self.jaxmarl_env.reset(start_key)
        info = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._info)
        nothing = dict.fromkeys(self._agents, jnp.zeros(()))
        return self._env_state(game, steps_key, obs, nothing, jnp.zeros((), jnp.bool_), info)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        copy = self._of_copy(env_state.env_state)
        key, steps_key = jax.random.split(copy.key)
        chosen = of_all_agents(action, self.num_agents)
        actions = {agent: chosen[i] for i, agent in enumerate(self._agents)}
        obs, game, rewards, dones, info = self.jaxmarl_env.step_env(key, copy.game, actions)
        return self._env_state(game, steps_key, obs, rewards, dones["__all__"], info)

    def _of_copy(self, tree: Any) -> Any:
        """Return the values of the copy's first agent, the same for all agents of the copy."""
        return jax.tree.map(lambda x: x[0], of_all_agents(tree, self.num_agents))

    def _for_this_agent(self, by_agent: Mapping[str, jax.Array]) -> jax.Array:
        return jnp.stack([by_agent[agent] for agent in self._agents])[agent_number()]

    def _env_state(
        self, game: Any, key: Key, obs: Mapping, rewards: Mapping, is_over: jax.Array, info: Mapping
    ) -> EnvState:
        game = jax.tree.map(jnp.asarray, game, self._dtypes)
        own_obs: Any = self._for_this_agent(obs)
        if isinstance(self._obs_space, DictSpace):
            own_obs = PyTreeDict(observation=own_obs.astype(self._obs_space["observation"].dtype))
            if ACTION_MASK in self._obs_space.spaces:
                own_obs[ACTION_MASK] = self._for_this_agent(self._available_actions(game)) > 0
            if WORLD_STATE in self._obs_space.spaces:
                own_obs[WORLD_STATE] = self._world_state(obs)
        else:
            own_obs = own_obs.astype(self._obs_space.dtype)
        is_over = jnp.asarray(is_over, jnp.bool_)
        metrics = PyTreeDict({name: self._metric(value) for name, value in info.items()})
        step_info = PyTreeDict(termination=is_over, truncation=jnp.zeros_like(is_over), metrics=metrics)
        state = PyTreeDict(game=game, key=key)
        return EnvState(state, own_obs, jnp.asarray(self._for_this_agent(rewards), jnp.float32), is_over, step_info)

    def _world_state(self, obs: Mapping[str, jax.Array]) -> jax.Array:
        """Return the world state, float32 ``[W]``, given the library's observations by agent."""
        state = obs.get(WORLD_STATE)
        parts = [obs[agent] for agent in self._agents] if state is None else [state]
        return jnp.concatenate([jnp.asarray(part, jnp.float32).reshape(-1) for part in parts])

    def _metric(self, value: Any) -> jax.Array:
        return (
            self._for_this_agent(value) if isinstance(value, Mapping) else jnp.asarray(value, jnp.asarray(value).dtype)
        )

    def __repr__(self) -> str:
        return f"JaxmarlAdapter({type(self.jaxmarl_env).__name__})"


def create_wrapped_jaxmarl_env(env_name: str, **options: Any) -> VectorEnv:
    """Create a vector environment with the agents of a JaxMARL environment as rows.

    Args:
        env_name: one of ``ENV_NAMES``.
        **options: the fields of ``EnvOptions``, where ``parallel`` is a multiple of the number of agents, and
            ``max_episode_steps`` is the library's limit by default; ``world_state``, see ``JaxmarlAdapter``; all others
            are arguments of the environment's class (``num_agents`` of ``MPE_simple_spread_v3``). ``scenario`` of SMAX
            is a name, such as ``3m``.

    Raises:
        ValueError: the environment or an option is unknown, or the environment is not supported.
        ImportError: JaxMARL is not installed.
    """
    shared, arguments = split_options(options)
    world_state = checked_value(arguments.pop(WORLD_STATE, False), bool, "env.world_state")
    env, limit = _make_adapter(env_name, as_hashable(arguments), world_state)
    return wrap_env(env, limit=limit, **shared)


@functools.lru_cache(maxsize=64)
def _make_adapter(env_name: str, arguments: tuple, world_state: bool) -> tuple[JaxmarlAdapter, int | None]:
    """Return the adapter, and the number of steps after which the library ends an episode, ``None`` without a limit."""
    if env_name in EXCLUDED:
        raise ValueError(f"jaxmarl {env_name} is not available here: {EXCLUDED[env_name]}.")
    jaxmarl, options = _jaxmarl(), from_hashable(arguments)
    if env_name not in jaxmarl.registered_envs or env_name.startswith(_FOREIGN_PREFIX):
        raise ValueError(no_such("JaxMARL environment", env_name, ENV_NAMES))
    with jax.ensure_compile_time_eval():
        default_env = jaxmarl.make(env_name)
        wrapped = vars(default_env).get("_env")  # SMAX wraps another environment
        classes = [*type(default_env).__mro__[:-1], *([type(wrapped)] if wrapped else [])]
        names = {name for cls in classes for name in parameter_names(cls)}
        check_options(f"jaxmarl {env_name}", options, (names | {WORLD_STATE}) - {"max_steps"})
        if "scenario" in options:
            scenarios = jaxmarl.environments.smax.smax_env.MAP_NAME_TO_SCENARIO
            if options["scenario"] not in scenarios:
                raise ValueError(no_such("value of env.scenario", options["scenario"], scenarios))
            options["scenario"] = scenarios[options["scenario"]]
        limit = getattr(default_env, "max_steps", None)
        try:
            env = jaxmarl.make(env_name, **options, **({} if limit is None else {"max_steps": _NO_LIMIT}))
        except (AssertionError, TypeError) as error:
            raise ValueError(f"jaxmarl {env_name} cannot be created with {options}: {error}") from error
    # The other environments compare the number of previous steps with their limit, so they last one step longer.
    late = env_name != "overcooked_v2"
    adapter = JaxmarlAdapter(env, ("jaxmarl", env_name, arguments, world_state), world_state)
    return adapter, None if limit is None else limit + late


@functools.cache
def _jaxmarl() -> Any:
    """Import and return the package ``jaxmarl``."""
    # Importing JaxMARL resets sys.stdout and sys.stderr to the original streams, which breaks notebooks.
    with (
        explain_missing_package("JaxMARL environments", "jaxmarl"),
        contextlib.redirect_stdout(sys.stdout),
        contextlib.redirect_stderr(sys.stderr),
    ):
        import jaxmarl
    return jaxmarl


def _availability_of(env: Any) -> Any:
    """Return the function from a state to the available actions by agent; ``None`` if all are always available."""
    if hasattr(env, "get_legal_moves"):
        return env.get_legal_moves
    try:
        game = jax.eval_shape(lambda: env.reset(jax.random.key(0)))[1]
        jax.eval_shape(env.get_avail_actions, game)
    except NotImplementedError:
        return None
    return env.get_avail_actions


def _spaces_of(env: Any, agents: list[str]) -> tuple[Box, Space]:
    """Return the observation and action space of every agent. Raises ``ValueError`` if the agents' spaces differ."""
    shared_spaces: list[Space] = []
    for kind in ("observation_space", "action_space"):
        spaces = [_space(getattr(env, kind)(agent)) for agent in agents]
        other = next((i for i, space in enumerate(spaces) if space != spaces[0]), None)
        if other is not None:
            raise ValueError(
                f"agents are rows of one batch and must have equal spaces; in {type(env).__name__} the {kind} of "
                f"{agents[0]} is {spaces[0]}, but that of {agents[other]} is {spaces[other]}: use another environment."
            )
        shared_spaces.append(spaces[0])
    return shared_spaces[0], shared_spaces[1]  # pyright: ignore[reportReturnType]


def _space(space: Any) -> Space:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if not hasattr(space, "low"):
        raise ValueError(f"evorl does not support the space {type(space).__name__} of JaxMARL.")
    shape = tuple(int(n) for n in np.ravel(space.shape))
    return Box(np.asarray(space.low), np.asarray(space.high), shape)


def _with_dtype(space: Box, obs: Any) -> Box:
    """Return ``space`` with the dtype of observations ``obs``; raise ``ValueError`` if the shapes differ."""
    if space.shape != obs.shape:
        raise ValueError(f"observations of an agent have shape {obs.shape}, but their space has shape {space.shape}.")
    return Box(space.low, space.high, dtype=obs.dtype)
