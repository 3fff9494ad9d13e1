"""What a comparison is: sides that are measured in turn, and bars that their medians have to clear."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Medians = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Side:
    """One configuration, measured by a child process.

    Attributes:
        module: what the child runs, ``python -m``.
        settings: its settings, JSON.
        python: whose interpreter: ``"own"``, or a peer's name.
        fresh_process: a new process for every measurement, where starting is what is measured.
    """

    module: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    python: str = "own"
    fresh_process: bool = False


@dataclasses.dataclass(frozen=True)
class Bar:
    """A number made of the sides' medians, and its limit.

    Attributes:
        text: what the number is.
        value: the number, from readings by side.
        at_least: met from here on; or
        at_most: met up to here.
    """

    text: str
    value: Callable[[Medians], float]
    at_least: float | None = None
    at_most: float | None = None

    def judge(self, medians: Medians, rounds: Sequence[Medians]) -> dict[str, Any]:
        """JSON: the value of the medians, its range over the rounds, and whether the bar is met."""
        value = self.value(medians)
        in_rounds = [self.value(found) for found in rounds]
        met = value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0.0)
        limit = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
        return {
            "text": self.text,
            "value": value,
            "lowest": min(in_rounds),
            "highest": max(in_rounds),
            "limit": limit,
            "met": met,
        }


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Sides, measured in turn.

    Attributes:
        name: by which the command line chooses it.
        title: what is compared.
        sides: by name.
        bars: what is asked of their medians.
        quantity: the entry of a reading that is shown.
        unit: how it is shown: a format and a factor.
    """

    name: str
    title: str
    sides: Mapping[str, Side]
    bars: Sequence[Bar]
    quantity: str = "steps_per_second"

    def show(self, reading: Mapping[str, Any]) -> str:
        """The reading's quantity with its unit."""
        return show_quantity(self.quantity, reading[self.quantity])


def show_quantity(quantity: str, value: float) -> str:
    """A value with the unit that its name ends in."""
    if quantity == "steps_per_second":
        return f"{value:,.0f} steps/s"
    if quantity == "steps_per_cpu_second":
        return f"{value:,.0f} steps/cpu-s"
    if quantity.endswith("seconds"):
        if value >= 0.1:
            return f"{value:.2f} s"
        return f"{value * 1e6:.1f} us" if value >= 1e-6 else f"{value * 1e9:.1f} ns"
    if quantity.endswith("bytes"):
        return f"{value / 1e6:,.0f} MB"
    return f"{value:g}"


def ratio(numerator: str, denominator: str, quantity: str = "steps_per_second") -> Callable[[Medians], float]:
    """The quotient of two sides' medians."""
    return lambda found: found[numerator][quantity] / found[denominator][quantity]
