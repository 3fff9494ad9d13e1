"""Atari games in which each lost life ends an episode, as in the training of deep Q-networks."""

from __future__ import annotations

from typing import Any

_NOTHING = 0  # the no-op action, available in every game


def with_lives_as_episodes(env: Any) -> Any:
    """Wrap an ``ale_py`` game so that a lost life ends the episode; the next episode continues the same game.

    Episodes after a lost life start with a no-op, and ignore the seed of the reset. A reset during an episode, or after
    the end of a game, starts a new game.

    Source: Mnih et al. 2015, https://doi.org/10.1038/nature14236, Methods, training details.

    Args:
        env: a Gymnasium environment, including its frame-skipping wrappers.

    Raises:
        ValueError: the environment has no lives.
    """
    import gymnasium

    emulator: Any = getattr(env.unwrapped, "ale", None)
    if not hasattr(emulator, "lives"):
        raise ValueError(f"env.terminal_on_life_loss=true applies only to Atari games, not to {env}: remove it.")

    class LivesAsEpisodes(gymnasium.Wrapper):
        """Ends an episode when a life is lost."""

        def __init__(self) -> None:
            super().__init__(env)
            self._lives, self._game_continues = 0, False

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
            """Start the next life after a lost one, otherwise the next game."""
            answer = env.step(_NOTHING) if self._game_continues else None
            if answer is None or answer[2] or answer[3]:
                obs, info = env.reset(seed=seed, options=options)
            else:
                obs, info = answer[0], answer[4]
            self._lives, self._game_continues = emulator.lives(), False
            return obs, info

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
            """Take a step; a lost life is reported as termination."""
            obs, reward, termination, truncation, info = env.step(action)
            before, self._lives = self._lives, emulator.lives()
            is_lost = self._lives < before
            self._game_continues = is_lost and not (termination or truncation)
            return obs, reward, termination or is_lost, truncation, info

    return LivesAsEpisodes()
