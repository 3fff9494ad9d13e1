"""Steps an environment with random actions, and checks the values of its observations, rewards and states.

``evorl.envs.env_check`` checks only structure, shapes and dtypes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.values import positive
from evorl.envs.env import Env, EnvState
from evorl.envs.space import Box, Discrete, Space
from evorl.envs.vector import VectorEnv
from evorl.ops.trees import as_untyped, leaf_name
from evorl.types import Key

Draw = Callable[[Space, Key, int, Any], Any]
_OUTPUTS = ("env_state", "obs", "reward", "done")  # of a step; its ``info`` may have entries of the previous one


@dataclasses.dataclass(frozen=True)
class Trial:
    """Results of stepping an environment with random actions.

    Attributes:
        num_steps: number of steps, summed over all environments.
        returns: returns of the finished episodes, float32 ``[number of episodes]``.
        lengths: lengths of the finished episodes in steps, int32 ``[number of episodes]``.
        rewards: minimum, mean and maximum of all rewards.
        problems: faults that must be fixed, one or more sentences each.
        notes: findings that may be intended, one sentence each.
    """

    num_steps: int
    returns: np.ndarray
    lengths: np.ndarray
    rewards: tuple[float, float, float]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def try_env(env: VectorEnv, num_steps: int, key: Key, draw: Draw) -> Trial:
    """Step an environment with random actions, and check the results; run JAX environments twice with equal keys.

    Args:
        env: vector environment with B rows, in an autoreset mode that starts new episodes.
        num_steps: number of steps of each row, at least 1.
        key: random key of the start states and the actions.
        draw: function that samples actions, given the action space, a key, the number of rows and the observations.

    Raises:
        ValueError: ``num_steps`` is not a positive integer.
    """
    num_steps = positive(num_steps, "num_steps")
    start, played = _play(env, num_steps, key, draw)
    # Simulators on the host may depend on earlier episodes, so a second run with the same key may differ.
    replays = [] if env.steps_on_host else [_play(env, num_steps, key, draw)]
    problems = [*_number_problems(env, start, played), *_space_problems(env, start, played)]
    problems += [problem for _, again in replays for problem in _differences(played, again)]
    if not env.steps_on_host and env.num_agents == 1:
        problems += list(_trace_problems(env.env)) or list(_input_problems(env.env, key))
    done, rewards = played["done"], played["reward"]
    return Trial(
        num_steps=done.size,
        returns=played["episode_return"][done],
        lengths=played["episode_length"][done],
        rewards=(float(rewards.min()), float(rewards.mean()), float(rewards.max())),
        problems=tuple(problems),
        notes=tuple(_notes(start, played)),
    )


def _play(env: VectorEnv, num_steps: int, key: Key, draw: Draw) -> tuple[Any, dict[str, Any]]:
    """Return the first observations ``[B, ...]``, and the actions and results of all steps, ``[T, B, ...]`` by name."""
    reset_key, actions_key = jax.random.split(key)
    state = env.reset(reset_key)
    start, starts_done = jax.device_get((state.obs, state.done))
    compiled_draw = jax.jit(lambda key, obs: draw(env.action_space, key, env.num_envs, obs))
    rows = []
    for step_key in jax.random.split(actions_key, num_steps):
        actions = compiled_draw(step_key, state.obs)
        state = env.step(state, actions)
        info = state.info
        row = {"actions": actions, "obs": info.next_obs, "start": state.obs, "reward": state.reward, "done": state.done}
        rows.append(jax.device_get(row | {name: info[name] for name in ("episode_return", "episode_length")}))
    stacked = jax.tree.map(lambda *x: np.stack(x), *rows)
    return start, {**stacked, "starts_done": starts_done}


def _number_problems(env: VectorEnv, start: Any, played: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence on a start that is done, and on the first NaN or infinite number of rewards and observations."""
    if played["starts_done"].any():
        yield "An episode was done after reset: reset must return done=False, and choose a start that is not terminal."
    for path, leaf in jax.tree_util.tree_leaves_with_path(start):
        if not _is_finite(leaf).all():
            kind, shown = _bad_number(leaf), _brief(leaf)
            yield f"The first observation{_entry(path)} contains a value that is {kind}: {shown}. Correct reset()."
    for path, leaf in [((), played["reward"]), *jax.tree_util.tree_leaves_with_path(played["obs"])]:
        subject = "The reward" if leaf is played["reward"] else f"The observation{_entry(path)}"
        bad = ~_is_finite(leaf).reshape(*leaf.shape[:2], -1).all(axis=-1)
        if bad.any():
            t, i = np.argwhere(bad)[0]
            action = _brief(jax.tree.map(lambda x, t=t, i=i: x[t, i], played["actions"]))
            yield (
                f"{subject} became {_bad_number(leaf[t, i])} in step {t + 1} of environment {i}, after the action "
                f"{action}: look for a division by 0, a root or logarithm of a negative number, or "
                "unstable physics."
            )


def _space_problems(env: VectorEnv, start: Any, played: dict[str, Any]) -> Iterator[str]:
    """Yield a message on the first finite observation outside of the space, for each entry of the space."""
    firsts, laters = _parts(env.obs_space, start), _parts(env.obs_space, played["obs"])
    for (space, name, first), (_, _, later) in zip(firsts, laters, strict=True):
        for moment, values, axes in (("after a reset", first, 1), ("after a step", later, 2)):
            outside = ~np.asarray(space.contains(jnp.asarray(values))) & _is_finite(values).reshape(
                *values.shape[:axes], -1
            ).all(axis=-1)
            if outside.any():
                value = values[tuple(np.argwhere(outside)[0])]
                yield (
                    f"The observation{name} {moment} is outside of its space: {_beyond(space, value)} Widen obs_space, "
                    "or clip the observation."
                )
                break


