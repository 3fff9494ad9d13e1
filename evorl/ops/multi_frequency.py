"""Selection of multiple-frequencies population-based training (MF-PBT, Doulazmi et al. 2025,
https://arxiv.org/abs/2506.03225).

The members form sub-populations, which replace their members at different intervals. With a long interval,
hyperparameters that only pay off later are not discarded. Good members migrate between sub-populations.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.ops.selection import Inheritance

QUARTERS = 4  # of a sub-population: winners, unchanged members, hosts of migrants, and losers


def check_sub_populations(num_members: int, frequencies: tuple[int, ...], explore: str = "perturb") -> None:
    """Raise ``ValueError`` unless M >= 2 frequencies are >= 1, 4 M divides ``num_members``, and explore is perturb."""
    if explore != "perturb":
        raise ValueError(f"exploit=multi_frequency needs explore=perturb, got {explore}, which compares random pairs.")
    if len(frequencies) < 2 or min(frequencies) < 1:
        raise ValueError(
            f"frequencies={list(frequencies)}: exploit=multi_frequency needs at least two numbers of generations, each "
            "at least 1, such as [1, 10, 25, 50]."
        )
    multiple = QUARTERS * len(frequencies)
    if num_members % multiple:
        raise ValueError(
            f"pop_size={num_members} cannot be divided into {len(frequencies)} sub-populations of {QUARTERS} quarters: "
            f"choose a multiple of {multiple}, or another number of frequencies."
        )


def multi_frequency_inheritance(
    scores: jax.Array, generation: jax.Array | int, frequencies: tuple[int, ...]
) -> Inheritance:
    """Return the parents of every member after a generation, according to the scores of this generation.

    Members ``i P / M .. (i + 1) P / M - 1`` are sub-population i, which evolves after every ``frequencies[i]``
    generations. Its worst quarter copies states and hyperparameters of its best quarter, rank by rank, and explores.
    Each member of its third quarter, best first, gets the state of a migrant: the best member of other sub-populations
    that has not yet migrated to i. The member's hyperparameters are copied from the migrant if the migrant evolves less
    often, from the best member of i if the migrant evolves more often, else unchanged. The member does not explore.

    Args:
        scores: ``[P]``; ``-inf`` for diverged members, NaN for unknown scores, whose members keep their state. A member
            is replaced only by a member with a higher score.
        generation: index of the generation, from 0.
        frequencies: number of generations between two selections, for each of the M sub-populations; checked by
            ``check_sub_populations``.
    """
    members, ranked = jnp.arange(len(scores)), jnp.where(jnp.isnan(scores), -jnp.inf, scores)
    size = len(scores) // len(frequencies)
    quarter, groups, intervals = size // QUARTERS, members // size, jnp.asarray(frequencies)
    evolves = ((generation + 1) % intervals == 0)[:, None]  # [M, 1]
    order = jnp.argsort(ranked, descending=True)
    local = jnp.argsort(ranked.reshape(-1, size), axis=1, descending=True) + members[::size, None]  # [M, P / M]
    winners, bracket, losers = local[:, :quarter], local[:, 2 * quarter : 3 * quarter], local[:, 3 * quarter :]
    loses = evolves & (scores[losers] < scores[winners])

    def migrants_to(group: jax.Array, hosts: jax.Array) -> jax.Array:
        candidates = order[jnp.argsort(groups[order] == group)]  # best first; members of the group come last

        def visit(num_taken: jax.Array, host: jax.Array) -> tuple[jax.Array, jax.Array]:
            candidate = candidates[num_taken]
            yields = scores[host] < scores[candidate]
            return num_taken + yields, jnp.where(yields, candidate, host)

        return jax.lax.scan(visit, jnp.zeros((), jnp.int32), hosts)[1]

    migrants = jnp.where(evolves, jax.vmap(migrants_to)(jnp.arange(len(frequencies)), bracket), bracket)
    native, foreign = intervals[:, None], intervals[groups[migrants]]
    settings = jnp.where(native < foreign, migrants, jnp.where(native > foreign, local[:, :1], bracket))
    copied = members.at[losers].set(jnp.where(loses, winners, losers))
    return Inheritance(
        states=copied.at[bracket].set(migrants),
        hyper_parameters=copied.at[bracket].set(jnp.where(migrants == bracket, bracket, settings)),
        explores=jnp.zeros(len(scores), bool).at[losers].set(loses),
    )
