"""Gauges in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Gauge(NamedTuple):
    """Prometheus gauge, with a sample for each set of labels.

    Attributes:
        name: name of letters, digits and underscores.
        help: help text.
        samples: pairs ``(labels, value)``; ``labels`` maps label names to label values.
    """

    name: str
    help: str
    samples: Iterable[tuple[Mapping[str, str], float]]


def as_text(gauges: Iterable[Gauge]) -> str:
    """Return the text of all gauges that have samples."""
    lines = []
    for gauge in gauges:
        samples = [f"{gauge.name}{_labels(labels)} {_number(value)}" for labels, value in gauge.samples]
        if samples:
            help_text = gauge.help.replace("\\", r"\\").replace("\n", r"\n")
            lines += [f"# HELP {gauge.name} {help_text}", f"# TYPE {gauge.name} gauge", *samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    pairs = [f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
