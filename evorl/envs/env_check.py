"""Checks that an environment follows the contract of ``Env``, before anything is compiled.

The check only traces shapes (``jax.eval_shape``), which takes milliseconds. Where JAX would raise an error in training,
the check names the method of the environment, the violated rule, and the line in the user's file if known.
"""

from __future__ import annotations

import inspect
import linecache
import math
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs.env import Env, EnvState
from evorl.envs.space import Space, leaf_spaces
from evorl.ops.trees import leaf_name, named_leaves
from evorl.types import PyTreeDict

_FLAGS = ("termination", "truncation")
_EVORL = str(Path(__file__).resolve().parent.parent)
_NUMPY = (
    "NumPy or Python needs the value of a traced array. Replace numpy by jax.numpy (jnp), and float() and int() by "
    "jnp.asarray or .astype"
)
_CONDITION = (
    "Python needs the truth value of a traced array (if, while, and, or, not, max, min). Use "
    "jnp.where(condition, a, b), jnp.minimum or jnp.maximum, or &, | and ~"
)
_SIZE = "a shape or an index depends on a traced array. Use constant sizes, and select entries with jnp.where"


class EnvContractError(ValueError):
    """Raised for an environment that violates the contract of ``Env``; the message states the violation and a fix."""


def check_env(env: Env) -> None:
    """Raise an error if a single environment violates the contract of ``Env``.

    Raises:
        EnvContractError: the environment violates its contract; the message describes the first violation.
    """
    for problem in env_problems(env):
        raise EnvContractError(problem)


def env_problems(env: Env) -> Iterator[str]:
    """Yield a message for each violation of the contract of ``Env``; nothing for a valid environment.

    Checks that depend on a failed check are skipped. With several agents, only spaces and signatures are checked.
    """
    name = type(env.unwrapped if isinstance(env, Env) else env).__name__
    if not isinstance(env, Env) or hasattr(env, "num_envs"):
        yield f"{type(env).__name__} is not a single environment: pass an evorl.envs.Env with reset, step and spaces."
        return
    spaces = []
    for kind in ("obs_space", "action_space"):
        space, problem = space_of(env, kind, name)
        if problem:
            yield problem
        spaces.append(space)
    obs_space, action_space = spaces
    if wrong := list(_signature_problems(env, name)):
        yield from wrong
        return
    if env.num_agents > 1:  # the methods read the rows of other agents, which only a vector environment provides
        return
    start, problem = _traced(env.reset, (jax.eval_shape(lambda: jax.random.key(0)),), f"{name}.reset")
    reset_problems = [problem] if problem else list(_state_problems(start, obs_space, f"{name}.reset"))
    yield from reset_problems
    if action_space is None or not isinstance(start, EnvState):
        return
    stepped, problem = _traced(env.step, (start, action_space.spec), f"{name}.step")
    if problem:
        yield problem
        return
    # Violations already reported for reset are not repeated.
    reported = {text.partition(" ")[2] for text in reset_problems}
    step_problems = _state_problems(stepped, obs_space, f"{name}.step")
    yield from (problem for problem in step_problems if problem.partition(" ")[2] not in reported)
    if isinstance(stepped, EnvState):
        yield from _changes(start, stepped, name)


def space_of(env: object, kind: str, name: str) -> tuple[Space | None, str | None]:
    """Return the space in the attribute ``kind`` and ``None``; if it is invalid, ``None`` and a message about it."""
    try:
        space = getattr(env, kind)
    except (Exception, SystemExit) as error:
        if f"{name} has no {kind}" in str(error):
            return None, str(error)
        return None, f"{name}.{kind} fails{_source_location(error)}: {_short(error)}."
    if isinstance(space, Space):
        is_empty = kind == "obs_space" and not any(math.prod(leaf.shape) for leaf in leaf_spaces(space))
        empty = f"{name}.obs_space={space!r} contains no numbers: add one, such as 0."
        return space, empty if is_empty else None
    replacements = {"Box": "evorl.envs.Box(low, high, shape)", "Discrete": "evorl.envs.Discrete(n)"}
    if type(space).__module__.partition(".")[0] in ("gymnasium", "gym"):
        instead = replacements.get(type(space).__name__, "one of evorl.envs: Box, Discrete, DictSpace or TupleSpace")
        return None, f"{name}.{kind} is a Gymnasium space, {space!r}; it must be an evorl space: use {instead}."
    is_method = " It is a method: make it a property, or a class attribute." if inspect.ismethod(space) else ""
    return None, (
        f"{name}.{kind} must be a space of evorl.envs (Box, Discrete, DictSpace, TupleSpace), got "
        f"{type(space).__name__}.{is_method}"
    )


