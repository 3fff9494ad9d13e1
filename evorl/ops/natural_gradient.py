"""Natural gradients (Amari 1998; Kakade 2002) in a trust region, as of TRPO (Schulman et al. 2015,
https://arxiv.org/abs/1502.05477): products with the Fisher matrix, conjugate gradients, line searches.

Parameters, vectors and products are pytrees of one structure. Functions see the rows of one device; the products they
give are means over the devices that share the rows, so that all devices take the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.scipy.sparse.linalg import cg

from evorl.ops import collectives
from evorl.ops.trees import tree_where
from evorl.types import Params, PyTreeNode

Product = Callable[[Params], Params]


def hessian_product(fn: Callable[[Params], jax.Array], params: Params) -> Product:
    """``v -> H v`` with the Hessian of ``fn`` at ``params``, by differentiating its gradient along ``v``.

    With the mean KL divergence from the policy of ``params`` itself this is the Fisher matrix (appendix C.1 of the
    paper), exactly. It is linearised once: each product costs two passes, and no matrix is formed.
    """
    _, product = jax.linearize(jax.grad(fn), params)
    return lambda vector: collectives.mean_over_shares(product(vector))


def score_product(
    log_probs: Callable[[Params], jax.Array], params: Params, dones: jax.Array, weights: jax.Array
) -> Product:
    """``v -> F v`` with ``F = 1/N sum_i w_i g_i g_i^T``, from first derivatives only.

    The score ``g_i`` of trajectory i is the gradient of the log-probability of all its actions. N counts steps: in
    expectation the products of the scores of different steps vanish, so that ``F`` estimates the Fisher matrix of one.

    Args:
        log_probs: of the actions taken, ``[T, B]``.
        params: where the gradients are taken.
        dones: whether an episode ended with this step, ``[T, B]``. A trajectory is what the window holds of an episode.
        weights: of the steps, of mean 1 over all devices and equal within a trajectory, ``[T, B]``.
    """
    _, along = jax.linearize(log_probs, params)
    transposed = jax.linear_transpose(along, params)

    def product(vector: Params) -> Params:
        sums = weights * trajectory_sums(along(vector), dones)
        (summed,) = transposed(sums / sums.size)
        return collectives.mean_over_shares(summed)

    return product


def trajectory_sums(values: jax.Array, dones: jax.Array) -> jax.Array:
    """At every step the sum of ``values`` ``[T, B]`` over that step's trajectory, as far as the window holds it."""
    num_steps = values.shape[0]
    steps = jnp.arange(num_steps)[:, None]
    ended = dones.astype(bool)
    last = jax.lax.cummin(jnp.where(ended, steps, num_steps - 1), axis=0, reverse=True)
    first = jax.lax.cummax(jnp.where(jnp.roll(ended, 1, axis=0), steps, 0), axis=0).at[0].set(0)
    before = jnp.concatenate([jnp.zeros_like(values[:1]), jnp.cumsum(values, axis=0)])  # sums of all earlier steps
    return jnp.take_along_axis(before, last + 1, axis=0) - jnp.take_along_axis(before, first, axis=0)


def conjugate_gradient(product: Product, target: Params, num_iterations: int) -> Params:
    """``x`` with ``F x`` near ``target``, for a symmetric positive ``F`` (Hestenes & Stiefel 1952).

    It stops early when the residual is below 1e-5 of the target.
    """
    return cg(product, target, maxiter=num_iterations)[0]


class Step(NamedTuple):
    """A change of parameters.

    Attributes:
        change: what is added to the parameters.
        expected_gain: what that raises the objective by, to first order.
    """

    change: Params
    expected_gain: jax.Array


class LineSearch(NamedTuple):
    """What a line search found.

    Attributes:
        params: where it ended: the old parameters if it failed.
        fraction: of the step that was accepted; 0 if it failed.
        num_trials: how many fractions were tried.
        accepted: whether one was accepted.
    """

    params: Params
    fraction: jax.Array
    num_trials: jax.Array
    accepted: jax.Array


