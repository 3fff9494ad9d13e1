"""Number of elites of a population: its default and its valid range."""

from __future__ import annotations


def elite_count(num_elites: int | None, pop_size: int) -> int:
    """Return ``num_elites``, by default half of ``pop_size``, rounded down and at least 1.

    Raises:
        ValueError: the number is less than 1 or greater than ``pop_size``.
    """
    num_elites = max(1, pop_size // 2) if num_elites is None else num_elites
    if not 1 <= num_elites <= pop_size:
        raise ValueError(f"num_elites={num_elites} is out of range for pop_size={pop_size}: choose 1 to {pop_size}.")
    return num_elites
