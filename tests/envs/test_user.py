"""User environments, by the name of their factory function."""

from __future__ import annotations

import functools
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.algorithms.ppo import PPOWorkflow
from evorl.envs import create_env
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.wrappers import VmapWrapper
from evorl.execution.host_errors import translate_host_errors
from tests.envs.host.test_answers import Answering
from tests.support.errors import raises_naming
from tests.support.probe_envs import ProbeEnv, make_probe


def with_level(function: Callable[..., ProbeEnv]) -> Callable[..., ProbeEnv]:
    """Return the function with a decorator that passes the argument ``level``."""

    @functools.wraps(function)
    def decorated(**arguments: Any) -> ProbeEnv:
        return function(3, **arguments)

    return decorated


def _make_game(level: int, size: int = 3) -> ProbeEnv:
    return ProbeEnv("termination")


def _make_repeated_rows(num_envs: int, max_episode_steps: int, action_repeat: int) -> None:
    raise LookupError(f"{num_envs} environments, {max_episode_steps} steps, repeated {action_repeat} time")


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_envs")
    vars(module).update(
        make=lambda sizes=(): ProbeEnv("best_action"),
        make_any=lambda **options: ProbeEnv(options.get("probe", "termination")),
        make_many=lambda: make_probe("termination"),
        make_game=_make_game,
        make_rows=lambda num_envs, game, level: None,
        make_limited=lambda max_episode_steps: ProbeEnv("termination"),
        make_named=lambda name: ProbeEnv("termination"),
        make_limited_rows=lambda num_envs, max_episode_steps: None,
        make_stacked_rows=lambda num_envs, history: None,
        make_repeated_rows=_make_repeated_rows,
        make_given=with_level(_make_game),
        number=3,
    )
    monkeypatch.setitem(sys.modules, "own_envs", module)


def test_equal_functions_and_options_make_equal_envs() -> None:
    config = {"factory": "own_envs:make", "sizes": [1, 2], "max_episode_steps": 5, "parallel": 2, "name": None}
    env, again = create_env(config), create_env(config, autoreset_mode="normal")
    assert env == again
    assert hash(env) == hash(again)
    assert env != create_env(config, sizes=[1, 3])
    assert env != create_env(config, factory="own_envs:make_any")
    assert isinstance(create_env(config, autoreset_mode="disabled"), VmapWrapper)
    assert isinstance(env.unwrapped, ProbeEnv)
    state = env.step(env.reset(jax.random.key(0)), jnp.zeros(2, jnp.int32))
    assert env.max_episode_steps == 5
    assert state.info.steps.tolist() == [1, 1]


CELL = """
class Edited(ProbeEnv):
    def __init__(self):
        super().__init__("termination")

    def step(self, env_state, action):
        return super().step(env_state, action).replace(reward=jnp.float32({reward}))
"""


@pytest.mark.parametrize("factory", ["own_envs:Edited", "own_envs:make_edited"])
def test_a_class_that_is_defined_again_is_another_environment(factory: str) -> None:
    """A notebook runs an edited cell again: no compiled program of the old class is used."""
    cell = vars(sys.modules["own_envs"])
    cell |= {"ProbeEnv": ProbeEnv, "jnp": jnp}
    exec("def make_edited(): return Edited()", cell)
    first_step = jax.jit(
        lambda env: env.step(env.reset(jax.random.key(0)), jnp.zeros(2, jnp.int32)).reward, static_argnums=0
    )
    for reward in (1.0, 5.0):
        exec(CELL.format(reward=reward), cell)
        env = create_env({"factory": factory}, parallel=2)
        assert first_step(env).tolist() == [reward, reward]
        assert create_env({"factory": factory}, parallel=2) == env


