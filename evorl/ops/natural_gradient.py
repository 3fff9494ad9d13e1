"""Natural gradients (Amari 1998; Kakade 2002) in a trust region, as in TRPO (Schulman et al. 2015,
https://arxiv.org/abs/1502.05477): products with the Fisher matrix, conjugate gradients and line search.

Parameters, vectors and products are pytrees of the same structure. Functions receive the part of the batch on one
device; products are averaged over devices, so that all devices take the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.scipy.sparse.linalg import cg

from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.trees import tree_where
from evorl.types import Params, PyTreeNode

Product = Callable[[Params], Params]


def hessian_product(fn: Callable[[Params], jax.Array], params: Params) -> Product:
    """Return ``v -> H v`` for the Hessian ``H`` of ``fn`` at ``params``: the directional derivative of the gradient.

    If ``fn`` is the mean KL divergence from the policy with ``params``, H is exactly the Fisher matrix (appendix C.1 of
    the paper). The gradient is linearized once; each product costs two passes, and no matrix is formed.
    """
    _, product = jax.linearize(jax.grad(fn), params)
    return lambda vector: collectives.mean_over_shares(product(vector))


def score_product(
    log_probs: Callable[[Params], jax.Array], params: Params, dones: jax.Array, weights: jax.Array
) -> Product:
    """Return ``v -> F v`` with ``F = 1/N sum_i w_i g_i g_i^T``, from first derivatives only.

    The score ``g_i`` of trajectory i is the gradient of the log-probability of all its actions. N is the number of
    steps. Products of scores of different steps vanish in expectation, so ``F`` estimates the per-step Fisher matrix.

    Args:
        log_probs: maps parameters to the log-probabilities of the actions taken, ``[T, B]``.
        params: parameters at which to differentiate.
        dones: True where an episode ended, ``[T, B]``. A trajectory is the part of an episode within these T steps.
        weights: weights of the steps, ``[T, B]``, with mean 1 over all devices and constant within a trajectory.
    """
    _, along = jax.linearize(log_probs, params)
    transposed = jax.linear_transpose(along, params)

    def product(vector: Params) -> Params:
        sums = weights * trajectory_sums(along(vector), dones)
        (summed,) = transposed(sums / sums.size)
        return collectives.mean_over_shares(summed)

    return product


def trajectory_sums(values: jax.Array, dones: jax.Array) -> jax.Array:
    """Return, for every step, the sum of ``values`` over the step's trajectory, ``[T, B]``; see ``score_product``."""
    num_steps = values.shape[0]
    steps = jnp.arange(num_steps)[:, None]
    ended = dones.astype(bool)
    last = jax.lax.cummin(jnp.where(ended, steps, num_steps - 1), axis=0, reverse=True)
    first = jax.lax.cummax(jnp.where(jnp.roll(ended, 1, axis=0), steps, 0), axis=0).at[0].set(0)
    before = jnp.concatenate([jnp.zeros_like(values[:1]), jnp.cumsum(values, axis=0)])  # sums of all earlier steps
    return jnp.take_along_axis(before, last + 1, axis=0) - jnp.take_along_axis(before, first, axis=0)


def conjugate_gradient(product: Product, target: Params, num_iterations: int) -> Params:
    """Solve ``F x = target`` approximately, for a symmetric positive definite ``F`` (Hestenes & Stiefel 1952).

    The iteration stops early when the norm of the residual is below 1e-5 times the norm of the target.
    """
    return cg(product, target, maxiter=num_iterations)[0]


class Step(NamedTuple):
    """Change of parameters.

    Attributes:
        change: difference to add to the parameters, a tree of the same structure.
        expected_gain: first-order estimate of the increase of the objective, a scalar.
    """

    change: Params
    expected_gain: jax.Array


class LineSearch(NamedTuple):
    """Result of a line search.

    Attributes:
        params: new parameters; the old ones if the search failed.
        fraction: accepted fraction of the step; 0 if the search failed.
        num_trials: number of fractions tried.
        accepted: True if a fraction was accepted.
    """

    params: Params
    fraction: jax.Array
    num_trials: jax.Array
    accepted: jax.Array


