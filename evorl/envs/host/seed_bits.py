"""Maps 64-bit seeds to seeds with the number of bits that an environment accepts."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDE_SEED_BITS = 64


def fold_seeds(seeds: Any, bits: int = 31) -> np.ndarray:
    """Map seeds to ``bits`` bits by XOR of both halves, uint64 ``[...]``; a seed that fits in 31 bits is unchanged.

    Seeds are the 64 bits of a random key. Most environments accept fewer bits: ``np.random.RandomState`` accepts 32,
    and a signed C integer 31.

    Args:
        seeds: integers from 0 to ``2**64 - 1``, of any shape.
        bits: 31, or 64 for environments that accept all seeds.
    """
    seeds = np.asarray(seeds, np.uint64)
    return seeds if bits >= WIDE_SEED_BITS else (seeds ^ (seeds >> np.uint64(32))) & np.uint64(2**bits - 1)
