"""Base class of evolution strategies with optional low-rank noise (EGGROLL, Sarkar et al. 2025,
https://arxiv.org/abs/2511.16652).
"""

from __future__ import annotations

from typing import Annotated

import jax

from evorl.ec.gaussian import GaussianStrategy
from evorl.fields import Within
from evorl.ops.low_rank import LowRankNoise, PerturbedMatrix, explicit
from evorl.types import Params, PyTreeDict


class LowRankStrategy(GaussianStrategy):
    """Strategy that, with a ``rank``, samples the noise of each matrix as a product of two thin factors.

    The noise of a matrix ``[I, O]`` is ``A B^T / sqrt(rank)``, where A ``[I, rank]`` and B ``[O, rank]`` are standard
    normal. Leaves that do not have two axes, such as biases, have independent noise. Updates are weighted sums of the
    noise of many individuals and can therefore have full rank. ``ask_factored`` returns the shared mean and the
    factors. From the first injection on, it returns dense individuals: injected solutions are not low-rank.

    Attributes:
        rank: rank of the noise of matrices; ``None`` for independent entries. Rank 1 suffices for large populations.
    """

    rank: Annotated[int | None, Within("[1, inf)")] = None

    @property
    def noise_rank(self) -> int | None:
        return self.rank

    def sample(self, state: PyTreeDict, first: jax.Array | int, count: int) -> Params:
        if self.rank is None:
            return super().sample(state, first, count)
        return explicit(self._factors(state, first, count))

    def ask_factored(self, state: PyTreeDict, first: jax.Array | int = 0, count: int | None = None) -> Params:
        if self.rank is None or "injected" in state:
            return self.ask(state, first, count)
        return self._factors(state, first, self.pop_size if count is None else count)

    def _factors(self, state: PyTreeDict, first: jax.Array | int, count: int) -> Params:
        def perturb(mean: jax.Array, scale: jax.Array, noise: jax.Array | LowRankNoise) -> jax.Array | PerturbedMatrix:
            if isinstance(noise, LowRankNoise):
                return PerturbedMatrix(mean=mean, noise=noise.scaled(scale))
            return mean + scale * noise

        return jax.tree.map(perturb, state.mean, self.scale_tree(state), self.noise(state, first, count))
