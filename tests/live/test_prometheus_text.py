"""Prometheus text, read by its own parser."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from evorl.live.prometheus_text import Gauge, as_text

LABELS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(LABELS, st.floats(allow_nan=False)), max_size=5), LABELS)
def test_what_is_written_is_read(samples: list[tuple[str, float]], help_text: str) -> None:
    # Carriage returns end no line in the format, but do so for the parser's splitlines.
    samples = [(label.replace("\r", ""), value) for label, value in samples]
    help_text = help_text.replace("\r", "").strip()
    text = as_text([Gauge("evorl_a", help_text, [({"run": label, "metric": "x"}, value) for label, value in samples])])
    families = list(text_string_to_metric_families(text))
    assert [family.type for family in families] == ["gauge"] * bool(samples)
    read = [(sample.labels["run"], sample.value) for family in families for sample in family.samples]
    assert read == samples


def test_the_text() -> None:
    gauges = [
        Gauge("a", "One\nline.", [({}, 3), ({"run": 'a"b\\c\nd'}, 0.1)]),
        Gauge("b", "Odd.", [({}, math.inf), ({}, -math.inf), ({}, math.nan)]),
        Gauge("c", "Nothing.", []),
    ]
    assert as_text(gauges) == (
        '# HELP a One\\nline.\n# TYPE a gauge\na 3\na{run="a\\"b\\\\c\\nd"} 0.1\n'
        "# HELP b Odd.\n# TYPE b gauge\nb +Inf\nb -Inf\nb NaN\n"
    )
    assert as_text([]) == ""
