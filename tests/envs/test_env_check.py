"""Violations of the environment contract are reported in one sentence before compilation."""

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
from tests.support.errors import assert_names, raises_naming
from tests.support.faulty_envs import Growing, IfInside, Walk
from tests.support.probe_envs import ProbeEnv, make_probe

SAID: dict[str, tuple[tuple[str, ...], ...]] = {  # parts of the message for each problem
    "OtherShape": (("OtherShape.reset", "float32[1]", "obs_space has float32[3]"),),
    "OtherDtype": (("OtherDtype.reset", "float32[1]", "obs_space has uint8[1]", ".astype(jnp.uint8)"),),
    "OtherStructure": (
        ("OtherStructure.reset", "{position: float32[1]}", "obs_space"),
        ("only OtherStructure.reset", "obs.position"),
        ("only OtherStructure.step", "obs:"),
    ),
    "PlainDict": (("PlainDict.reset", "dict{position: float32[1]}", "PyTreeDict{position: float32[1]}"),),
    "NoEntries": (("NoEntries.obs_space", "DictSpace({})", "contains no numbers"),),
    "NoNumbers": (("NoNumbers.obs_space", "shape=(0,)", "contains no numbers"),),
    "DictInfo": (("DictInfo.reset", "info of type dict", "PyTreeDict"),),
    "FiveValues": (("FiveValues.step", "tuple of 5", "EnvState", "Gymnasium"),),
    "TwoValues": (("TwoValues.reset", "tuple of 2", "EnvState"),),
    "NothingReturned": (("NothingReturned.step", "NoneType", "EnvState", "return missing"),),
    "Growing": (("env_state", "weak int32[] after Growing.reset", "float32[] after Growing.step"),),
    "Remembering": (("only Remembering.step", "info.last"),),
    "RewardVector": (("RewardVector.step", "reward", "float32[1]", "scalar, float32[]"),),
    "RewardNumber": (("RewardNumber.reset", "reward", "weak int32[]", "be float32[]", "jnp.float32"),),
    "DoneFloat": (("DoneFloat.reset", "done", "float32[]", "bool[]", "jnp.asarray(done, bool)"),),
    "NoFlags": (
        ("NoFlags.reset", "termination and truncation", "info=PyTreeDict(termination=..."),
        ("only NoFlags.step", "info.termination, info.truncation"),
    ),
    "GymnasiumSpace": (("Gymnasium space, Discrete(2)", "evorl.envs.Discrete(n)"),),
    "SpaceMethod": (("obs_space", "evorl.envs", "Box, Discrete, DictSpace, TupleSpace", "got method"),),
    "NoKey": (("NoKey.reset", "reset(self, key)", "got ()"),),
    "NumpyInside": (("NumpyInside.step", "compiled", "faulty_envs.py, line {np.sin}", "NumPy or Python"),),
    "FloatInside": (("FloatInside.step", "compiled", "faulty_envs.py, line {float(}", "NumPy or Python"),),
    "IfInside": (("IfInside.step", "compiled", "faulty_envs.py, line {if action}", "truth value"),),
    "SizeInside": (("SizeInside.step", "faulty_envs.py, line {zeros(action)}", "TypeError: Shapes must be 1D"),),
    "ShapesApart": (("ShapesApart.step", "faulty_envs.py, line {zeros(3) @}", "TypeError: "),),
    "TextInside": (("TextInside.step", "info['title']", "str", "array"),),
}


def located(message: str) -> str:
    """Replace the code in braces by its line in ``faulty_envs.py``."""
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
    for problem, parts in zip(problems, SAID[name], strict=True):
        assert_names(problem, *map(located, parts))
        assert "\n" not in problem
        assert problem.endswith(".")


def test_what_keeps_the_contract_passes() -> None:
    for env in (Walk(), Wrapper(Walk()), EpisodeWrapper(Walk(), 3), ProbeEnv("termination")):
        assert list(env_problems(env)) == []
        check_env(env)


def test_a_vector_env_or_anything_else_is_no_single_env() -> None:
    for env in (make_probe("termination"), object()):
        with raises_naming(EnvContractError, "single environment", "reset"):
            check_env(env)


def test_it_is_refused_where_it_is_given_and_named() -> None:
    with raises_naming(EnvContractError, "env_state", "Growing.reset", "Growing.step"):
        wrap_env(Growing(), parallel=2)
    with raises_naming(EnvContractError, "truth value", "traced array"):
        create_env({"factory": f"{IfInside.__module__}:IfInside"})
    with raises_naming(EnvContractError, "NoActions", "action_space"):
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
    """A vector env that freezes ended episodes accepts an environment that does so itself, also under ``vmap``."""
    env = VmapWrapper(OneEpisodeWrapper(EpisodeWrapper(Walk(), 3)), num_envs=2)
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 3))
    for _ in range(4):
        states = jax.vmap(env.step)(states, jnp.ones((3, 2), jnp.int32))
    assert states.done.all()
    assert states.info.steps.tolist() == [[3, 3]] * 3
