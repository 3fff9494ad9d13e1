"""Environments of Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import pytest

from evorl.apps.files.app_options import Options
from evorl.apps.files.gymnasium_app import GymnasiumTraining, make_env, seen, spaces_of
from tests.support.apps import options_for
from tests.support.optional_packages import need
from tests.support.rlx_server import BanditServer

CARTPOLE = {"name": "CartPole-v1", "obs_space": {"shape": [4], "dtype": "float32"}, "action_space": {"n": 2}}
PENDULUM = {"name": "Pendulum-v1", "obs_space": {"shape": [3]}, "action_space": {"shape": [1], "low": -2, "high": 2}}
PONG = {
    "name": "ALE/Pong-v5",
    "obs_space": {"shape": [42, 42, 1], "dtype": "uint8", "low": 0, "high": 255},
    "action_space": {"n": 6},
    "frames": {"size": 42, "crop": [34, 0, 160, 160]},
    "limit": 5,
}


def play(server: BanditServer, episodes: int = 2, **environment: Any) -> list[dict[str, Any]]:
    training = GymnasiumTraining(options_for(server.port, episodes, **environment))
    training.run()
    training.env.close()
    return [message for message in server.messages if message["command"] == "update"]


def test_two_episodes_of_cartpole(server: BanditServer) -> None:
    server.action = 1
    updates = play(server, **CARTPOLE)
    ends = [number for number, update in enumerate(updates) if update["terminal"]]
    assert len(ends) == 2
    assert updates[0]["reward"] is None
    assert updates[ends[0] + 1]["reward"] is None
    assert server.metrics("episode_reward") == [ends[0], ends[1] - ends[0] - 1]
    assert not updates[-1]["truncated"]
    first, second = (np.asarray(updates[number]["state"]) for number in (0, ends[0] + 1))
    assert first.dtype == np.float32
    assert not np.allclose(first, second)


def test_a_limit_of_steps_truncates_and_steps_may_be_held(server: BanditServer) -> None:
    server.action = [0.5]
    updates = play(server, episodes=1, limit=12, frame_skip=4, no_op_max=0, **PENDULUM)
    assert len(updates) == 4
    assert (updates[-1]["terminal"], updates[-1]["truncated"]) == (True, True)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=5),
        spaces.Box(-2.0, 2.0, (2,)),
        spaces.Box(1.0, 2.0, (2, 1)),
        spaces.MultiDiscrete([2, 3], start=[1, 0]),
        spaces.MultiBinary(3),
    ],
    ids=repr,
)
def test_no_op_starts_take_actions_of_the_space(
    server: BanditServer, monkeypatch: pytest.MonkeyPatch, space: spaces.Space
) -> None:
    taken: list[Any] = []
    game = make_env(options_for(1, name="CartPole-v1"))
    obs, _ = game.reset(seed=0)
    game.action_space, game.step = space, lambda action: taken.append(action) or (obs, 0.0, True, False, {})
    module = "evorl.apps.files.gymnasium_app"
    monkeypatch.setattr(f"{module}.make_env", lambda options: game)
    monkeypatch.setattr(f"{module}.check_spaces", lambda *arguments: None)
    server.action = np.zeros(space.shape).tolist()
    play(server, episodes=8, no_op_max=3, **CARTPOLE)
    assert len(taken) > 8
    assert all(space.contains(action) for action in taken)


@pytest.mark.parametrize("limit", [150, 250, 2.5e2])  # YAML reads 1e4 as a float
def test_a_limit_replaces_the_environments_own(limit: float) -> None:
    env = make_env(options_for(1, name="MountainCar-v0", limit=limit))
    env.reset(seed=0)
    assert next(n for n in range(1, 300) if env.step(1)[3]) == limit
    env.close()


def test_simulators_write_separate_videos(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(gymnasium.wrappers, "RecordVideo", lambda env, *where, **names: written.append((where, names)))
    for number in (0, 1):
        make_env(Options({"environment": {"name": "CartPole-v1", "record": "videos"}, "number": number}))
    assert written[0] != written[1]


def test_other_spaces_than_the_file_says_end_it_with_what_to_write(
    server: BanditServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        play(server, **{**CARTPOLE, "action_space": {"n": 3}})
    assert ended.value.code == 1
    assert (
        'Error: environment.action_space in app.yaml is {"n": 3}, but CartPole-v1 has {"n": 2}: change app.yaml'
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(("name", "message"), [("CartPole-v99", "CartPole"), ("NoSuch-v0", "doesn't exist")])
def test_no_such_environment(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_env(options_for(1, name=name))
    assert message in capsys.readouterr().err


def test_spaces_as_the_file_has_them() -> None:
    env = make_env(options_for(1, name="Pendulum-v1"))
    spaces = spaces_of(env, None)
    assert spaces["action_space"] == {"shape": [1], "dtype": "float32", "low": -2.0, "high": 2.0}
    assert spaces["obs_space"]["high"] == [1.0, 1.0, 8.0]
    env.close()
    cartpole = make_env(options_for(1, name="CartPole-v1"))
    assert spaces_of(cartpole, None) == {"obs_space": {"shape": [4], "dtype": "float32"}, "action_space": {"n": 2}}
    cartpole.close()


def test_pong_is_seen_small_and_in_grey(server: BanditServer) -> None:
    need("ale_py", "atari")
    server.action = 0
    updates = play(server, episodes=1, **PONG)
    state = np.asarray(updates[0]["state"])
    assert (state.shape, state.dtype) == ((42, 42, 1), np.uint8)
    assert state.max() > state.min()
    assert updates[-1]["truncated"]


def test_what_is_no_picture_is_left_as_it_is() -> None:
    assert seen([1, 2], None) == [1, 2]