def test_a_config_trains_in_it() -> None:
    workflow = PPOWorkflow.build_from_config(
        {"env": {"factory": "own_envs:make_any", "max_episode_steps": 4}, "num_envs": 8, "rollout_length": 4}
    )
    assert workflow.env.unwrapped == workflow.eval_env.unwrapped == ProbeEnv("termination")


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"factory": "own_envs"}, ("env.factory", "package.module:function", "got 'own_envs'")),
        ({"factory": 3}, ("env.factory", "package.module:function", "got 3")),
        ({"factory": "own_envz:make"}, ("'own_envz'", "PYTHONPATH")),
        ({"factory": "own_envs:mak"}, ("function of own_envs", "'mak'", "'make'")),
        ({"factory": "own_envs:number"}, ("function of own_envs", "'number'")),
        ({"factory": "own_envs:make", "size": 3}, ("option of own_envs:make", "'size'", "'sizes'")),
        ({"factory": "own_envs:make_game", "size": 3}, ("requires level", "+env.level=")),
        ({"factory": "own_envs:make_rows", "level": 3}, ("requires game", "+env.game=")),
        ({"factory": "own_envs:make_limited", "max_episode_steps": 5}, ("requires max_episode_steps", "Rename")),
        ({"factory": "own_envs:make_limited"}, ("requires max_episode_steps", "Rename")),
        ({"factory": "own_envs:make_named"}, ("requires name", "Rename")),
        ({"factory": "own_envs:make_limited_rows"}, ("requires max_episode_steps", "set env.max_episode_steps")),
        ({"factory": "own_envs:make_limited_rows", "max_episode_steps": None}, ("set env.max_episode_steps",)),
        ({"factory": "own_envs:make_stacked_rows", "history": 2}, ("requires history", "Rename")),
        ({"factory": "own_envs:make_many"}, ("single evorl.envs.Env", "VmapAutoResetWrapper")),
        ({"factory": "own_envs:make", "library": "brax"}, ("library", "name", "factory")),
        ({"factory": "own_envs:make", "parallel": 0}, ("parallel", "got 0")),
    ],
)
def test_errors_in_words(config: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        create_env(config)


def test_values_of_the_run_are_arguments_of_simulators() -> None:
    """Also the default of ``action_repeat``, if the function requires it."""
    config = {"factory": "own_envs:make_repeated_rows", "max_episode_steps": 5}
    with raises_naming(LookupError, "2 environments, 5 steps, repeated 1 time"):
        create_env(config, parallel=2)


def test_a_decorator_may_pass_an_argument() -> None:
    assert isinstance(create_env({"factory": "own_envs:make_given", "size": 4}).unwrapped, ProbeEnv)


def limited() -> gymnasium.Env:
    """Create an environment whose only time limits are wrappers."""
    limit = gymnasium.wrappers.TimeLimit
    return limit(gymnasium.wrappers.ClipReward(limit(Answering({}), 9), 0.0, 1.0), 12)


def test_the_time_limit_of_a_wrapper_is_known() -> None:
    assert create_env({"factory": f"{__name__}:limited"}, parallel=2).max_episode_steps == 9


only = Answering({})
SHARED: list[Callable[[], Any]] = [
    lambda: only,
    lambda: gymnasium.wrappers.TimeLimit(only, 3),
    functools.cache(lambda: Answering({})),
]


@pytest.mark.parametrize("make", SHARED)
def test_environments_that_would_share_a_state_are_refused(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(sys.modules["own_envs"]), "make_shared", make)
    with raises_naming(HostEnvError, "same Answering", "create a new one"):
        create_env({"factory": "own_envs:make_shared"}, parallel=2)
    env, other = (create_env({"factory": "own_envs:make_shared"}, parallel=1) for _ in range(2))
    state = env.reset(jax.random.key(0))
    other.reset(jax.random.key(0))
    with raises_naming(HostEnvError, "evaluation", "create a new one"), translate_host_errors():
        env.step(state, jnp.zeros(1, jnp.int32))


def test_a_function_without_a_python_signature_requires_what_it_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(sys.modules["own_envs"]), "make_cached", functools.cache(_make_game))
    assert isinstance(create_env({"factory": "own_envs:make_cached", "level": 1}).unwrapped, ProbeEnv)
    with raises_naming(ValueError, "requires level", "+env.level="):
        create_env({"factory": "own_envs:make_cached"})


def test_a_decorator_may_pass_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decorator of a class's constructor, or of a function, supplies a required argument."""

    def supplied(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(lambda *args, **kwargs: function(*args, level=2, **kwargs))

    class Level(Answering):
        @supplied
        def __init__(self, level: int) -> None:
            super().__init__({})

    for make in (Level, supplied(_make_game)):
        monkeypatch.setitem(vars(sys.modules["own_envs"]), "make_level", make)
        create_env({"factory": "own_envs:make_level"}).close()


def pendulum(size: int = 0, **options: Any) -> gymnasium.Env:
    """Create an environment that accepts options of any name."""
    made.append({"size": size, **options})
    return gymnasium.make("Pendulum-v1")


made: list[dict[str, Any]] = []


@pytest.mark.parametrize("options", [{}, {"size": 2}, {"x": 1}, {"size": 2, "x": 1}], ids=str)
def test_a_gymnasium_environment_may_take_any_options(options: dict[str, Any]) -> None:
    made.clear()
    env = create_env({"factory": f"{__name__}:pendulum", "host": "loop", **options}, parallel=2)
    assert env.steps_on_host
    assert made
    assert all(arguments == {"size": 0} | options for arguments in made)
    env.close()


class Counting(gymnasium.Env):
    """Observes the number of steps; truncates after ``ends`` steps, and declares ``max_episode_steps``."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, declares: Any, ends: int) -> None:
        self.max_episode_steps, self.ends, self.time = declares, ends, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        return np.array([self.time], np.float32), 1.0, False, self.time >= self.ends, {}


@pytest.mark.parametrize("declares", [None, -1, math.inf, 4, 9])
@pytest.mark.parametrize("chosen", [None, 3])
def test_simulators_end_episodes_themselves(declares: Any, chosen: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is only declared does not end an episode while the simulator continues it."""
    monkeypatch.setitem(vars(sys.modules["own_envs"]), "make_counting", lambda: Counting(declares, 6))
    env = create_env({"factory": "own_envs:make_counting", "max_episode_steps": chosen}, parallel=2)
    state, seen = env.reset(jax.random.key(0)), []
    for _ in range(14):
        state = env.step(state, jnp.zeros(2, jnp.int32))
        seen.append((int(state.info.next_obs[0, 0]), bool(state.done[0])))
    length = chosen or 6
    assert seen == [(number % length + 1, number % length + 1 == length) for number in range(14)]


def test_options_of_episodes_apply_to_simulators_of_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["own_envs"], "make", lambda: gymnasium.make("CartPole-v1"))
    config = {"factory": "own_envs:make", "parallel": 1}
    env = create_env(config, action_repeat=3, max_episode_steps=12)
    assert (env.max_episode_steps, env.simulators.main.action_repeat) == (4, 3)
    with raises_naming(ValueError, "env.max_episode_steps=900", "500 steps"):
        create_env(config, max_episode_steps=900)
