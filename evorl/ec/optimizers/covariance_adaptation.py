"""Base class of covariance matrix adaptation with a full or diagonal matrix (Hansen 2016,
https://arxiv.org/abs/1604.00772, whose equation numbers are cited).
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from typing import Annotated, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.fitness_shaping import is_flat, weights_by_rank
from evorl.ec.optimizers.elites import elite_count
from evorl.ec.safeguards import MAX_STD, MIN_STD, advance, binary_exponent
from evorl.fields import Within
from evorl.types import Key, Params, PyTreeDict

Number: TypeAlias = jax.Array | float
MAX_EXPONENT = 8  # beyond 2^8, or below 2^-9, the scale of the covariance's standard deviations moves into sigma


@dataclasses.dataclass(frozen=True)
class AdaptationConstants:
    """Default strategy parameters (table 1) for n parameters and a population size.

    The learning rate and the damping of the step size follow Hansen 2016 (eq. 55), with
    ``c_sigma = (mu_eff + 2) / (n + mu_eff + 5)``. pycma 4.5 has ``n + mu_eff + 3`` in the denominator and a larger
    damping, 3.35 instead of 1.37 at n = 30 and P = 64, so that its step size shrinks more slowly. Measured on the
    sphere function (start 0.7 in every coordinate, initial standard deviation 0.3, until an individual is below 1e-8,
    three seeds), these constants need 10,304 to 10,496 evaluations, pycma 18,240 to 19,264, and pycma with these two
    parameters 9,792 to 10,304. With these parameters and the same fitness, step sizes and paths agree to 2e-4.

    Attributes:
        weights: weights of individuals, best first, ``[P]``; the positive ones sum to 1, the others are negative or 0.
        mu_eff: variance-effective number of recombined individuals.
        c_sigma: learning rate of the evolution path of the step size.
        damping: damping of the step size.
        c_c: learning rate of the evolution path of the covariance.
        c_1: learning rate of the rank-one update.
        c_mu: learning rate of the rank-mu update.
        chi_n: expected length of a standard normal vector.
        weight_sum: sum of all weights.
        sigma_gain: coefficient of the whitened step in the evolution path of the step size (eq. 43).
        covariance_gain: coefficient of the step in the evolution path of the covariance (eq. 45).
        old_share: coefficient of the old covariance in the update, without eq. 47's correction for a stalled path.
    """

    weights: np.ndarray | jax.Array
    mu_eff: Number
    c_sigma: Number
    damping: Number
    c_c: Number
    c_1: Number
    c_mu: Number
    chi_n: Number
    weight_sum: Number
    sigma_gain: Number
    covariance_gain: Number
    old_share: Number

    @classmethod
    def default(
        cls, n: int, pop_size: int, num_elites: int, diagonal: bool, positive_weights: bool = False
    ) -> AdaptationConstants:
        """Return the constants of eq. 49 to 58 for n parameters, as numbers; the weights are a NumPy array.

        A diagonal covariance has fewer parameters. It is adapted without negative weights, and with learning rates that
        are larger by a factor of ``(n + 2) / 3`` (Ros & Hansen 2008, section 3). ``positive_weights`` sets negative
        weights to 0.
        """
        raw = math.log((pop_size + 1) / 2) - np.log(np.arange(1, pop_size + 1))
        if num_elites != pop_size // 2:
            raw = math.log(num_elites + 0.5) - np.log(np.arange(1, pop_size + 1))
        best, rest = np.where(raw > 0, raw, 0.0), np.where(raw < 0, raw, 0.0)
        mu_eff = best.sum() ** 2 / (best**2).sum()
        c_sigma = (mu_eff + 2) / (n + mu_eff + 5)
        c_1 = 2 / ((n + 1.3) ** 2 + mu_eff)
        c_mu = min(1 - c_1, 2 * (0.25 + mu_eff + 1 / mu_eff - 2) / ((n + 2) ** 2 + mu_eff))
        if diagonal:
            c_1 = min(1.0, c_1 * (n + 2) / 3)
            c_mu = min(1 - c_1, c_mu * (n + 2) / 3)
        weights = best / best.sum()
        if not (diagonal or positive_weights) and rest.any():
            rest_eff = rest.sum() ** 2 / (rest**2).sum()
            bounds = (1 + c_1 / c_mu, 1 + 2 * rest_eff / (mu_eff + 2), (1 - c_1 - c_mu) / (n * c_mu))
            weights = weights + min(bounds) * rest / -rest.sum()
        weights = weights.astype(np.float32)
        c_c = (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n)
        return cls(
            weights=weights,
            mu_eff=float(mu_eff),
            c_sigma=float(c_sigma),
            damping=float(1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + c_sigma),
            c_c=float(c_c),
            c_1=float(c_1),
            c_mu=float(c_mu),
            chi_n=math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2)),
            weight_sum=float(weights.sum()),
            sigma_gain=math.sqrt(c_sigma * (2 - c_sigma) * mu_eff),
            covariance_gain=math.sqrt(c_c * (2 - c_c) * mu_eff),
            old_share=float(1 - c_1 - c_mu * float(weights.sum())),
        )

    @classmethod
    def by_parents(cls, n: int, pop_size: int, num_parents: jax.Array, diagonal: bool) -> AdaptationConstants:
        """Return the constants for the ``num_parents`` best individuals, with positive weights only, as float32 arrays.

        ``num_parents`` is an int32 scalar, which is clipped to ``[1, pop_size]`` and may be traced.
        """
        table = [cls.default(n, pop_size, k, diagonal, positive_weights=True) for k in range(1, pop_size + 1)]
        row = jnp.clip(num_parents, 1, pop_size) - 1
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{x: jnp.asarray(np.stack([getattr(c, x) for c in table]), jnp.float32)[row] for x in names})


class CovarianceAdaptation(EvoOptimizer):
    """Strategy that samples around a mean and learns the step size sigma and a covariance from successful steps.

    Multiplying sigma by c and dividing the covariance by c^2 does not change the distribution, so the two
    scales can drift apart without limit. To prevent this, an exact power of two is moved into sigma when the ``spread``
    of the covariance leaves ``[2^-9, 2^8)``. Sigma stays in ``[MIN_STD, MAX_STD]``. Flat fitness leaves the
    distribution unchanged.

    Individuals with non-finite fitness are discarded; the others form a smaller population, see ``weights_by_rank``.
    (pycma 4.5 samples replacements instead.) With fewer recombined individuals, paths are rescaled and the covariance
    learns more slowly.

    Attributes:
        pop_size: number of individuals P, at least 4.
        num_elites: number of best individuals to recombine; ``None`` means half of the population.
        initial_std: standard deviation of the first samples.
        positive_weights: adapt the covariance with positive weights only, as in CMA-ME; sep_cmaes always does.
    """

    pop_size: int
    num_elites: int | None = None
    initial_std: Annotated[float, Within("(0, inf)")] = 0.1
    positive_weights: bool = False

    ranks_failures: ClassVar[bool] = True
    diagonal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.pop_size < 4:
            raise ValueError(f"pop_size={self.pop_size} is too small to estimate a covariance: use at least 4.")
        elite_count(self.num_elites, self.pop_size)

    def constants(self, n: int, num_parents: jax.Array | None = None) -> AdaptationConstants:
        """Return the constants for solutions of n numbers; for ``num_parents`` see ``tell``."""
        if num_parents is not None:
            return AdaptationConstants.by_parents(n, self.pop_size, num_parents, self.diagonal)
        num_elites = elite_count(self.num_elites, self.pop_size)
        return AdaptationConstants.default(n, self.pop_size, num_elites, self.diagonal, self.positive_weights)

    @abstractmethod
    def initial_covariance(self, n: int) -> PyTreeDict:
        """Return the entries of the initial state that represent the covariance, the identity ``[n, n]``."""

    @abstractmethod
    def steps(self, state: PyTreeDict, first: jax.Array | int, count: int) -> jax.Array:
        """Return zero-mean steps ``[count, n]`` from individual ``first`` on, with the covariance but without sigma."""

    @abstractmethod
    def recombine(self, state: PyTreeDict, weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Recombine this generation's steps with weights ``[P]``.

        Returns:
            The weighted mean of the steps, for positive weights, ``[n]``; the same for whitened steps, ``[n]``; and the
            weighted sum of the squares of whitened steps, for all weights, diagonal ``[n]`` or full ``[n, n]``.
        """

    @abstractmethod
    def adapt(
        self, state: PyTreeDict, old_share: jax.Array, c_1: Number, path: jax.Array, new: jax.Array
    ) -> PyTreeDict:
        """Return a state with covariance ``old_share C + c_1 path path^T + A new A^T`` (eq. 47), with ``C = A A^T``."""

    @abstractmethod
    def spread(self, state: PyTreeDict) -> jax.Array:
        """Return the root mean square of the steps' standard deviations, a scalar; sigma is not included."""

    @abstractmethod
    def condition(self, state: PyTreeDict) -> jax.Array:
        """Return the condition number of the covariance, or an estimate within a factor of n^2 for n parameters."""

    @abstractmethod
    def rescaled(self, state: PyTreeDict, exponent: jax.Array) -> PyTreeDict:
        """Return the state with steps scaled by ``2^exponent``; sigma and paths are unchanged."""

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        mean = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), solution)
        n = sum(x.size for x in jax.tree.leaves(mean))
        state = PyTreeDict(
            mean=mean,
            key=key,
            generation=jnp.zeros((), jnp.int32),
            sigma=jnp.asarray(self.initial_std, jnp.float32),
            sigma_path=jnp.zeros(n),
            covariance_path=jnp.zeros(n),
        )
        return state | self.initial_covariance(n)

    def ask(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        mean, unravel = ravel_pytree(state.mean)
        steps = self.steps(state, first, self.pop_size if count is None else count)
        return jax.vmap(unravel)(mean + state.sigma * steps)

    def tell(self, state: PyTreeDict, fitness: jax.Array, num_parents: jax.Array | None = None) -> PyTreeDict:
        """Update mean, evolution paths, step size and covariance (eq. 42 to 47); return the next state.

        Only ``generation`` changes if fitness is flat, ``num_parents`` is 0, or a number would leave float32's range.

        Args:
            state: state of this generation.
            fitness: fitness ``[P]``.
            num_parents: number of best individuals to recombine, with positive weights only, an int32 scalar.
                ``None`` recombines ``num_elites`` individuals, and also uses negative weights if enabled.
        """
        mean, unravel = ravel_pytree(state.mean)
        n = mean.shape[0]
        c = self.constants(n, num_parents)
        weights, precision = weights_by_rank(fitness, jnp.asarray(c.weights))
        step, whitened, rank_mu = self.recombine(state, weights)
        # With fewer recombined individuals, random steps are longer. Scaled by this factor, paths keep their expected
        # length under random selection, so the step size has no trend.
        gain = jnp.sqrt(precision)
        generation = state.generation + 1
        sigma_path = (1 - c.c_sigma) * state.sigma_path + c.sigma_gain * gain * whitened
        length = jnp.linalg.norm(sigma_path)
        # While the path of the step size is long, i.e. while the step size grows, the other path stalls (page 29).
        expected = jnp.sqrt(1 - (1 - c.c_sigma) ** (2.0 * generation))
        follows = (length / expected < (1.4 + 2 / (n + 1)) * c.chi_n).astype(jnp.float32)
        covariance_path = (1 - c.c_c) * state.covariance_path
        covariance_path += follows * c.covariance_gain * gain * step
        old_share = c.old_share + (1 - follows) * c.c_1 * c.c_c * (2 - c.c_c)
        old_share += (1 - precision) * c.c_mu * c.weight_sum
        new = self.adapt(state, old_share, c.c_1, covariance_path, c.c_mu * precision * rank_mu).replace(
            mean=unravel(mean + state.sigma * step),
            sigma=state.sigma * jnp.exp(jnp.minimum(1.0, c.c_sigma / c.damping * (length / c.chi_n - 1))),
            sigma_path=sigma_path,
            covariance_path=covariance_path,
            generation=generation,
        )
        holds = is_flat(fitness) if num_parents is None else is_flat(fitness) | (num_parents < 1)
        return advance(state, self._in_one_scale(new), holds)

    def _in_one_scale(self, state: PyTreeDict) -> PyTreeDict:
        """Move a very large or small ``spread`` into sigma; the distribution changes only if sigma is clipped."""
        exponent = binary_exponent(self.spread(state))
        exponent = jnp.where(jnp.abs(exponent) > MAX_EXPONENT, exponent, 0)
        sigma = jnp.ldexp(state.sigma, exponent)
        return self.rescaled(state, -exponent).replace(
            sigma=jnp.clip(sigma, MIN_STD, MAX_STD), covariance_path=jnp.ldexp(state.covariance_path, -exponent)
        )

    def solution(self, state: PyTreeDict) -> Params:
        return state.mean

    def noise_key(self, state: PyTreeDict) -> Key:
        """Return the random key of this generation's samples."""
        return jax.random.fold_in(state.key, state.generation)
