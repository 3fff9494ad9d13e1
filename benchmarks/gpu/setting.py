"""The programs that are compiled for a described GPU: settings, sides and requirements, from ``settings.yaml``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

SETTINGS_FILE = Path(__file__).with_name("settings.yaml")
PEERS = ("rejax", "brax", "evosax")


@dataclasses.dataclass(frozen=True)
class Bar:
    """Upper limit of a quantity of evorl's program, relative to the same quantity of a peer.

    Attributes:
        quantity: entry of a side's cost, ``kernels`` or ``temporary_bytes``.
        peer: name of the side.
        at_most: limit of the ratio.
    """

    quantity: str
    peer: str
    at_most: float


@dataclasses.dataclass(frozen=True)
class Side:
    """One compiled program.

    Attributes:
        program: function of ``benchmarks.gpu.sides`` that makes the program.
        settings: its settings, JSON.
    """

    program: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class GpuSetting:
    """Work that several sides do.

    Attributes:
        name: name on the command line.
        title: description.
        steps: environment steps of one call of the program, over all seeds.
        rollout: number of times that all environments are stepped in a rollout, or the length of an episode.
        updates: number of gradient steps of one iteration; 0 without gradients.
        unknown_turns: see ``benchmarks.gpu.hlo.Program``: turns of the rollout if episodes may end early, or of the
            updates if their number depends on the state.
        sides: sides by name; ``"evorl, 2 devices"`` is evorl's program on a mesh.
        bars: requirements of the side ``"evorl"``.
        static: True if ``--static`` compiles the setting by default.
    """

    name: str
    title: str
    steps: int
    rollout: int
    updates: int
    unknown_turns: int
    sides: Mapping[str, Side]
    bars: tuple[Bar, ...]
    static: bool = True


def read_settings(path: Path = SETTINGS_FILE) -> dict[str, GpuSetting]:
    """Return the settings of a file by name.

    Raises:
        ValueError: a setting has no side ``evorl``, or a bar refers to a side that does not exist.
    """
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))["settings"]
    return {name: _setting(name, **fields) for name, fields in listed.items()}


def _setting(
    name: str,
    title: str,
    steps: int,
    rollout: int,
    updates: int = 0,
    unknown_turns: int = 1,
    meshes: tuple[int, ...] = (),
    bars: Mapping[str, Any] | None = None,
    static: bool = True,
    **programs: Mapping[str, Any],
) -> GpuSetting:
    if "evorl" not in programs:
        raise ValueError(f"{name}: the side evorl is missing; its sides are {list(programs)}.")
    sides = {program: Side(program, settings) for program, settings in programs.items()}
    for count in meshes:
        sides[f"evorl, {count} devices"] = Side("evorl", {**programs["evorl"], "devices": count})
    limits = tuple(Bar(quantity, **limit) for quantity, limit in (bars or {}).items())
    if missing := [bar.peer for bar in limits if bar.peer not in sides]:
        raise ValueError(f"{name}: a bar refers to {missing[0]!r}; its sides are {list(sides)}.")
    return GpuSetting(name, title, steps, rollout, updates, unknown_turns, sides, limits, static)


SETTINGS = read_settings()
