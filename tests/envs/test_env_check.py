"""Violations of the environment contract are reported in a sentence before anything is compiled."""

from __future__ import annotations

import linecache
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from evorl.envs import Box, check_env, create_env
from evorl.envs.env_check import EnvContractError, env_problems
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers import EpisodeWrapper, OneEpisodeWrapper, VmapWrapper, Wrapper
from tests.support import faulty_envs
from tests.support.faulty_envs import Growing, IfInside, Walk
from tests.support.probe_envs import ProbeEnv, make_probe

SAID = {
    "OtherShape": ("OtherShape.reset returns an observation of float32[1], but obs_space has float32[3]: ",),
    "OtherDtype": ("of float32[1], but obs_space has uint8[1]: use .astype(jnp.uint8), or create the space",),
    "OtherStructure": (
        "OtherStructure.reset returns an observation with the structure {position: float32[1]}, but obs_space has",
        "Only OtherStructure.reset returns obs.position: both must return the same structure",
        "Only OtherStructure.step returns obs:",
    ),
    "FiveValues": ("FiveValues.step returns a tuple of 5, but must return an EnvState: return instead of Gymnasium's",),
    "TwoValues": ("TwoValues.reset returns a tuple of 2, but must return an EnvState",),
    "NothingReturned": ("NothingReturned.step returns NoneType, but must return an EnvState (is a return missing?).",),
    "Growing": ("env_state is weak int32[] after Growing.reset and float32[] after Growing.step, but must not change",),
    "Remembering": ("Only Remembering.step returns info.last: both must return the same structure",),
    "RewardVector": ("RewardVector.step returns reward as float32[1], but it must be a scalar, float32[]: use one",),
    "RewardNumber": ("RewardNumber.reset returns reward as weak int32[], but it must be float32[]: use jnp.float32",),
    "DoneFloat": ("DoneFloat.reset returns done as float32[], but it must be bool[]: use jnp.asarray(done, bool).",),
    "NoFlags": (
        "NoFlags.reset returns info without termination and truncation: use info=PyTreeDict(termination=...",
        "Only NoFlags.step returns info.termination, info.truncation",
    ),
    "GymnasiumSpace": (
        "is a space of Gymnasium, Discrete(2); it must be a space of evorl: use evorl.envs.Discrete(n).",
    ),
    "SpaceMethod": (
        "obs_space must be a space of evorl.envs (Box, Discrete, DictSpace, TupleSpace), got method. It is",
    ),
    "NoKey": ("NoKey.reset must have the signature reset(self, key), got (). The key is the source of all",),
    "NumpyInside": ("NumpyInside.step cannot be compiled in faulty_envs.py, line {np.sin}: NumPy or Python needs ",),
    "FloatInside": ("FloatInside.step cannot be compiled in faulty_envs.py, line {float(}: NumPy or Python needs ",),
    "IfInside": (
        "IfInside.step cannot be compiled in faulty_envs.py, line {if action}: Python needs the truth value ",
    ),
    "SizeInside": ("SizeInside.step fails in faulty_envs.py, line {zeros(action)}: TypeError: Shapes must be 1D",),
    "ShapesApart": ("ShapesApart.step fails in faulty_envs.py, line {zeros(3) @}: TypeError: ",),
    "TextInside": ("TextInside.step returns a value that is not an array: info['title'] is a str. Leaves of an",),
}


def located(message: str) -> str:
    """The sentence with the line of ``faulty_envs.py`` that has what stands in braces first."""
    before, brace, rest = message.partition(", line {")
    if not brace:
        return message
    code, _, after = rest.partition("}")
    file = str(Path(faulty_envs.__file__))
    number = next(i for i, line in enumerate(linecache.getlines(file), 1) if code in line)
    return f"{before}, line {number} (`{linecache.getline(file, number).strip()}`){after}"


@pytest.mark.parametrize("name", SAID)
def test_each_fault_is_one_sentence(name: str) -> None:
    problems = list(env_problems(getattr(faulty_envs, name)()))
    assert len(problems) == len(SAID[name])
    for problem, message in zip(problems, SAID[name], strict=True):
        assert located(message) in problem
        assert "\n" not in problem
        assert problem.endswith(".")


def test_what_keeps_the_contract_passes() -> None:
    for env in (Walk(), Wrapper(Walk()), EpisodeWrapper(Walk(), 3), ProbeEnv("termination")):
        assert list(env_problems(env)) == []
        check_env(env)


def test_a_vector_env_or_anything_else_is_no_single_env() -> None:
    for env in (make_probe("termination"), object()):
        with pytest.raises(EnvContractError, match=r"is not a single evorl\.envs\.Env: subclass it and define reset"):
            check_env(env)


def test_it_is_refused_where_it_is_given_and_named() -> None:
    with pytest.raises(EnvContractError, match=r"Growing\.step, but must not change"):
        wrap_env(Growing(), parallel=2)
    with pytest.raises(EnvContractError, match="Python needs the truth value of a traced array"):
        create_env({"factory": f"{IfInside.__module__}:IfInside"})
    with pytest.raises(EnvContractError, match=r"NoActions has no action_space: define it as a class attribute"):
        create_env({"factory": f"{IfInside.__module__}:NoActions"})
    assert create_env({"factory": f"{Walk.__module__}:Walk", "parallel": 2}).num_envs == 2


def test_bounds_of_jax_are_numbers_inside_a_trace() -> None:
    class InProperty(Walk):
        @property
        def obs_space(self) -> Box:
            return Box(-jnp.ones(1), jnp.ones(1) * 1.0)

    env = InProperty()
    low = jax.jit(lambda key: env.reset(key).obs - env.obs_space.low)(jax.random.key(0))
    assert low.shape == (1,)
    check_env(env)


def test_one_episode_around_the_clock_in_a_vector_env() -> None:
    """The vector env that freezes what has ended takes an environment that does so itself, also under ``vmap``."""
    env = VmapWrapper(OneEpisodeWrapper(EpisodeWrapper(Walk(), 3)), num_envs=2)
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 3))
    for _ in range(4):
        states = jax.vmap(env.step)(states, jnp.ones((3, 2), jnp.int32))
    assert states.done.all()
    assert states.info.steps.tolist() == [[3, 3]] * 3
