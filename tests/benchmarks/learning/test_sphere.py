"""The sphere function with linear projections, against its formulas, and as the learning tasks use it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.learning.sphere import BOUND, CENTER, Sphere, no_features
from benchmarks.learning.task import TASKS
from evorl.assembly import workflow_from_config
from evorl.cli.composition import compose_config

NAMES = ("map_elites_sphere", "cma_me_sphere", "cma_mae_sphere")


@pytest.mark.parametrize("n", [2, 20, 100])
def test_rewards_and_measures(n: int) -> None:
    env = Sphere(n)
    for x in (np.zeros(n), np.full(n, CENTER), np.full(n, -BOUND), np.linspace(-12.0, 9.0, n)):
        end = env.step(env.reset(jax.random.key(0)), jnp.asarray(x, jnp.float32))
        worst = (BOUND * 1.4) ** 2 * n
        assert float(end.reward) == pytest.approx(100 - 100 * ((x - 0.4 * BOUND) ** 2).sum() / worst, abs=1e-3)
        clipped = np.where((x < -BOUND) | (x > BOUND), BOUND / np.where(x == 0, 1.0, x), x)
        halves = [clipped[: n // 2].sum(), clipped[n // 2 :].sum()]
        np.testing.assert_allclose(end.info.metrics.measures, halves, rtol=1e-4, atol=1e-4)
        assert bool(end.done)
        assert bool(end.info.termination)


def test_features_are_none() -> None:
    assert no_features(jnp.ones((3, 5))).shape == (3, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_has_the_settings_of_the_table(name: str) -> None:
    task = TASKS[name]
    workflow = workflow_from_config(compose_config([*task.overrides, "devices=1"]))
    assert workflow.pop_size == 540
    assert task.published.timesteps == 540 * 10_000 == int(workflow.total_timesteps)
    assert workflow.archive.num_cells == 10_000
    assert (workflow.archive.low, workflow.archive.high) == ((-256.0, -256.0), (256.0, 256.0))
    params = jax.eval_shape(workflow.setup, jax.random.key(0)).agent_state.params.policy
    assert sum(x.size for x in jax.tree.leaves(params)) == 100
    emitter = workflow.emitter
    if name == "map_elites_sphere":
        assert emitter is None
        assert (workflow.variation.iso_sigma, workflow.variation.line_sigma) == (0.5, 0.2)
        return
    assert (emitter.num_emitters, emitter.initial_std, emitter.negative_weights) == (15, 0.5, False)
    assert emitter.search(540).pop_size == 36
    rules = (emitter.ranking, emitter.selection, emitter.restart)
    thresholds = (workflow.archive.threshold_min, workflow.archive.threshold_rate)
    if name == "cma_me_sphere":
        assert rules == ("2imp", "filter", "no_improvement")
        assert thresholds[0] is None
    else:
        assert rules == ("imp", "mu", "basic")
        assert thresholds == (0.0, 0.01)
