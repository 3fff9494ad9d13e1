"""Atari games in which each lost life ends an episode, as in the training of deep Q-networks."""

from __future__ import annotations

from typing import Any

_NOTHING = 0  # the no-op action, available in every game


def with_lives_as_episodes(env: Any) -> Any:
    """Wrap an ``ale_py`` game so that a lost life ends the episode; the next episode continues the same game.

    The seed of a reset has an effect only if a new game starts. Other episodes start with a no-op after the lost life.

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
            self._lives, self._game_is_over = 0, True

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
            """Start the next life, or the next game after the last life."""
            answer = None if self._game_is_over else env.step(_NOTHING)
            if answer is None or answer[2] or answer[3]:
                obs, info = env.reset(seed=seed, options=options)
            else:
                obs, info = answer[0], answer[4]
            self._lives, self._game_is_over = emulator.lives(), False
            return obs, info

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
            """Take a step; a lost life is reported as termination."""
            obs, reward, termination, truncation, info = env.step(action)
            self._game_is_over = termination or truncation
            before, self._lives = self._lives, emulator.lives()
            return obs, reward, termination or self._lives < before, truncation, info

    return LivesAsEpisodes()
