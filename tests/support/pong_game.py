"""One game of Atari's Pong, recorded as sent over the network: ``python -m tests.support.pong_game`` records it.

ALE 0.12.1 plays ``ALE/Pong-v5`` without sticky actions, each action repeated for 4 frames, against uniformly random
actions; the game ends 1 to 21. Frames are those sent by the Gymnasium app: the field, 160 x 160, in gray, resized to
42 x 42. ``pong_game.npz`` (15 kB) contains them, so that reading the game needs no emulator.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evorl.apps.files.gymnasium_app import GymnasiumTraining
from evorl.serving.client import Image
from tests.support.apps import options_for
from tests.support.rlx_server import RlxServer, agent_answers

FILE = Path(__file__).with_suffix(".npz")
SIZE, NUM_ACTIONS, MOST_BYTES = 42, 6, 200_000
PONG: dict[str, Any] = {
    "name": "ALE/Pong-v5",
    "arguments": {"repeat_action_probability": 0.0},
    "obs_space": {"shape": [SIZE, SIZE], "dtype": "float32", "low": 0, "high": 1},
    "action_space": {"n": NUM_ACTIONS},
    "frames": {"size": SIZE, "crop": [34, 0, 160, 160], "as_image": True},
}


class PongGame(NamedTuple):
    """A game of T steps: frames ``[T + 1, 42, 42]``, uint8; actions and rewards ``[T]``."""

    frames: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray

    def image(self, number: int) -> Image:
        """Return a frame as the app sends it."""
        return Image("L", SIZE, SIZE, self.frames[number].tobytes())


@functools.cache
def pong_game() -> PongGame:
    """Load the recorded game."""
    with np.load(FILE) as columns:
        return PongGame(*(columns[name] for name in PongGame._fields))


def played_by_app(actions: np.ndarray, **changes: Any) -> PongGame:
    """Play a game with the Gymnasium app and the emulator, over the network, with these actions."""
    left = list(actions[::-1])
    with RlxServer(agent_answers(lambda _: int(left.pop() if len(left) > 1 else left[0]))) as server:
        training = GymnasiumTraining(options_for(server.port, **{**PONG, **changes}))
        training.run()
        training.env.close()
    updates = [message for message in server.messages if message["command"] == "update"]
    frames = np.rint(np.stack([update["state"] for update in updates]) * 255).astype(np.uint8)
    rewards = np.array([update["reward"] for update in updates[1:]], np.int8)
    return PongGame(frames, np.asarray(actions[: len(rewards)], np.uint8), rewards)


if __name__ == "__main__":
    game = played_by_app(np.random.default_rng(0).integers(NUM_ACTIONS, size=5000))
    np.savez_compressed(FILE, **game._asdict())
    print(f"{len(game.actions)} steps, {game.rewards.sum()} points, {FILE.stat().st_size} bytes")
