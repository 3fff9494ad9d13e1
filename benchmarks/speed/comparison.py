"""Comparisons: sides that are measured in turn, and limits for their medians."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

COMPARISON_FILE = Path(__file__).with_name("comparisons.yaml")
Reading = Mapping[str, Any]
Readings = Mapping[str, Sequence[Reading]]  # per side, one per round
Medians = Mapping[str, Reading]

DRIVERS = {  # module that a child process runs with python -m
    **{name: f"benchmarks.speed.drivers.{name}" for name in ("training", "floor", "replay_adding", "process")},
    **{
        name: f"benchmarks.speed.drivers.{name}"
        for name in (
            "acquiring",
            "host_collecting",
            "serving",
            "echoing",
            "serving_memory",
            "serving_abuse",
            "wire_training",
        )
    },
    "grpc": "benchmarks.speed.peers.grpc_serving",
    "rejax": "benchmarks.speed.peers.rejax_training",
    "evosax": "benchmarks.speed.peers.evosax_evolution",
    "brax": "benchmarks.speed.peers.brax_training",
    "sb3": "benchmarks.speed.peers.sb3_training",
    "library": "benchmarks.speed.peers.library_stepping",
    "mjx": "benchmarks.speed.peers.mjx_stepping",
}
OWN_PYTHON = {  # peers that need further packages; each has a separate virtual environment
    "rejax": "rejax 0.1.3 and gymnax 0.0.9",
    "grpc": "ours and grpcio 1.85.1",
    "sb3": "stable-baselines3 2.9.2, sbx-rl 0.28.0, gymnasium[mujoco] 1.4.0 and imageio",
}
CPU_QUANTITIES = {  # quantities by the processor time of all threads, which depends less on other load
    "steps_per_second": "steps_per_cpu_second",
    "seconds": "cpu_seconds",
    "add_seconds": "add_cpu_seconds",
}


@dataclasses.dataclass(frozen=True)
class Side:
    """One configuration, measured by a child process.

    Attributes:
        driver: measurement program, a name of ``DRIVERS``.
        settings: its settings, JSON.
    """

    driver: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def module(self) -> str:
        """Module that the child runs with ``python -m``."""
        return DRIVERS.get(self.driver, self.driver)

    @property
    def python(self) -> str:
        """Name of the interpreter: ``"evorl"``, or a peer's name."""
        return self.driver if self.driver in OWN_PYTHON else "evorl"


def ratio(medians: Medians, quantity: str, numerator: str, denominator: str) -> float:
    """Return the quotient of two sides."""
    return medians[numerator][quantity] / medians[denominator][quantity]


def difference(medians: Medians, quantity: str, larger: str, smaller: str) -> float:
    """Return the difference between two sides."""
    return medians[larger][quantity] - medians[smaller][quantity]


def value(medians: Medians, quantity: str, side: str) -> float:
    """Return the quantity of one side."""
    return medians[side][quantity]


def per_state(medians: Medians, quantity: str, large: str, bare: str) -> float:
    """Return the memory of the large side minus that of a stateless process, in units of the large side's state."""
    added = medians[large][quantity] - medians[bare][quantity]
    return (added + medians[bare]["state_bytes"]) / medians[large]["state_bytes"]


def over_echo_and_policy(medians: Medians, quantity: str, server: str, echo: str) -> float:
    """Return the cost of a server relative to its minimum: bare messages and its share of the policy."""
    return medians[server][quantity] / (medians[echo][quantity] + medians[server]["policy_cpu_seconds"])


_FORMULAS = (ratio, difference, value, per_state, over_echo_and_policy)
FORMULAS: Mapping[str, Callable[..., float]] = {f.__name__: f for f in _FORMULAS}


