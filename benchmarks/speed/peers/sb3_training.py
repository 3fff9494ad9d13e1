"""Training with Stable-Baselines3, or with sbx, its counterpart on JAX, without evaluation; compilation is excluded.

Settings: ``library`` (stable_baselines3, the default, or sbx), ``algorithm``, ``config`` (arguments of its class),
``env`` (a name of Gymnasium), ``num_envs`` (stepped one after another in this process, as by default),
``normalize_obs``, ``steps`` (environment steps in one measurement), ``warmup_steps`` (before the first one),
``threads`` (of torch; 1 by default, which is faster for small networks), ``cache``.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from benchmarks.speed.child import read_settings, serve, timed


class Learner:
    """A training run that every measurement continues."""

    def __init__(self, settings: dict[str, Any]) -> None:
        algorithms = importlib.import_module(settings.get("library", "stable_baselines3"))
        device = {} if algorithms.__name__ == "sbx" else {"device": "cpu"}
        self.model = getattr(algorithms, settings["algorithm"])(
            "MlpPolicy", make_envs(settings), seed=0, **device, **settings["config"]
        )
        self.learn(settings["warmup_steps"])

    def learn(self, steps: int) -> int:
        """Train for at least this many further environment steps; return their number."""
        before = self.model.num_timesteps
        self.model.learn(steps, reset_num_timesteps=False)
        return self.model.num_timesteps - before


def make_envs(settings: dict[str, Any]) -> Any:
    """Create the vector environment with the wrapper that counts episodes, and optionally one that normalizes
    observations.
    """
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    envs = make_vec_env(settings["env"], settings["num_envs"], seed=0)
    return VecNormalize(envs, norm_reward=False) if settings.get("normalize_obs") else envs


def prepare() -> Any:
    settings = read_settings()
    warnings.simplefilter("ignore")  # the library's advice on its settings
    import torch

    torch.set_num_threads(settings.get("threads", 1))
    if settings.get("library") == "sbx" and settings.get("cache"):
        import jax

        jax.config.update("jax_compilation_cache_dir", settings["cache"])
    learner = Learner(settings)
    return lambda: timed(None, lambda: learner.learn(settings["steps"]))


if __name__ == "__main__":
    serve(prepare, "stable-baselines3", "torch", "sbx-rl", "jax", "gymnasium", "mujoco")
