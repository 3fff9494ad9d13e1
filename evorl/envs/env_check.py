"""Whether an environment keeps its contract, told in words before anything is compiled.

Only shapes are computed (``jax.eval_shape``), which takes milliseconds: what an environment would do wrong in the
middle of a training, in words of JAX, is said here in words of the environment, with the line of its file.
"""

from __future__ import annotations

import inspect
import linecache
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
from evorl.envs.space import Space

_FLAGS = ("termination", "truncation")
# Files that are not the user's: those of Python, of what is installed, and ours.
_FOREIGN = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).resolve().parent.parent)
_NUMPY = (
    "NumPy, or Python itself, asks for the number of an array that is traced. Write jax.numpy (jnp) for numpy there, "
    "and jnp.asarray or .astype for float() and int()"
)
_CONDITION = (
    "Python asks whether an array that is traced is true (if, while, and, or, not, max, min). Write "
    "jnp.where(condition, a, b), jnp.minimum or jnp.maximum, or &, | and ~"
)
_SIZE = "a shape or an index depends on an array that is traced: sizes must be numbers that are known beforehand"


class EnvContractError(ValueError):
    """An environment does not keep its contract; the message says what it does, what is expected and what to write."""


def check_env(env: Env) -> None:
    """Refuse an environment that does not keep the contract of ``Env``.

    Args:
        env: a single environment, not a vector env.

    Raises:
        EnvContractError: it does not; in a sentence.
    """
    for problem in env_problems(env):
        raise EnvContractError(problem)


def env_problems(env: Env) -> Iterator[str]:
    """What an environment does that its contract does not allow, a sentence each; empty where it keeps it.

    What cannot be asked while something before it is wrong is left out.
    """
    name = type(env.unwrapped if isinstance(env, Env) else env).__name__
    if not isinstance(env, Env) or hasattr(env, "num_envs"):
        yield f"{name} is no single evorl.envs.Env: write a class of it with reset, step, obs_space and action_space."
        return
    spaces = []
    for which in ("obs_space", "action_space"):
        space, problem = _space_of(env, which, name)
        if problem:
            yield problem
        spaces.append(space)
    obs_space, action_space = spaces
    if wrong := list(_signature_problems(env, name)):
        yield from wrong
        return
    if env.num_agents > 1:  # its methods know of one another's rows, which a vector env gives them
        return
    start, problem = _traced(env.reset, (jax.eval_shape(lambda: jax.random.key(0)),), f"{name}.reset")
    found = [problem] if problem else list(_state_problems(start, obs_space, f"{name}.reset"))
    yield from found
    if action_space is None or not isinstance(start, EnvState):
        return
    stepped, problem = _traced(env.step, (start, action_space.spec), f"{name}.step")
    if problem:
        yield problem
        return
    # What reset does wrong already is not said twice.
    told = {text.partition(" ")[2] for text in found}
    of_step = _state_problems(stepped, obs_space, f"{name}.step")
    yield from (problem for problem in of_step if problem.partition(" ")[2] not in told)
    if isinstance(stepped, EnvState):
        yield from _changes(start, stepped, name)


