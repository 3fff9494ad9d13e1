"""``python -m benchmarks [names...]``: the speed comparisons; ``python -m benchmarks.learning`` is apart."""

from __future__ import annotations

import sys

from benchmarks.speed import main

if __name__ == "__main__":
    sys.exit(main())
