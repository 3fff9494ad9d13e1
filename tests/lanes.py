"""The two lanes of the suite: the tests that run only in the long one, with the reason of each group.

``make test`` runs the short lane: at least one test of everything that is essential in each part. ``make test-long``
runs the rest. A pattern is a regular expression that matches the beginning of a test's id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONG: dict[str, tuple[str, ...]] = {}

_PATTERNS = [(re.compile(pattern), reason) for reason, patterns in LONG.items() for pattern in patterns]


def reason_for_long(test_id: str) -> str | None:
    """Return why a test runs only in the long lane; ``None`` if it is in the short one."""
    return next((reason for pattern, reason in _PATTERNS if pattern.match(test_id)), None)


def unused_patterns(test_ids: Iterable[str]) -> list[str]:
    """Return the patterns that match none of the tests: renamed or removed ones."""
    ids = list(test_ids)
    return [pattern.pattern for pattern, _ in _PATTERNS if not any(map(pattern.match, ids))]