def _parts(space: Space, obs: Any, name: str = "") -> Iterator[tuple[Space, str, np.ndarray]]:
    """Yield the space, the name for messages and the recorded values of each array of an observation."""
    spaces = getattr(space, "spaces", None)
    if spaces is None:
        yield space, name and f" {name[1:]!r}", np.asarray(obs)
        return
    entries = spaces.items() if isinstance(spaces, dict) else enumerate(spaces)
    for entry, part in entries:
        yield from _parts(part, obs[entry], f"{name}.{entry}")


def _beyond(space: Space, value: np.ndarray) -> str:
    """Describe the first number of ``value`` that is out of the bounds of ``space``, as the end of a sentence."""
    if isinstance(space, Box):
        wrong = (value < space.low) | (value > space.high)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            index = f"[{', '.join(map(str, at))}]" if at else ""
            return f"its number{index} is {value[at]:g}, but must be from {space.low[at]:g} to {space.high[at]:g}."
    if isinstance(space, Discrete):
        return f"it is {value}, but must be from {space.start} to {space.start + space.n - 1}."
    return f"it is {_brief(value)}."


def _differences(played: dict[str, Any], again: dict[str, Any]) -> Iterator[str]:
    """Yield one sentence if two runs with the same key and actions differ, on the first field that differs."""
    for field in ("obs", "reward", "done"):
        if not _are_equal(played[field], again[field]):
            yield (
                f"The same key and the same actions gave a different {field} the second time: draw random numbers from "
                "the key of reset (store a key in env_state for step), and keep no state in the environment object."
            )
            return


def _trace_problems(env: Env) -> Iterator[str]:
    """Yield a message if tracing ``reset`` or ``step`` twice gives different programs, due to state that changes."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(env.reset, key)
    for method, arguments in ((env.reset, (key,)), (env.step, (state, env.action_space.spec))):
        first, second = (_program(method, arguments) for _ in range(2))
        if first != second:
            yield (
                f"{type(env.unwrapped).__name__}.{method.__name__} gives a different program each time it is compiled: "
                "it reads NumPy's or Python's random numbers, the time, or state that it changes itself. The compiled "
                "program would repeat one value forever. Draw with jax.random from the key."
            )
            return


def _program(method: Callable, arguments: tuple) -> tuple:
    closed = jax.make_jaxpr(lambda *arguments: method(*arguments))(*arguments)
    constants = [np.asarray(x).tobytes() for x in closed.consts if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return str(closed.jaxpr), tuple(constants)


def _input_problems(env: Env, key: Key) -> Iterator[str]:
    """Yield a sentence if ``step`` depends on ``info`` or ``obs``, which wrappers and rollouts change or drop."""

    def steps(state: EnvState, action: Any) -> tuple[EnvState, dict[str, EnvState]]:
        info = jax.tree.map(jnp.ones_like, state.info)
        obs = jax.tree.map(lambda x: (x == 0).astype(x.dtype), state.obs)  # differs from every number
        others = {"info": state.replace(info=info), "obs": state.replace(obs=obs)}
        return env.step(state, action), {name: env.step(other, action) for name, other in others.items()}

    state, action = jax.jit(env.reset)(key), env.action_space.sample(jax.random.fold_in(key, 1))
    expected, others = jax.device_get(jax.tree.map(as_untyped, jax.jit(steps)(state, action)))
    for name, actual in others.items():
        if not all(_are_equal(getattr(expected, part), getattr(actual, part)) for part in _OUTPUTS):
            yield (
                f"{type(env.unwrapped).__name__}.step reads env_state.{name}, which wrappers change: store the values "
                "that step needs in env_state.env_state."
            )


def _notes(start: Any, played: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence on each finding that may be intended: equal starts, endless episodes, zero rewards."""
    done = played["done"]
    starts = [np.concatenate([np.asarray(a), b[done]]) for a, b in _pairs(start, played["start"])]
    if len(starts[0]) > 1 and all((x == x[:1]).all() for x in starts):
        yield "Every episode starts from the same observation: does reset use its key?"
    if not done.any():
        yield "No episode ended in this test: set env.max_episode_steps for training, unless episodes should be longer."
    if (played["reward"] == 0).all():
        yield "Every reward was 0: random actions give no learning signal."


def _pairs(start: Any, later: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    yield from zip(jax.tree.leaves(start), jax.tree.leaves(later), strict=True)


def _are_equal(tree: Any, other: Any) -> bool:
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in _pairs(tree, other))


def _is_finite(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return np.isfinite(x) if jnp.issubdtype(x.dtype, jnp.floating) else np.ones(x.shape, bool)


def _bad_number(x: Any) -> str:
    return "NaN" if np.isnan(x).any() else "infinite"


def _entry(path: Any) -> str:
    return f" {leaf_name(path)!r}" if path else ""


def _brief(value: Any) -> str:
    if not hasattr(value, "shape"):
        return str(value)
    return " ".join(np.array2string(np.asarray(value), precision=3, threshold=8).split())
