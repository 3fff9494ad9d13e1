"""A recorded game of Atari's Pong is sent to a training server, as RELAAX's clients played it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from evorl.serving.client import AgentProxyException, TrainingBase, decode, encode
from tests.serving.test_training_server import Served
from tests.support.errors import raises_naming
from tests.support.optional_packages import need
from tests.support.pong_game import FILE, MOST_BYTES, NUM_ACTIONS, PONG, SIZE, played_by_app, pong_game
from tests.support.portable import CONVOLUTIONS
from tests.support.scripted_simulator import remote

SPACES = {name: PONG[name] for name in ("obs_space", "action_space")}
HISTORY, ROWS, STEPS = 4, 2, 20
DQN = {"num_envs": ROWS, "rollout_length": STEPS, "learning_starts": 40, "batch_size": 4, "replay_capacity": 1000}


class RecordedPong(TrainingBase):
    """Client that replays the recorded game, independent of the agent's actions, which it stores."""

    received: list[int]

    def episode(self, number: int) -> float:
        game = pong_game()
        self.received = [self.agent.update(None, game.image(0))]
        for step, reward in enumerate(game.rewards, 1):
            terminal = step == len(game.rewards)
            action = self.agent.update(float(reward), game.image(step), terminal)
            self.received += [] if terminal else [action]
        return float(game.rewards.sum())


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    changes = DQN | {"agent": {"network": CONVOLUTIONS}}
    served = Served(remote("dqn", SPACES, changes, history=HISTORY))
    yield served
    served.server.close()


def test_the_record_is_a_whole_game() -> None:
    game = pong_game()
    assert FILE.stat().st_size < MOST_BYTES
    assert game.frames.shape == (len(game.actions) + 1, SIZE, SIZE)
    assert (game.rewards == -1).sum() == 21  # the opponent won
    assert set(np.unique(game.actions)) == set(range(NUM_ACTIONS))


def test_a_frame_is_decoded_to_numbers_between_0_and_1() -> None:
    state = decode(encode({"state": pong_game().image(100)}))["state"]
    assert (state.shape, state.dtype) == ((SIZE, SIZE), np.float32)
    assert 0.0 <= state.min() < state.max() <= 1.0
    np.testing.assert_allclose(state, pong_game().frames[100] / 255, rtol=1e-6)


def test_the_emulator_plays_the_game_that_was_recorded() -> None:
    """Gymnasium's app sends images that are bit-identical to the recorded game."""
    need("ale_py", "atari")
    recorded, played = pong_game(), played_by_app(pong_game().actions)
    for name in recorded._fields:
        np.testing.assert_array_equal(getattr(played, name), getattr(recorded, name))


def test_a_training_server_learns_from_the_whole_game(served: Served) -> None:
    """The training steps are exactly the steps of the game, in order, with history and reward."""
    game = pong_game()
    client = RecordedPong(served.address.partition("://")[2])
    player = threading.Thread(target=client.run, daemon=True)  # blocks while two batches wait
    player.start()
    count = len(game.actions) // (ROWS * STEPS)
    metrics = served.iterate(count)
    player.join(60.0)
    assert not player.is_alive()
    assert len(client.received) == len(game.actions)
    assert set(client.received) <= set(range(NUM_ACTIONS))
    losses = [value for name, value in metrics.items() if name.endswith("loss")]
    assert losses
    assert np.isfinite(np.asarray(losses)[:, -1]).all()

    frames = game.frames.astype(np.float32) * np.float32(1 / 255)
    rows = [row for row, _ in served.rows()]
    obs, next_obs, rewards = (
        np.concatenate([getattr(row, name) for row in rows]) for name in ("obs", "next_obs", "rewards")
    )
    assert len(rewards) == count * ROWS * STEPS
    for step in range(len(rewards)):
        before = np.stack([frames[max(0, step - back)] for back in range(HISTORY - 1, -1, -1)], -1)
        np.testing.assert_array_equal(obs[step], before)
        np.testing.assert_array_equal(next_obs[step][..., -1], frames[step + 1])
    np.testing.assert_array_equal(rewards, game.rewards[: len(rewards)])


def test_another_number_of_actions_is_refused_in_words(served: Served) -> None:
    client = RecordedPong(served.address.partition("://")[2], action_space={"n": 3})
    with raises_naming(AgentProxyException, "action_space", 6, 3):
        client.run()


def test_the_app_ends_with_a_message_where_its_file_has_another_number_of_actions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    need("ale_py", "atari")
    with pytest.raises(SystemExit) as ended:
        played_by_app(pong_game().actions, action_space={"n": 3})
    assert ended.value.code == 1
    assert 'is {"n": 3}, but ALE/Pong-v5 has {"n": 6}' in capsys.readouterr().err
