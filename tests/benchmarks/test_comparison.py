"""Ratios, bars and units of the speed comparisons."""

from __future__ import annotations

import pytest

from benchmarks.comparison import Bar, ratio, show_quantity
from benchmarks.process_comparisons import peak_memory_sac
from benchmarks.speed_comparisons import COMPARISONS


def reading(speed: float) -> dict[str, float]:
    return {"steps_per_second": speed}


ROUNDS = [{"a": reading(10.0), "b": reading(10.0)}, {"a": reading(30.0), "b": reading(10.0)}]
MEDIANS = {"a": reading(20.0), "b": reading(10.0)}


def test_ratio_divides_medians():
    assert ratio("a", "b")(MEDIANS) == 2.0


@pytest.mark.parametrize(
    ("limits", "limit", "met"),
    [
        ({"at_least": 2.0}, ">= 2", True),
        ({"at_least": 2.1}, ">= 2.1", False),
        ({"at_most": 2.0}, "<= 2", True),
        ({"at_most": 1.9}, "<= 1.9", False),
    ],
)
def test_bar_is_judged_by_the_medians(limits, limit, met):
    judged = Bar("a / b", ratio("a", "b"), **limits).judge(MEDIANS, ROUNDS)
    assert judged == {"text": "a / b", "value": 2.0, "lowest": 1.0, "highest": 3.0, "limit": limit, "met": met}


@pytest.mark.parametrize(
    ("quantity", "value", "shown"),
    [
        ("steps_per_second", 12345.6, "12,346 steps/s"),
        ("seconds", 2.0, "2.00 s"),
        ("add_seconds", 5e-6, "5.0 us"),
        ("add_seconds", 5e-8, "50.0 ns"),
        ("peak_bytes", 1.5e9, "1,500 MB"),
    ],
)
def test_quantities_have_the_unit_of_their_name(quantity, value, shown):
    assert show_quantity(quantity, value) == shown


def test_every_bar_reads_sides_that_exist():
    numbers = {"steps_per_second": 1.0, "add_seconds": 1.0, "seconds": 1.0, "peak_bytes": 1.0, "state_bytes": 1.0}
    for name, comparison in COMPARISONS.items():
        assert name == comparison.name
        assert comparison.quantity in numbers
        for bar in comparison.bars:
            judged = bar.judge(dict.fromkeys(comparison.sides, numbers), [dict.fromkeys(comparison.sides, numbers)])
            assert (bar.at_least is None) != (bar.at_most is None), f"{name}: a bar has one limit"
            assert judged["lowest"] == judged["value"] == judged["highest"]


def test_memory_of_the_bare_process_is_without_its_own_state():
    medians = {
        "large buffer": {"peak_bytes": 700.0, "state_bytes": 200.0},
        "bare": {"peak_bytes": 510.0, "state_bytes": 10.0},
    }
    assert peak_memory_sac().bars[0].value(medians) == 1.0
