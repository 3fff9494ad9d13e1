"""``evorl play``: a policy trained in JAX acts in Gymnasium's environment, recorded as an animation."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evorl.cli import commands, play
from evorl.envs.gymnasium import make_gymnasium_simulators
from evorl.envs.space import Box
from evorl.export.play import check_fits, environment_of, play_episode, simulators_of
from evorl.export.stored_policy import LoadedPolicy
from evorl.runs.folder import RunFolder
from tests.support.errors import raises_naming
from tests.support.optional_packages import need
from tests.support.portable import stored


@pytest.fixture(autouse=True)
def nothing_chosen_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "draw_without_screen", lambda: None)
    for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        monkeypatch.setenv(name, "dummy")


def test_episodes_are_an_animation(trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("pygame", "gymnasium")
    from PIL import Image

    to = tmp_path / "played.webp"
    arguments = ["episodes=2", "seed=3", "max_steps=12", "frames=6", f"to={to}"]
    commands.run(["play", f"run={trained.path}", *arguments])
    message = capsys.readouterr().out.splitlines()
    lengths = [int(line.split()[2]) for line in message if line.startswith("episode ")]
    assert len(lengths) == 2
    assert message[-1] == f"6 frames: {to}"
    with Image.open(to) as picture:
        assert picture.n_frames > 1
        assert picture.size == (600, 400)


def test_an_episode_is_that_of_the_policy(tmp_path: Path) -> None:
    policy = stored("ppo_gru_history", tmp_path).policy
    simulators = make_gymnasium_simulators("Pendulum-v1", 1)
    length, total = play_episode(LoadedPolicy(policy), simulators, 0, 20)
    assert length == 20
    assert total == play_episode(LoadedPolicy(policy), simulators, 0, 20)[1]
    repeated = dataclasses.replace(policy, action_repeat=8)
    assert play_episode(LoadedPolicy(repeated), simulators, 0, 20)[0] == 20
    simulators.close()


@pytest.mark.parametrize("title", ["gymnax/Pendulum-v1", "gymnasium/Pendulum-v1"])
def test_an_episode_has_the_time_limit_of_the_run(title: str, tmp_path: Path) -> None:
    run = dataclasses.replace(stored("sac", tmp_path), title=title, env_config={"max_episode_steps": 7})
    simulators = simulators_of(*environment_of(run, None), "rgb_array")
    assert play_episode(LoadedPolicy(run.policy), simulators, 0, 20)[0] == 7
    simulators.close()


def test_which_environment(tmp_path: Path) -> None:
    cartpole = stored("dqn", tmp_path)
    assert environment_of(cartpole, None) == ("CartPole-v1", {})
    assert environment_of(cartpole, "gymnasium/Acrobot-v1") == ("Acrobot-v1", {})
    assert environment_of(cartpole, "Acrobot-v1") == ("Acrobot-v1", {})
    config = {"library": "gymnasium", "name": "X-v0", "history": 2, "host": "loop", "wrappers": ["A"], "obs_key": None}
    of_gymnasium = dataclasses.replace(cartpole, title="gymnasium/X-v0", env_config=config)
    assert environment_of(of_gymnasium, None) == ("X-v0", {"wrappers": ["A"]})
    limit = {"max_episode_steps": 20}
    of_gymnasium.env_config.update(limit, terminal_on_life_loss=True, reward_clip=1.0)
    assert environment_of(of_gymnasium, None) == ("X-v0", {"wrappers": ["A"], **limit})
    assert environment_of(of_gymnasium, "X-v0") == ("X-v0", {})
    of_gymnax = dataclasses.replace(cartpole, env_config={**limit, "name": "CartPole-v1", "option": 3})
    assert environment_of(of_gymnax, None) == ("CartPole-v1", limit)
    with raises_naming(ValueError, "gymnax/Breakout-MinAtar", "Gymnasium"):
        environment_of(stored("dqn_convolutional", tmp_path), None)


@pytest.mark.parametrize(("name", "mismatch"), [("Acrobot-v1", "observations"), ("Pendulum-v1", "observations")])
def test_a_policy_that_does_not_fit_is_told(name: str, mismatch: str, tmp_path: Path) -> None:
    simulators: Any = make_gymnasium_simulators(name, 1)
    with raises_naming(ValueError, "gymnax/CartPole-v1", name, f"{mismatch} are Box"):
        check_fits(stored("dqn", tmp_path), simulators, name)
    simulators.close()


def test_actions_fit_too(tmp_path: Path) -> None:
    simulators: Any = make_gymnasium_simulators("CartPole-v1", 1)
    policy = stored("dqn", tmp_path)
    other = dataclasses.replace(
        policy, policy=dataclasses.replace(policy.policy, action_space=stored("sac", tmp_path).policy.action_space)
    )
    with raises_naming(ValueError, "actions are Box"):
        check_fits(other, simulators, "CartPole-v1")
    assert np.asarray(simulators.reset(np.asarray([0], np.uint64))).shape == (1, 4)
    simulators.close()


@pytest.mark.parametrize("bound", [1.0, 2.0])
def test_bounds_of_actions_fit_too(bound: float, tmp_path: Path) -> None:
    """A torque of 1 would be half of the largest one of a policy trained with bounds of 1."""
    simulators: Any = make_gymnasium_simulators("Pendulum-v1", 1)
    made = stored("sac", tmp_path)
    other = dataclasses.replace(made, policy=dataclasses.replace(made.policy, action_space=Box(-bound, bound, (1,))))
    with contextlib.nullcontext() if bound == 2.0 else raises_naming(ValueError, "low=-1.0", "low=-2.0"):
        check_fits(other, simulators, "Pendulum-v1")
    simulators.close()


@pytest.mark.parametrize("number", [3, 60, 61, 1000])
def test_few_images_are_kept_of_many(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "MAX_PICTURE_BYTES", 60 * 12)
    frames = play._Frames(20)
    for i in range(number):
        frames.append(np.full((2, 2, 3), i % 256, np.uint8))
        assert len(frames) <= 60
    assert frames.appended == number
    expected = range(0, number, frames.stride)
    assert [int(frame[0, 0, 0]) for frame in frames] == [i % 256 for i in expected]
    assert len(frames) >= min(number, 20)
    assert (frames.stride > 1) == (number > 60)


def test_a_file_that_cannot_be_written_is_refused_before_an_episode() -> None:
    for to in ("a.jpg", "a"):
        with raises_naming(ValueError, to, ".gif, .webp, .png or .mp4"):
            commands.run(["play", "run=nowhere", f"to={to}"])


@pytest.mark.parametrize("argument", ["episodes=0", "seed=-1", "screen=3", "fps=x"])
def test_arguments_are_checked(argument: str) -> None:
    with raises_naming(ValueError, argument.split("=")[0]):
        commands.run(["play", "run=latest", argument])
