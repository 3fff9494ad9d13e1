"""Data of the benchmarks: no key occurs twice in a mapping; PyYAML would silently keep its last value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("benchmarks/**/*.yaml"))


def repeated_keys(node: yaml.Node) -> Iterator[str]:
    """Yield each repeated key with its line."""
    if isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            yield from repeated_keys(entry)
    if isinstance(node, yaml.MappingNode):
        counts = Counter(key.value for key, _ in node.value)
        for key, value in node.value:
            if counts[key.value] > 1:
                yield f"{key.value} in line {key.start_mark.line + 1}"
            yield from repeated_keys(value)


@pytest.mark.parametrize("file", FILES)
def test_no_key_occurs_twice(file: str) -> None:
    assert not list(repeated_keys(yaml.compose((ROOT / file).read_text(encoding="utf-8"), yaml.SafeLoader)))


def test_a_repeated_key_is_found() -> None:
    text = "a: [{b: 1, <<: {b: 2}, c: {d: 1, d: 2}}]\nb: 3"
    assert list(repeated_keys(yaml.compose(text, yaml.SafeLoader))) == ["d in line 1", "d in line 1"]
