"""Children are on the line to the other parent plus noise, with separate samples each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ec.operators.iso_line import IsoLineVariation

KEY = jax.random.key(0)
NUM = 2000


def _parents(seed: int) -> dict[str, jax.Array]:
    first, second = jax.random.split(jax.random.key(seed))
    return {"a": jax.random.normal(first, (NUM, 3)), "b": jax.random.normal(second, (NUM, 2, 2))}


FIRST, SECOND = _parents(1), _parents(2)


def _flat(tree: dict[str, jax.Array]) -> np.ndarray:
    return np.concatenate([np.asarray(x).reshape(NUM, -1) for x in jax.tree.leaves(tree)], axis=1)


def test_without_noise_children_lie_on_the_line() -> None:
    children = IsoLineVariation(iso_sigma=0.0, line_sigma=0.3).children(KEY, FIRST, SECOND)
    way, gone = _flat(SECOND) - _flat(FIRST), _flat(children) - _flat(FIRST)
    steps = (gone * way).sum(axis=1) / np.square(way).sum(axis=1)
    np.testing.assert_allclose(gone, steps[:, None] * way, atol=1e-5)
    assert abs(steps.std() - 0.3) < 0.02
    assert abs(steps.mean()) < 0.03


def test_without_a_line_children_lie_around_their_parent() -> None:
    children = IsoLineVariation(iso_sigma=0.2, line_sigma=0.0).children(KEY, FIRST, SECOND)
    noise = (_flat(children) - _flat(FIRST)) / 0.2
    np.testing.assert_allclose(noise.std(axis=0), 1.0, atol=0.08)
    correlations = np.corrcoef(noise, rowvar=False) - np.eye(noise.shape[1])  # over entries, within and between leaves
    assert np.abs(correlations).max() < 0.1


def test_a_child_is_that_of_its_own_key() -> None:
    variation, keys = IsoLineVariation(), jax.random.split(KEY, NUM)
    together = variation.children(keys, FIRST, SECOND)
    row = slice(7, 8)
    alone = variation.children(keys[row], *jax.tree.map(lambda x: x[row], (FIRST, SECOND)))
    jax.tree.map(lambda one, many: np.testing.assert_allclose(one, many[row], rtol=1e-6), alone, together)


def test_children_are_projected() -> None:
    """With ``unit_norm``, the weights of each unit of a child have norm 1; they point where they did without it."""
    first, second = ({"kernel": parents["b"], "bias": parents["a"]} for parents in (FIRST, SECOND))
    free = IsoLineVariation().children(KEY, first, second)
    children = IsoLineVariation(projection="unit_norm").children(KEY, first, second)
    np.testing.assert_allclose(np.linalg.norm(children["kernel"], axis=1), 1.0, rtol=1e-5)
    lengths = np.linalg.norm(free["kernel"], axis=1, keepdims=True)
    np.testing.assert_allclose(children["kernel"] * lengths, free["kernel"], atol=1e-5)
    np.testing.assert_array_equal(children["bias"], free["bias"])


def test_of_equal_parents_only_the_noise_is_left() -> None:
    children = IsoLineVariation(iso_sigma=0.0).children(KEY, FIRST, FIRST)
    jax.tree.map(np.testing.assert_array_equal, children, FIRST)
    assert jax.tree.map(jnp.shape, children) == jax.tree.map(jnp.shape, FIRST)