def _signature_problems(env: Env, name: str) -> Iterator[str]:
    for method, arguments, shown in (
        (env.reset, 1, "reset(self, key)"),
        (env.step, 2, "step(self, env_state, action)"),
    ):
        try:
            inspect.signature(method).bind(*range(arguments))
        except TypeError:
            why = " It must draw all random numbers from the key." if arguments == 1 else ""
            got = inspect.signature(method).replace(return_annotation=inspect.Signature.empty)
            yield f"{name}.{method.__name__} must have the signature {shown}, got {got}.{why}"
        except ValueError:  # a callable without an inspectable signature
            continue


def _traced(method: Callable, arguments: tuple, where: str) -> tuple[Any, str | None]:
    """Return the shapes of a method's result and ``None``, or ``None`` and a message on why tracing failed."""
    returned = []

    def call(*arguments: Any) -> Any:
        returned.append(method(*arguments))
        return returned[-1]

    try:
        return jax.eval_shape(call, *arguments), None
    except (Exception, SystemExit) as error:
        if returned and not isinstance(returned[-1], EnvState):  # JAX rejects some types, as in Gymnasium's info
            return None, _not_a_state(returned[-1], where)
        return None, _describe_failure(error, where)


def _describe_failure(error: BaseException, where: str) -> str:
    location, errors = _source_location(error), jax.errors
    if isinstance(error, errors.TracerBoolConversionError):
        return f"{where} cannot be compiled{location}: {_CONDITION}."
    if isinstance(error, errors.TracerIntegerConversionError | errors.NonConcreteBooleanIndexError):
        return f"{where} cannot be compiled{location}: {_SIZE}."
    if isinstance(error, errors.TracerArrayConversionError | errors.ConcretizationTypeError):
        return f"{where} cannot be compiled{location}: {_NUMPY}."
    if isinstance(error, errors.UnexpectedTracerError):
        return (
            f"{where} cannot be compiled{location}: it reads an array that an earlier call stored, as in self.x = ...; "
            "put everything that changes into the returned EnvState."
        )
    if isinstance(error, TypeError) and "is not a valid JAX type" in str(error):
        kind, entry = (
            re.search(pattern, str(error)) for pattern in (r"<class '([\w.]+)'>", r"output component (\S+),")
        )
        return (
            f"{where} returns a value that is not an array: {entry[1].lstrip('.') if entry else 'a part of its state'} "
            f"is a {kind[1] if kind else 'Python object'}. Leaves of an EnvState must be arrays or numbers; store text "
            "and objects as attributes of the environment."
        )
    return f"{where} fails{location}: {_short(error)}."


def _state_problems(state: Any, obs_space: Space | None, where: str) -> Iterator[str]:
    """Yield a message for each violation in ``state``, the shapes of the result of ``reset`` or ``step``."""
    if not isinstance(state, EnvState):
        yield _not_a_state(state, where)
        return
    if obs_space is not None:
        yield from _obs_problems(state.obs, obs_space, where)
    expected = {"reward": ("float32", "jnp.float32(reward)"), "done": ("bool", "jnp.asarray(done, bool)")}
    for field, (dtype, advice) in expected.items():
        yield from _scalar_problems(getattr(state, field), dtype, f"{where} returns {field}", advice)
    if not isinstance(state.info, PyTreeDict):
        yield f"{where} returns info of type {type(state.info).__name__}, but it must be a PyTreeDict."
        return
    missing = [entry for entry in (*_FLAGS, "metrics") if entry not in state.info]
    if missing:
        yield (
            f"{where} returns info without {' and '.join(missing)}: use info=PyTreeDict(termination=..., "
            "truncation=..., metrics=PyTreeDict()), where termination and truncation are bool scalars."
        )
    for flag in _FLAGS:
        if flag in state.info:
            yield from _scalar_problems(
                state.info[flag], "bool", f"{where} returns info.{flag}", "jnp.asarray(..., bool)"
            )


def _scalar_problems(value: Any, dtype: str, subject: str, advice: str) -> Iterator[str]:
    if not hasattr(value, "dtype"):
        yield f"{subject} of type {type(value).__name__}, but it must be a scalar of {dtype}: use {advice}."
    elif value.shape != ():
        yield f"{subject} as {_format_leaf(value)}, but it must be a scalar, {dtype}[]: use one element, or reduce it."
    elif value.dtype != jnp.dtype(dtype):
        yield f"{subject} as {_format_leaf(value)}, but it must be {dtype}[]: use {advice}."


