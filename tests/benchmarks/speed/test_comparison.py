"""Ratios, bars and units of the speed comparisons."""

from __future__ import annotations

import importlib.util

import pytest
from omegaconf import OmegaConf

from benchmarks.speed.comparison import (
    COMPARISONS,
    Bar,
    Verdict,
    medians_of,
    read_comparisons,
    readings_by_side,
    show_quantity,
)
from evorl.assembly import workflow_from_config
from tests.support.errors import raises_naming


def rounds(*speeds: float) -> list[dict[str, float]]:
    return [{"steps_per_second": speed} for speed in speeds]


READINGS = {"a": rounds(10.0, 30.0, 20.0), "b": rounds(10.0, 10.0, 10.0)}


def bar(formula: str, *sides: str, **limits: float) -> Bar:
    return Bar(formula, sides, "steps_per_second", " / ".join(sides), **limits)


@pytest.mark.parametrize(
    ("limits", "limit", "met"),
    [
        ({"at_least": 2.0}, ">= 2", True),
        ({"at_least": 2.1}, ">= 2.1", False),
        ({"at_most": 2.0}, "<= 2", True),
        ({"at_most": 1.9}, "<= 1.9", False),
        ({}, "-", None),
    ],
)
def test_bar_is_judged_by_the_medians(limits, limit, met):
    ratio = bar("ratio", "a", "b", **limits)
    assert ratio.limit == limit
    assert ratio.judge(READINGS) == Verdict(value=2.0, lowest=1.0, highest=3.0, met=met)


@pytest.mark.parametrize(
    ("made", "expected"),
    [(bar("difference", "a", "b"), 10.0), (bar("value", "a"), 20.0), (bar("value", "a", unit=10.0), 2.0)],
)
def test_other_numbers(made, expected):
    assert made.judge(READINGS).value == expected


def test_ratio_has_a_counterpart_by_processor_time():
    by_cpu = bar("ratio", "a", "b", at_least=2.0).per_cpu_second
    assert by_cpu is not None
    assert (by_cpu.quantity, by_cpu.limit) == ("steps_per_cpu_second", "-")
    assert not by_cpu.is_measured(READINGS)
    assert by_cpu.is_measured({side: [{"steps_per_cpu_second": 1.0}] for side in "ab"})
    assert by_cpu.per_cpu_second is None
    assert bar("value", "a").per_cpu_second is None


def test_bar_of_a_side_that_was_not_measured():
    assert bar("ratio", "a", "b").is_measured(READINGS)
    assert not bar("ratio", "a", "c").is_measured(READINGS)


def test_recorded_rows_are_readings_by_side():
    rows = [{"side": "a", "round": i, **reading} for i, reading in enumerate(READINGS["a"])]
    assert readings_by_side(rows) == {"a": READINGS["a"]}
    assert medians_of(READINGS) == {"a": {"steps_per_second": 20.0}, "b": {"steps_per_second": 10.0}}


@pytest.mark.parametrize(
    ("quantity", "value", "shown"),
    [
        ("steps_per_second", 12345.6, "12,346 steps/s"),
        ("steps_per_cpu_second", 12345.6, "12,346 steps/CPU s"),
        ("seconds", 2.0, "2.00 s"),
        ("cpu_seconds", 2.0, "2.00 CPU s"),
        ("add_seconds", 5e-6, "5.0 us"),
        ("add_seconds", 5e-8, "50.0 ns"),
        ("peak_bytes", 1.5e9, "1,500 MB"),
    ],
)
def test_quantities_have_the_unit_of_their_name(quantity, value, shown):
    assert show_quantity(quantity, value) == shown


def test_comparisons_can_be_measured_and_judged():
    numbers = {"steps_per_second": 1.0, "steps_per_cpu_second": 1.0, "seconds": 1.0, "cpu_seconds": 1.0}
    numbers |= {"add_seconds": 1.0, "peak_bytes": 1.0, "state_bytes": 1.0, "added_bytes": 1.0, "late_bytes": 1.0}
    numbers |= {"message_cpu_seconds": 1.0, "policy_cpu_seconds": 1.0, "answer_seconds": 1.0, "mean_batch": 1.0}
    abuse = "most_added_bytes lost_answers lost_afterwards clients_left left_errors honest_answers frames connections"
    numbers |= dict.fromkeys(abuse.split(), 1.0)
    for name, comparison in COMPARISONS.items():
        assert comparison.quantity in numbers, name
        assert any(bar.limit != "-" for bar in comparison.bars), f"{name}: nothing is asked"
        for side in comparison.sides.values():
            assert importlib.util.find_spec(side.module), f"{name}: there is no module {side.module}"
        for made in comparison.bars:
            assert made.at_least is None or made.at_most is None, f"{name}: a bar has one limit"
            judged = made.judge({side: [numbers] for side in comparison.sides})
            assert judged.lowest == judged.value == judged.highest


def test_trainings_that_are_measured_can_be_built():
    built = []
    for comparison in COMPARISONS.values():
        for side in comparison.sides.values():
            config = side.settings.get("config", {})
            # mjx differs only in its backend, and takes seconds to import.
            if (
                side.driver in ("training", "wire_training")
                and config not in built
                and config["env"].get("backend") != "mjx"
            ):
                workflow_from_config(OmegaConf.create({**config, "eval_interval": 0}))
                built.append(config)
    assert len(built) > 10


def test_one_seed_of_ppo_is_asked_for_by_wall_and_by_processor_time():
    quantities = {made.quantity for made in COMPARISONS["ppo_cartpole_1seed"].bars if made.at_least}
    assert quantities == {"steps_per_second", "steps_per_cpu_second"}


def test_a_server_is_measured_by_what_it_cannot_do_without():
    readings = {
        "server": [{"message_cpu_seconds": 30.0, "policy_cpu_seconds": 5.0}],
        "echo": [{"message_cpu_seconds": 15.0}],
    }
    made = Bar("over_echo_and_policy", ("server", "echo"), "message_cpu_seconds", "", at_most=1.3)
    assert made.judge(readings) == Verdict(value=1.5, lowest=1.5, highest=1.5, met=False)


def test_memory_of_the_bare_process_is_without_its_own_state():
    readings = {
        "large buffer": [{"peak_bytes": 700.0, "state_bytes": 200.0}],
        "bare": [{"peak_bytes": 510.0, "state_bytes": 10.0}],
    }
    (made,) = COMPARISONS["peak_memory_sac"].bars
    assert made.judge(readings).value == 1.0


@pytest.mark.parametrize(
    ("sides", "bar", "parts"),
    [
        ("{a: {driver: training}}", "{ratio: [a, b]}", ("'b'", "['a']")),
        ("{a: {driver: trainng}}", "{value: a}", ("'trainng'", "driver")),
        ("{a: {driver: training}}", "{at_least: 1}", ("a bar needs",)),
    ],
)
def test_mistakes_in_the_file_are_told(tmp_path, sides, bar, parts):
    path = tmp_path / "comparisons.yaml"
    path.write_text(f"comparisons: {{c: {{title: t, sides: {sides}, bars: [{bar}]}}}}", encoding="utf-8")
    with raises_naming(ValueError, *parts):
        read_comparisons(path)
