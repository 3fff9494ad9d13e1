"""Flags of XLA, the compiler under JAX, for the whole process: XLA reads them once, when it first compiles."""

from __future__ import annotations

import os
from collections.abc import Mapping

# On CPUs, XLA fuses products, reductions and elementwise operations into kernels of YNNPACK. In jaxlib 0.10.2 and
# 0.11.2, such kernels read uninitialized memory: conjugate gradients over four batched policies returned other numbers
# in each run, and NaN. Kernels of single products are correct. CMA-ES needs these kernels, because a row of
# ``x @ A.T`` then does not depend on the number of rows. Eigen's kernels split sums among threads if rows are few
# (tests/test_xla_flags.py).
CORRECT_RESULTS = {"--xla_cpu_experimental_ynn_fusion_type": "individual_dot"}


def add_xla_flags(flags: Mapping[str, str]) -> None:
    """Add ``flags`` (name to value) to the environment variable ``XLA_FLAGS``, except flags that the user has set."""
    present = os.environ.get("XLA_FLAGS", "")
    added = [f"{name}={value}" for name, value in flags.items() if name not in present]
    os.environ["XLA_FLAGS"] = " ".join([present, *added]).strip()