class TrustRegion(PyTreeNode):
    """Natural gradient step within a bound on the KL divergence, and its line search (appendix C of the paper).

    Attributes:
        max_kl: largest mean KL divergence of a step.
        damping: number added to the diagonal of the Fisher matrix.
        cg_iterations: maximum number of conjugate gradient iterations.
        accept_by: acceptance criterion. ``gain_and_divergence``: the gain in the objective is positive and at least
            ``accept_ratio`` times the expected gain, and the divergence is at most ``max_kl``. ``gain``: the same
            without a bound on the divergence. ``divergence``: the divergence is at most ``max_kl_factor * max_kl``, and
            the gain is not negative (the rule of OpenAI Baselines).
        accept_ratio: smallest accepted ratio of gain to expected gain; ``divergence`` ignores it.
        max_kl_factor: multiple of max_kl that ``accept_by=divergence`` accepts; the other criteria ignore it.
        backtrack_factor: factor by which each trial shortens the step of the previous trial; 0.5 halves the step.
        max_trials: maximum number of trials; if none is accepted, the parameters do not change.
        growth: factor by which an adaptive search lengthens its first step if the last search accepted its first trial.
    """

    max_kl: Annotated[float, Within("(0, inf)")] = 0.01
    damping: Annotated[float, Within("[0, inf)")] = 0.1
    cg_iterations: int = 10
    accept_by: Literal["gain_and_divergence", "gain", "divergence"] = "gain_and_divergence"
    accept_ratio: Annotated[float, Within("[0, 1]")] = 0.1
    max_kl_factor: Annotated[float, Within("(0, inf)")] = 1.5
    backtrack_factor: Annotated[float, Within("(0, 1)")] = 0.8
    max_trials: int = 10
    growth: Annotated[float, Within("[1, inf)")] = 1.5

    def step(self, product: Product, gradient: Params) -> Step:
        """Return the full step: the longest along ``s = F^-1 g`` with ``1/2 change^T F change <= max_kl``.

        ``change = sqrt(2 max_kl / s^T F s) s``, with the damped ``F``. A zero gradient gives a zero change.
        """

        def damped(vector: Params) -> Params:
            return optax.tree.add_scale(product(vector), self.damping, vector)

        direction = conjugate_gradient(damped, gradient, self.cg_iterations)
        curvature = jnp.asarray(optax.tree.vdot(direction, damped(direction)))
        is_curved = curvature > 0.0
        scale = jnp.where(is_curved, jnp.sqrt(2.0 * self.max_kl / jnp.where(is_curved, curvature, 1.0)), 0.0)
        change = optax.tree.scale(scale, direction)
        return Step(change, jnp.asarray(optax.tree.vdot(gradient, change)))

    def search(
        self,
        evaluate: Callable[[Params], tuple[jax.Array, jax.Array]],
        params: Params,
        step: Step,
        first_fraction: jax.Array | float = 1.0,
    ) -> LineSearch:
        """Shorten a step until ``accepts`` returns True, by backtracking (Armijo 1966).

        The fractions are ``first_fraction * backtrack_factor^k`` for k = 0, 1, ..., in up to ``max_trials`` trials.

        Args:
            evaluate: maps parameters to their gain over ``params`` and KL divergence from ``params``, over all devices.
            params: parameters at the start of the search.
            step: full step.
            first_fraction: fraction of the step in the first trial.
        """

        def moved(fraction: jax.Array) -> Params:
            return optax.tree.add_scale(params, fraction, step.change)

        def should_continue(carry: tuple[jax.Array, ...]) -> jax.Array:
            _, num_trials, accepted = carry
            return ~accepted & (num_trials < self.max_trials)

        def one_trial(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            fraction, num_trials, _ = carry
            fraction = jnp.where(num_trials == 0, fraction, fraction * self.backtrack_factor)
            gain, divergence = evaluate(moved(fraction))
            return fraction, num_trials + 1, self.accepts(gain, divergence, fraction * step.expected_gain)

        start = (jnp.asarray(first_fraction, jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros((), bool))
        fraction, num_trials, accepted = jax.lax.while_loop(should_continue, one_trial, start)
        new_params = tree_where(accepted, moved(fraction), params)
        return LineSearch(new_params, jnp.where(accepted, fraction, 0.0), num_trials, accepted)

    def accepts(self, gain: jax.Array, divergence: jax.Array, expected_gain: jax.Array) -> jax.Array:
        """Return True if a step is accepted, see ``accept_by``; False if its gain or divergence is NaN.

        Args:
            gain: increase of the objective.
            divergence: KL divergence from the old parameters; with ``accept_by="gain"``, it must only be finite.
            expected_gain: first-order estimate of the gain of this step.
        """
        if self.accept_by == "divergence":
            return jnp.isfinite(gain) & (gain >= 0.0) & (divergence <= self.max_kl_factor * self.max_kl)
        gains_enough = (gain > 0.0) & (gain >= self.accept_ratio * expected_gain)
        if self.accept_by == "gain":
            return gains_enough & jnp.isfinite(gain) & jnp.isfinite(divergence)
        return gains_enough & (divergence <= self.max_kl)

    def next_first_fraction(self, search: LineSearch) -> jax.Array:
        """Return the first fraction of the next search, for adaptive searches.

        This is the accepted fraction, multiplied by ``growth`` if it was the first trial; 1 if the search failed.
        """
        grown = search.fraction * jnp.where(search.num_trials == 1, self.growth, 1.0)
        return jnp.where(search.accepted, grown, 1.0)