def _obs_problems(obs: Any, space: Space, where: str) -> Iterator[str]:
    spec = space.spec
    if jax.tree.structure(obs) != jax.tree.structure(spec):
        yield (
            f"{where} returns an observation with the structure {_structure(obs)}, but obs_space has "
            f"{_structure(spec)}: make the structures equal (a dict observation is a PyTreeDict with the keys of its "
            "DictSpace)."
        )
        return
    leaves = zip(jax.tree_util.tree_leaves_with_path(obs), jax.tree.leaves(spec), strict=True)
    for (path, got), expected in leaves:
        if got.shape != expected.shape or got.dtype != expected.dtype:
            entry = f" {leaf_name(path)!r}" if path else ""
            yield (
                f"{where} returns an observation{entry} of {_format_leaf(got)}, but obs_space has "
                f"{_format_leaf(expected)}: {_observation_fix(got, expected)}."
            )


def _observation_fix(got: Any, expected: Any) -> str:
    if got.shape == expected.shape:
        return f"use .astype(jnp.{expected.dtype}), or create the space with dtype=jnp.{got.dtype}"
    return "change the shape of the space or of the observation so that they are equal"


def _changes(start: EnvState, stepped: EnvState, name: str) -> Iterator[str]:
    """Yield a message for each entry that ``reset`` and ``step`` return with different structure, shape or dtype."""
    before, after = named_leaves(start), named_leaves(stepped)
    only = [(f"Only {name}.reset", before.keys() - after.keys()), (f"Only {name}.step", after.keys() - before.keys())]
    for subject, paths in only:
        if paths:
            yield (
                f"{subject} returns {', '.join(sorted(paths))}: reset and step must return the same structure, so add "
                "these entries, with zeros, to the result of the other method."
            )
    checked = ("obs", "reward", "done", *(f"info.{flag}" for flag in _FLAGS))  # already checked by _state_problems
    for path in before:
        if path not in after or path in checked or path.startswith("obs."):
            continue
        a, b = before[path], after[path]
        if a.shape != b.shape or a.dtype != b.dtype:
            weak = " (a Python number has only a weak dtype: use jnp.float32(...) or jnp.int32(...))"
            yield (
                f"The state's {path} is {_format_leaf(a)} after {name}.reset and {_format_leaf(b)} after {name}.step, "
                f"but must not change{weak if a.weak_type or b.weak_type else ''}: use .astype where it changes, or "
                "make reset return the dtype and shape of step."
            )
    if not any(paths for _, paths in only) and jax.tree.structure(start) != jax.tree.structure(stepped):
        yield (
            f"{name}.reset and {name}.step return the same arrays in different containers, such as a dict and "
            "a PyTreeDict, or a tuple and a list. Use the same containers in both."
        )


def _not_a_state(value: Any, where: str) -> str:
    if not isinstance(value, tuple | list):
        hint = " (is a return missing?)" if value is None else ""
        return f"{where} returns {type(value).__name__}, but must return an EnvState{hint}."
    habit = " instead of Gymnasium's tuple" if len(value) in (2, 4, 5) else ""
    return (
        f"{where} returns a {type(value).__name__} of {len(value)} values, but must return an EnvState: return{habit} "
        "EnvState(env_state=..., obs=obs, reward=reward, done=done, info=PyTreeDict(termination=..., truncation=..., "
        "metrics=PyTreeDict()))."
    )


def _source_location(error: BaseException) -> str:
    """Describe the line of the user's code that failed, as in `` in my_envs.py, line 3 (`...`)``; empty if unknown."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if not frames:
        return ""
    file, line = frames[-1].filename, frames[-1].lineno or 0
    code = linecache.getline(file, line).strip()
    return f" in {Path(file).name}, line {line}" + (f" (`{code}`)" if code else "")


def _is_users(file: str) -> bool:
    """Return True unless the file belongs to Python, an installed package, or evorl."""
    if file.startswith("<frozen") or file == "<string>":
        return False
    path = str(Path(file).resolve())
    folders = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    installed = any(path.startswith(f"{folder}/") for folder in (*folders, sys.prefix))
    return not installed and not path.startswith(f"{_EVORL}/")


def _format_leaf(leaf: Any) -> str:
    weak = "weak " if getattr(leaf, "weak_type", False) else ""
    return f"{weak}{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"


def _structure(tree: Any) -> str:
    """Format a pytree of shapes and dtypes, as in ``PyTreeDict{position: float32[2]}``."""
    if isinstance(tree, Mapping):
        return f"{type(tree).__name__}{{{', '.join(f'{name}: {_structure(x)}' for name, x in tree.items())}}}"
    if isinstance(tree, tuple | list):
        return f"{type(tree).__name__}({', '.join(map(_structure, tree))})"
    return _format_leaf(tree) if hasattr(tree, "shape") else type(tree).__name__


def _short(error: BaseException) -> str:
    """Format the type and the first line of an error, as in ``ValueError: bad size``."""
    text = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