class TrustRegion(PyTreeNode):
    """How far a natural gradient is followed (appendix C of the paper).

    Attributes:
        max_kl: largest mean KL divergence of a step.
        damping: added to the diagonal of the Fisher matrix.
        cg_iterations: of the conjugate gradients.
        accept_by: which steps are accepted: ``gain_and_divergence``, those whose gain is positive and at least
            ``accept_ratio`` of the expected one, and whose divergence is at most ``max_kl``; ``gain``, whatever the
            divergence; or ``divergence``, at most ``max_kl_factor * max_kl``, with any gain that is not negative (the
            rule of OpenAI Baselines).
        accept_ratio: share of the expected gain that a step must keep to be accepted.
        max_kl_factor: of ``accept_by="divergence"``.
        backtrack_factor: from one fraction that is tried to the next; 0.5 halves.
        max_trials: fractions that are tried; then the search has failed.
        growth: of the first fraction of an adaptive search, when the last one accepted its first.
    """

    max_kl: float = 0.01
    damping: float = 0.1
    cg_iterations: int = 10
    accept_by: Literal["gain_and_divergence", "gain", "divergence"] = "gain_and_divergence"
    accept_ratio: float = 0.1
    max_kl_factor: float = 1.5
    backtrack_factor: float = 0.8
    max_trials: int = 10
    growth: float = 1.5

    ranges: ClassVar[Mapping[str, str]] = {
        "max_kl": "(0, inf)",
        "damping": "[0, inf)",
        "accept_ratio": "[0, 1]",
        "max_kl_factor": "(0, inf)",
        "backtrack_factor": "(0, 1)",
        "growth": "[1, inf)",
    }

    def step(self, product: Product, gradient: Params) -> Step:
        """The whole step: the longest along ``s = F^-1 g`` for which ``1/2 change^T F change <= max_kl``.

        ``change = sqrt(2 max_kl / s^T F s) s``, with the damped ``F``. A gradient of zero gives no change.
        """

        def damped(vector: Params) -> Params:
            return optax.tree.add_scale(product(vector), self.damping, vector)

        direction = conjugate_gradient(damped, gradient, self.cg_iterations)
        curvature = jnp.asarray(optax.tree.vdot(direction, damped(direction)))
        curved = curvature > 0.0
        scale = jnp.where(curved, jnp.sqrt(2.0 * self.max_kl / jnp.where(curved, curvature, 1.0)), 0.0)
        change = optax.tree.scale(scale, direction)
        return Step(change, jnp.asarray(optax.tree.vdot(gradient, change)))

    def search(
        self,
        evaluate: Callable[[Params], tuple[jax.Array, jax.Array]],
        params: Params,
        step: Step,
        first_fraction: jax.Array | float = 1.0,
    ) -> LineSearch:
        """Shorten a step until it keeps what it promised: backtracking (Armijo 1966) with a bound on the divergence.

        Fractions ``first_fraction * backtrack_factor^k`` of it are tried in turn. The first that ``accepts`` is taken.

        Args:
            evaluate: parameters -> their gain over ``params``, and their KL divergence from them; over all devices.
            params: where the search starts.
            step: the whole step.
            first_fraction: of it, in the first trial.
        """

        def moved(fraction: jax.Array) -> Params:
            return optax.tree.add_scale(params, fraction, step.change)

        def goes_on(carry: tuple[jax.Array, ...]) -> jax.Array:
            _, num_trials, accepted = carry
            return ~accepted & (num_trials < self.max_trials)

        def one_trial(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            fraction, num_trials, _ = carry
            fraction = jnp.where(num_trials == 0, fraction, fraction * self.backtrack_factor)
            gain, divergence = evaluate(moved(fraction))
            return fraction, num_trials + 1, self.accepts(gain, divergence, fraction * step.expected_gain)

        start = (jnp.asarray(first_fraction, jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros((), bool))
        fraction, num_trials, accepted = jax.lax.while_loop(goes_on, one_trial, start)
        new_params = tree_where(accepted, moved(fraction), params)
        return LineSearch(new_params, jnp.where(accepted, fraction, 0.0), num_trials, accepted)

    def accepts(self, gain: jax.Array, divergence: jax.Array, expected_gain: jax.Array) -> jax.Array:
        """Return whether a step is accepted, see ``accept_by``; never one whose gain or divergence is not finite.

        Args:
            gain: of the objective.
            divergence: from the parameters before; ``accept_by="gain"`` ignores it.
            expected_gain: of this step, to first order.
        """
        if self.accept_by == "divergence":
            return jnp.isfinite(gain) & (gain >= 0.0) & (divergence <= self.max_kl_factor * self.max_kl)
        keeps_promise = (gain > 0.0) & (gain >= self.accept_ratio * expected_gain)
        if self.accept_by == "gain":
            return keeps_promise & jnp.isfinite(gain) & jnp.isfinite(divergence)
        return keeps_promise & (divergence <= self.max_kl)

    def next_first_fraction(self, search: LineSearch) -> jax.Array:
        """Where an adaptive search begins after this one: at the fraction it accepted, times ``growth`` if that was its
        first; at the whole step if it failed.
        """
        grown = search.fraction * jnp.where(search.num_trials == 1, self.growth, 1.0)
        return jnp.where(search.accepted, grown, 1.0)
