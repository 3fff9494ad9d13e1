"""Neuroevolution with evosax and its own rollout problems; compilation is excluded.

Settings: ``strategy`` (its name in evosax), ``pop_size``, ``initial_std``, ``hidden_sizes`` (of a policy like ours),
``library`` (gymnax or brax), ``env``, ``env_options`` (of brax), ``episode_length``, ``generations`` (in one
measurement), ``warmup_generations`` (before the first one), ``cache``.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.speed.child import read_settings, serve, timed


def make_generation(settings: dict[str, Any]) -> tuple[Any, tuple, jax.Array]:
    """Return evosax's generation: ask, evaluate, tell.

    Returns:
        The function ``(carry, key) -> (carry, None)``, its first carry, and the next key.
    """
    warnings.simplefilter("ignore")
    from evosax.algorithms import algorithms

    class Policy(nn.Module):
        num_outputs: int
        discrete: bool

        @nn.compact
        def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
            for size in settings["hidden_sizes"]:
                x = jnp.tanh(nn.Dense(size)(x))
            x = nn.Dense(self.num_outputs)(x)
            return jnp.argmax(x, axis=-1) if self.discrete else jnp.tanh(x)

    problem = make_problem(settings, Policy)
    key, policy_key, init_key, problem_key = jax.random.split(jax.random.key(0), 4)
    obs = jax.tree.map(jnp.zeros_like, observation(problem))
    solution = problem.policy.init(policy_key, obs, policy_key)
    strategy = algorithms[settings["strategy"]](population_size=settings["pop_size"], solution=solution)
    params = strategy.default_params
    if hasattr(params, "std_init"):
        params = params.replace(std_init=settings["initial_std"])

    def generation(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
        state, problem_state = carry
        ask_key, eval_key, tell_key = jax.random.split(key, 3)
        population, state = strategy.ask(ask_key, state, params)
        fitness, problem_state, _ = problem.eval(eval_key, population, problem_state)
        state, _ = strategy.tell(tell_key, population, -fitness, state, params)
        return (state, problem_state), None

    return generation, (strategy.init(init_key, solution, params), problem.init(problem_key)), key


def prepare() -> Any:
    settings = read_settings()
    if settings.get("cache"):
        jax.config.update("jax_compilation_cache_dir", settings["cache"])
    generation, carry, key = make_generation(settings)

    def run(carry: tuple, keys: jax.Array) -> tuple:
        return jax.lax.scan(generation, carry, keys)[0]

    run_many = jax.jit(run, donate_argnums=0)
    keys = jax.random.split(key, settings["generations"])
    carries = [carry]
    for _ in range(max(1, settings.get("warmup_generations", 0) // settings["generations"])):
        carries[0] = jax.block_until_ready(run_many(carries[0], keys))

    def go_on() -> None:
        carries[0] = jax.block_until_ready(run_many(carries[0], keys))

    steps = settings["generations"] * settings["pop_size"] * settings["episode_length"]
    return lambda: timed(steps, go_on)


def make_problem(settings: dict[str, Any], policy: Any) -> Any:
    """Create evosax's rollout problem, without normalization of observations."""
    if settings["library"] == "gymnax":
        import gymnax
        from evosax.problems.rl.gymnax import GymnaxProblem

        env, env_params = gymnax.make(settings["env"])
        space = env.action_space(env_params)
        discrete = hasattr(space, "n")
        network = policy(num_outputs=space.n if discrete else space.shape[0], discrete=discrete)
        return GymnaxProblem(
            settings["env"], network, episode_length=settings["episode_length"], use_normalize_obs=False
        )
    from brax import envs
    from evosax.problems.rl.brax import BraxProblem

    num_outputs = envs.get_environment(settings["env"], **settings["env_options"]).action_size
    return BraxProblem(
        settings["env"],
        policy(num_outputs=num_outputs, discrete=False),
        episode_length=settings["episode_length"],
        use_normalize_obs=False,
        env_kwargs=settings["env_options"],
    )


def observation(problem: Any) -> Any:
    """Return one observation of a problem's environment."""
    if hasattr(problem, "env_params"):
        return problem.env.reset(jax.random.key(0), problem.env_params)[0]
    return problem.env.reset(jax.random.key(0)).obs


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "brax", "gymnax", "evosax")