@dataclasses.dataclass(frozen=True)
class Bar:
    """A number computed from the medians of the sides, and its limit.

    Attributes:
        formula: formula of the number, a name of ``FORMULAS``.
        sides: arguments of the formula.
        quantity: the entry of the readings.
        text: description of the number.
        unit: divisor of the displayed number.
        at_least: lower limit; or
        at_most: upper limit. Without a limit the number is only displayed.
    """

    formula: str
    sides: tuple[str, ...]
    quantity: str
    text: str
    unit: float = 1.0
    at_least: float | None = None
    at_most: float | None = None

    @property
    def limit(self) -> str:
        """Description of the requirement."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "-" if self.at_most is None else f"<= {self.at_most:g}"

    def value(self, medians: Medians) -> float:
        """Return the number for the given medians."""
        return FORMULAS[self.formula](medians, self.quantity, *self.sides) / self.unit

    def is_measured(self, readings: Readings) -> bool:
        """Return True if the readings contain all arguments of the number."""
        return all(side in readings and self.quantity in readings[side][0] for side in self.sides)

    def judge(self, readings: Readings) -> Verdict:
        """Return the number for the medians, its range over the rounds, and whether the bar is met."""
        value = self.value(medians_of(readings))
        in_rounds = [self.value(dict(zip(readings, round_))) for round_ in zip(*readings.values())]
        met = None
        if self.at_least is not None or self.at_most is not None:
            met = value >= self.at_least if self.at_least is not None else value <= self.at_most
        return Verdict(value, min(in_rounds), max(in_rounds), met)

    @property
    def per_cpu_second(self) -> Bar | None:
        """Return the same ratio by processor time; ``None`` if it is undefined."""
        quantity = CPU_QUANTITIES.get(self.quantity)
        if self.formula != "ratio" or quantity is None:
            return None
        return dataclasses.replace(self, quantity=quantity, at_least=None, at_most=None)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A bar's number.

    Attributes:
        value: value for the medians.
        lowest: lowest value of a round.
        highest: highest value of a round.
        met: true if the limit is met; ``None`` without a limit.
    """

    value: float
    lowest: float
    highest: float
    met: bool | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Comparison of implementations or configurations (sides) that are measured in turn.

    Attributes:
        name: name on the command line.
        title: description.
        sides: sides by name.
        bars: numbers computed from the medians of the sides, and their limits.
        quantity: entry of a reading that is displayed.
        most_rounds: maximum number of rounds, for rounds that take minutes; ``None`` for no maximum.
    """

    name: str
    title: str
    sides: Mapping[str, Side]
    bars: Sequence[Bar]
    quantity: str = "steps_per_second"
    most_rounds: int | None = None

    @property
    def pythons(self) -> set[str]:
        """Names of the required interpreters."""
        return {side.python for side in self.sides.values()}

    def show(self, reading: Reading) -> str:
        """Return the reading's quantity with its unit."""
        return show_quantity(self.quantity, reading[self.quantity])


def readings_by_side(rows: Sequence[Reading]) -> dict[str, list[Reading]]:
    """Return recorded rows, each with its ``side`` and ``round``, as readings."""
    readings: dict[str, list[Reading]] = {}
    for row in rows:
        readings.setdefault(row["side"], []).append({k: v for k, v in row.items() if k not in ("side", "round")})
    return readings


def medians_of(readings: Readings) -> dict[str, dict[str, float]]:
    """Return the median of every entry, by side."""
    return {
        side: {entry: statistics.median(reading[entry] for reading in rounds) for entry in rounds[0]}
        for side, rounds in readings.items()
    }


def show_quantity(quantity: str, value: float) -> str:
    """Return a value with the unit at the end of its name."""
    if quantity == "steps_per_second":
        return f"{value:,.0f} steps/s"
    if quantity == "steps_per_cpu_second":
        return f"{value:,.0f} steps/CPU s"
    if quantity.endswith("seconds"):
        unit = "CPU s" if quantity.endswith("cpu_seconds") else "s"
        if value >= 0.1:
            return f"{value:.2f} {unit}"
        return f"{value * 1e6:.1f} u{unit}" if value >= 1e-6 else f"{value * 1e9:.1f} n{unit}"
    if quantity.endswith("bytes"):
        return f"{value / 1e6:,.0f} MB"
    return f"{value:g}"


def read_comparisons(path: Path = COMPARISON_FILE) -> dict[str, Comparison]:
    """Return the comparisons of a file by name.

    Raises:
        ValueError: a side has an unknown driver, or a bar does not have exactly one formula over existing sides.
    """
    comparisons = yaml.safe_load(path.read_text(encoding="utf-8"))["comparisons"]
    return {name: _comparison(name, **fields) for name, fields in comparisons.items()}


def _comparison(
    name: str,
    title: str,
    sides: Mapping[str, Any],
    bars: Sequence[Any],
    quantity: str = Comparison.quantity,
    most_rounds: int | None = None,
) -> Comparison:
    for side, settings in sides.items():
        if settings["driver"] not in DRIVERS:
            raise ValueError(f"{name}, side {side!r}: unknown driver {settings['driver']!r}, not in {list(DRIVERS)}")
    made = {side: Side(s["driver"], {k: v for k, v in s.items() if k != "driver"}) for side, s in sides.items()}
    return Comparison(name, title, made, [_bar(name, made, quantity, bar) for bar in bars], quantity, most_rounds)


def _bar(name: str, sides: Mapping[str, Side], shown: str, fields: dict[str, Any]) -> Bar:
    formulas = [key for key in fields if key in FORMULAS]
    if len(formulas) != 1:
        raise ValueError(f"{name}: a bar needs exactly one of {list(FORMULAS)}, got {formulas}")
    fields = dict(fields)  # a copy, because comparisons may share the mapping
    operands = fields.pop(formulas[0])
    operands = (operands,) if isinstance(operands, str) else tuple(operands)
    if missing := [side for side in operands if side not in sides]:
        raise ValueError(f"{name}: unknown side {missing[0]!r}: expected one of {list(sides)}")
    text = fields.pop("text", " / ".join(operands))
    return Bar(formulas[0], operands, fields.pop("quantity", shown), text, **fields)


COMPARISONS = read_comparisons()