def _space_of(env: Env, which: str, name: str) -> tuple[Space | None, str | None]:
    """The space of that name, or what is wrong with it."""
    try:
        space = getattr(env, which)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too
        if f"{name} has no {which}" in str(error):
            return None, str(error)
        return None, f"{name}.{which} fails{_place(error)}: {_short(error)}."
    if isinstance(space, Space):
        return space, None
    ours = {"Box": "evorl.envs.Box(low, high, shape)", "Discrete": "evorl.envs.Discrete(n)"}
    if type(space).__module__.partition(".")[0] in ("gymnasium", "gym"):
        instead = ours.get(type(space).__name__, "one of evorl.envs: Box, Discrete, DictSpace or TupleSpace")
        return None, f"{name}.{which} is a space of Gymnasium, {space!r}, and must be one of evorl: write {instead}."
    is_method = " It is a method: make it a property, or a class attribute." if inspect.ismethod(space) else ""
    return None, (
        f"{name}.{which} must be a space of evorl.envs (Box, Discrete, DictSpace, TupleSpace), got "
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
            why = " The key is where all its random numbers come from." if arguments == 1 else ""
            got = inspect.signature(method).replace(return_annotation=inspect.Signature.empty)
            yield f"{name}.{method.__name__} must be written as {shown}, got {got}.{why}"
        except ValueError:  # a callable that does not tell its arguments
            continue


def _traced(method: Callable, arguments: tuple, where: str) -> tuple[Any, str | None]:
    """The shapes of what a method returns, or why there are none."""
    returned = []

    def call(*arguments: Any) -> Any:
        returned.append(method(*arguments))
        return returned[-1]

    try:
        return jax.eval_shape(call, *arguments), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too
        if returned and not isinstance(returned[-1], EnvState):  # nothing that JAX knows, as a list of info may be
            return None, _not_a_state(returned[-1], where)
        return None, _failure_in_words(error, where)


def _failure_in_words(error: BaseException, where: str) -> str:
    place = _place(error)
    errors = jax.errors
    if isinstance(error, errors.TracerBoolConversionError):
        return f"{where} cannot be compiled{place}: {_CONDITION}."
    if isinstance(error, errors.TracerIntegerConversionError | errors.NonConcreteBooleanIndexError):
        return f"{where} cannot be compiled{place}: {_SIZE}."
    if isinstance(error, errors.TracerArrayConversionError | errors.ConcretizationTypeError):
        return f"{where} cannot be compiled{place}: {_NUMPY}."
    if isinstance(error, errors.UnexpectedTracerError):
        return (
            f"{where} cannot be compiled{place}: an array of an earlier call was kept, as in self.position = ...; what "
            "changes belongs into the EnvState that is returned."
        )
    if isinstance(error, TypeError) and "is not a valid JAX type" in str(error):
        kind, entry = (
            re.search(pattern, str(error)) for pattern in (r"<class '([\w.]+)'>", r"output component (\S+),")
        )
        return (
            f"{where} returns something that is no array: {entry[1].lstrip('.') if entry else 'a part of its state'} "
            f"is a {kind[1] if kind else 'Python object'}. Leaves of an EnvState are arrays and numbers; text and "
            "objects belong into attributes of the environment."
        )
    return f"{where} fails{place}: {_short(error)}."


def _state_problems(state: Any, obs_space: Space | None, where: str) -> Iterator[str]:
    """What is wrong with what ``reset`` or ``step`` returned, of which ``state`` has the shapes."""
    if not isinstance(state, EnvState):
        yield _not_a_state(state, where)
        return
    if obs_space is not None:
        yield from _obs_problems(state.obs, obs_space, where)
    wanted = {"reward": ("float32", "jnp.float32(reward)"), "done": ("bool", "jnp.asarray(done, bool)")}
    for field, (dtype, remedy) in wanted.items():
        yield from _scalar_problems(getattr(state, field), dtype, f"{where} returns {field}", remedy)
    if not isinstance(state.info, Mapping):
        yield f"{where} returns info of type {type(state.info).__name__}, and it must be a PyTreeDict."
        return
    missing = [entry for entry in (*_FLAGS, "metrics") if entry not in state.info]
    if missing:
        yield (
            f"{where} returns info without {' and '.join(missing)}: write info=PyTreeDict(termination=..., "
            "truncation=..., metrics=PyTreeDict()), where termination and truncation are bool scalars."
        )
    for flag in _FLAGS:
        if flag in state.info:
            yield from _scalar_problems(
                state.info[flag], "bool", f"{where} returns info.{flag}", "jnp.asarray(..., bool)"
            )


def _scalar_problems(value: Any, dtype: str, said: str, remedy: str) -> Iterator[str]:
    if not hasattr(value, "dtype"):
        yield f"{said} of type {type(value).__name__}, and it must be a scalar of {dtype}: write {remedy}."
    elif value.shape != ():
        yield f"{said} as {_shown(value)}, and it must be a scalar, {dtype}[]: take one number of it, or its sum."
    elif value.dtype != jnp.dtype(dtype):
        yield f"{said} as {_shown(value)}, and it must be {dtype}[]: write {remedy}."


def _obs_problems(obs: Any, space: Space, where: str) -> Iterator[str]:
    spec = space.spec
    if jax.tree.structure(obs) != jax.tree.structure(spec):
        yield (
            f"{where} returns an observation made of {_structure(obs)}, and obs_space says {_structure(spec)}: let "
            "them be of one structure (a dict observation is a PyTreeDict with the names of its DictSpace)."
        )
        return
    leaves = zip(jax.tree_util.tree_leaves_with_path(obs), jax.tree.leaves(spec), strict=True)
    for (path, got), expected in leaves:
        if got.shape != expected.shape or got.dtype != expected.dtype:
            entry = f" {jax.tree_util.keystr(path, simple=True, separator='.')!r}" if path else ""
            yield (
                f"{where} returns an observation{entry} of {_shown(got)}, and obs_space says {_shown(expected)}: "
                f"{_mend_observation(got, expected)}."
            )


def _mend_observation(got: Any, expected: Any) -> str:
    if got.shape == expected.shape:
        return f"write .astype(jnp.{expected.dtype}), or give the space dtype=jnp.{got.dtype}"
    return "give the space the shape of the observation, or the observation that of the space"


def _changes(start: EnvState, stepped: EnvState, name: str) -> Iterator[str]:
    """Where what ``step`` returns is of another structure, shape or dtype than what ``reset`` does."""
    before, after = (dict(jax.tree_util.tree_leaves_with_path(state)) for state in (start, stepped))
    before, after = ({_path(path): leaf for path, leaf in leaves.items()} for leaves in (before, after))
    only = [(f"Only {name}.reset", before.keys() - after.keys()), (f"Only {name}.step", after.keys() - before.keys())]
    for which, paths in only:
        if paths:
            yield (
                f"{which} returns {', '.join(sorted(paths))}: both must return one structure, so give the other an "
                "entry of zeros."
            )
    told = ("obs", "reward", "done", *(f"info.{flag}" for flag in _FLAGS))  # compared with what they must be
    for path in before:
        if path not in after or path in told or path.startswith("obs."):
            continue
        a, b = before[path], after[path]
        if a.shape != b.shape or a.dtype != b.dtype:
            weak = " (a Python number has no dtype of its own: write jnp.float32(...) or jnp.int32(...))"
            yield (
                f"The state's {path} is {_shown(a)} after {name}.reset and {_shown(b)} after {name}.step, and must "
                f"stay what it is{weak if a.weak_type or b.weak_type else ''}: write .astype where it changes, or let "
                "reset begin with the dtype and shape that step makes."
            )
    if not any(paths for _, paths in only) and jax.tree.structure(start) != jax.tree.structure(stepped):
        yield (
            f"{name}.reset and {name}.step return the same arrays in different containers: a dict in one and a "
            "PyTreeDict, or a tuple and a list, in the other. Write the same in both."
        )


def _not_a_state(value: Any, where: str) -> str:
    if not isinstance(value, tuple | list):
        return f"{where} returns {type(value).__name__}, and must return an EnvState (is a return missing?)."
    habit = " instead of the values that Gymnasium has" if len(value) in (2, 4, 5) else ""
    return (
        f"{where} returns a {type(value).__name__} of {len(value)}, and must return an EnvState: write{habit} "
        "EnvState(env_state=..., obs=obs, reward=reward, done=done, info=PyTreeDict(termination=..., truncation=..., "
        "metrics=PyTreeDict()))."
    )


def _place(error: BaseException) -> str:
    """Where in the user's files an error arose: `` in my_envs.py, line 3 (`...`)``; empty where in none of them."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if not frames:
        return ""
    file, line = frames[-1].filename, frames[-1].lineno or 0
    code = linecache.getline(file, line).strip()
    return f" in {Path(file).name}, line {line}" + (f" (`{code}`)" if code else "")


def _is_users(file: str) -> bool:
    if file.startswith("<frozen") or file == "<string>":
        return False
    path = str(Path(file).resolve())
    installed = any(path.startswith(f"{folder}/") for folder in (*_FOREIGN, sys.prefix))
    return not installed and not path.startswith(f"{_OURS}/")


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _shown(leaf: Any) -> str:
    weak = "weak " if getattr(leaf, "weak_type", False) else ""
    return f"{weak}{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"


def _structure(tree: Any) -> str:
    """``{position: float32[2]}``: a pytree of shapes, briefly."""
    if isinstance(tree, Mapping):
        return f"{{{', '.join(f'{name}: {_structure(entry)}' for name, entry in tree.items())}}}"
    if isinstance(tree, tuple | list):
        return f"({', '.join(map(_structure, tree))})"
    return _shown(tree) if hasattr(tree, "shape") else type(tree).__name__


def _short(error: BaseException) -> str:
    """The first line of an error, with its type."""
    text = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
