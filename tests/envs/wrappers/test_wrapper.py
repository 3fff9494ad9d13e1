"""The base of wrappers."""

from __future__ import annotations

from evorl.envs.wrappers import EpisodeWrapper, OneEpisodeWrapper, RewardScaleWrapper, Wrapper
from evorl.envs.wrappers.wrapper import has_layer
from tests.support.errors import raises_naming
from tests.support.probe_envs import ProbeEnv, make_probe


def test_equality_by_type_parameters_and_inner_environment() -> None:
    env = ProbeEnv("best_action")
    assert RewardScaleWrapper(env, 2.0) == RewardScaleWrapper(ProbeEnv("best_action"), 2)
    assert RewardScaleWrapper(env, 2.0) != RewardScaleWrapper(env, 3.0)
    assert RewardScaleWrapper(env, 2.0) != RewardScaleWrapper(ProbeEnv("termination"), 2.0)
    assert len({Wrapper(env), Wrapper(env), EpisodeWrapper(env)}) == 2


def test_only_single_environments_are_wrapped() -> None:
    with raises_naming(TypeError, "evorl Env", "got str"):
        Wrapper("hopper")
    with raises_naming(TypeError, "single environment", "vmap wrapper"):
        Wrapper(make_probe("best_action"))


def test_a_frozen_environment_is_not_wrapped_again() -> None:
    with raises_naming(TypeError, "outermost", "OneEpisodeWrapper"):
        EpisodeWrapper(OneEpisodeWrapper(ProbeEnv("best_action")))


def test_delegation() -> None:
    env = ProbeEnv("best_action")
    wrapped = Wrapper(Wrapper(env))
    assert wrapped.unwrapped is env
    assert (wrapped.obs_space, wrapped.action_space) == (env.obs_space, env.action_space)
    assert has_layer(RewardScaleWrapper(EpisodeWrapper(env), 2.0), EpisodeWrapper)
    assert not has_layer(wrapped, EpisodeWrapper)
