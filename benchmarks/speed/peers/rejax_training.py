"""Training with rejax, without evaluation; compilation is excluded.

rejax 0.1.3 needs gymnax < 1 (0.0.9 here); its environments with physics are brax's.
Settings: ``algorithm``, ``config`` (arguments of its ``create``), ``steps`` (environment steps of each seed in one
measurement, and in the warm-up before them), ``num_seeds``, ``cache``.
"""

from __future__ import annotations

import warnings
from typing import Any

from benchmarks.speed.child import read_settings, serve, timed


def prepare() -> Any:
    settings = read_settings()
    warnings.simplefilter("ignore")
    import jax
    import rejax

    if settings.get("cache"):
        jax.config.update("jax_compilation_cache_dir", settings["cache"])
    seeds, steps = settings.get("num_seeds", 1), settings["steps"]
    algorithm = rejax.get_algo(settings["algorithm"]).create(
        **settings["config"], total_timesteps=steps, eval_freq=steps, skip_initial_evaluation=True
    )
    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: ())

    def over_seeds(fn: Any) -> Any:
        return jax.jit(fn if seeds == 1 else jax.vmap(fn))

    keys = jax.random.PRNGKey(0) if seeds == 1 else jax.random.split(jax.random.PRNGKey(0), seeds)
    train = over_seeds(lambda state: algorithm.train(train_state=state)[0])
    state = [jax.block_until_ready(train(over_seeds(algorithm.init_state)(keys)))]

    def go_on() -> None:
        state[0] = jax.block_until_ready(train(state[0]))

    return lambda: timed(steps * seeds, go_on)


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "brax", "gymnax", "rejax")
