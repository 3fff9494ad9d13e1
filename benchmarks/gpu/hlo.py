"""Reads a program that XLA has compiled for a GPU: launched kernels, loops, traffic, and calls of the host.

Small networks on a GPU are bound by launches: every kernel costs a few microseconds regardless of its work, and a loop
whose number of turns the compiler does not know copies its predicate to the host and waits, once per turn. Peers import
this module in separate environments, so it requires only the standard library.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from functools import cached_property

# Instructions that launch nothing: names for memory, control flow, and the second halves of asynchronous pairs.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "opt-barrier", "add-dependency", "get-dimension-size", "domain",
}  # fmt: skip
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16}
_SHAPE = re.compile(r"\b([a-z]+\d*(?:e\dm\d\w*)?)\[([\d,]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction: its name, the text of its type, its opcode, the names of its operands, and the rest."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the output."""
        return sum(_BYTES.get(kind, _bits(kind) // 8) * _size(shape) for kind, shape in _SHAPE.findall(self.type))

    @property
    def trip_count(self) -> int | None:
        """Number of turns of a loop; ``None`` if the compiler does not know it."""
        known = _TRIPS.search(self.attributes)
        return int(known[1]) if known else None

    def called(self, what: str) -> str:
        """Return the name of the computation that ``what`` (``body``, ``condition``, ``calls``, ...) refers to."""
        found = re.search(rf"\b(?:{what})=%?([\w.\-]+)", self.attributes)
        return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop: turns (``None`` if unknown), kernels of one turn without its inner loops, and the inner loops."""

    trip_count: int | None
    kernels: int
    loops: tuple[Loop, ...]


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """The cost of one call of a program.

    Loops with an unknown number of turns are counted as ``Program`` assumes.

    Attributes:
        kernels: kernels, copies and library calls that are launched.
        outside: number of kernels outside of loops.
        loops: outermost loops, in the order of the program.
        unknown_loops: turns of loops with an unknown number of turns: the host waits once for each.
        conditionals: number of branches: the host waits for each predicate, too.
        traffic_bytes: bytes that kernels read and write, with slices counted as slices.
        collectives: calls by kind, for instance ``{"all-reduce": 16}``.
        collective_bytes: bytes of their outputs.
        host_calls: callbacks, infeeds and outfeeds.
        wide_floats: instructions whose output is float64 or complex128.
    """

    kernels: int
    outside: int
    loops: tuple[Loop, ...]
    unknown_loops: int
    conditionals: int
    traffic_bytes: int
    collectives: dict[str, int]
    collective_bytes: int
    host_calls: int
    wide_floats: int


@dataclasses.dataclass
class _Sums:
    """Costs of the instructions of one computation, calls included."""

    kernels: int = 0
    outside: int = 0
    loops: tuple[Loop, ...] = ()
    unknown_loops: int = 0
    conditionals: int = 0
    traffic_bytes: int = 0
    collectives: dict[str, int] = dataclasses.field(default_factory=dict)
    collective_bytes: int = 0
    host_calls: int = 0

    def add(self, other: _Sums, turns: int = 1) -> None:
        """Add ``turns`` executions of another computation; its loops and kernels outside of loops are not merged."""
        for name in ("kernels", "unknown_loops", "conditionals", "traffic_bytes", "collective_bytes", "host_calls"):
            setattr(self, name, getattr(self, name) + turns * getattr(other, name))
        for kind, count in other.collectives.items():
            self.collectives[kind] = self.collectives.get(kind, 0) + turns * count


class Program:
    """The text of an optimized HLO module.

    Args:
        text: what ``compiled.as_text()`` returns.
        unknown_turns: turns to count for the outermost loop with an unknown number of turns; if there are several, for
            the largest. All other unknown loops count as one turn.

    Raises:
        ValueError: the text has no entry computation.
    """

    def __init__(self, text: str, unknown_turns: int = 1) -> None:
        self.unknown_turns = unknown_turns
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        for name, is_entry, lines in _computations(text):
            self.computations[name] = [found for line in lines if (found := _instruction(line))]
            self.entry = name if is_entry else self.entry
        if not self.entry:
            raise ValueError("The text has no ENTRY computation: pass compiled.as_text() of a compiled program.")

    @cached_property
    def cost(self) -> ProgramCost:
        """The cost of one call."""
        sums = self._sums(self.entry)
        wide = sum(bool(re.search(r"\b(f64|c128)\[", i.type)) for body in self.computations.values() for i in body)
        return ProgramCost(**dataclasses.asdict(sums) | {"loops": sums.loops}, wide_floats=wide)

    @cached_property
    def _assumed(self) -> str:
        """Name of the loop that counts as ``unknown_turns``; empty without one."""
        loops = [i for i in self.computations[self.entry] if i.opcode == "while" and i.trip_count is None]
        return max(loops, key=lambda loop: self._sums(loop.called("body")).kernels).name if loops else ""

    def _sums(self, name: str) -> _Sums:
        sums, types = _Sums(), {i.name: i for i in self.computations[name]}
        for instruction in self.computations[name]:
            opcode = instruction.opcode
            if opcode == "while":
                assumed = name == self.entry and instruction.name == self._assumed
                self._add_loop(sums, instruction, self.unknown_turns if assumed else 1)
            elif opcode == "conditional":
                branches = [self._sums(branch) for branch in _branches(instruction)]
                largest = max(branches, key=lambda branch: branch.kernels)
                sums.add(largest)
                sums.outside += largest.outside
                sums.loops += largest.loops
                sums.conditionals += 1
            elif opcode in ("call", "async-start") and (inner := instruction.called("to_apply|calls")):
                called = self._sums(inner)
                sums.add(called)
                sums.outside += called.outside
                sums.loops += called.loops
            elif opcode not in _FREE and not opcode.endswith(("-done", "-update")):
                self._add_kernel(sums, instruction, types)
        return sums

    def _add_loop(self, sums: _Sums, loop: Instruction, unknown_turns: int) -> None:
        body, turns = self._sums(loop.called("body")), loop.trip_count
        if turns is None:  # the predicate is a separate kernel, whose result the host reads
            condition = self._sums(loop.called("condition"))
            body.add(condition)
            body.outside += condition.outside
            body.unknown_loops += 1
        sums.add(body, unknown_turns if turns is None else turns)
        sums.loops += (Loop(turns, body.outside, body.loops),)

    def _add_kernel(self, sums: _Sums, instruction: Instruction, types: dict[str, Instruction]) -> None:
        sums.kernels += 1
        sums.outside += 1
        kind = instruction.opcode.removesuffix("-start")
        if kind in _COLLECTIVES:
            sums.collectives[kind] = sums.collectives.get(kind, 0) + 1
            sums.collective_bytes += instruction.num_bytes
        target = _TARGET.search(instruction.attributes)
        if kind in ("infeed", "outfeed", "send", "recv") or (target and "callback" in target[1]):
            sums.host_calls += 1
        sums.traffic_bytes += self._traffic(instruction, types)

    def _traffic(self, instruction: Instruction, types: dict[str, Instruction]) -> int:
        """Return bytes read and written. A slice inside a kernel counts as the slice alone."""
        operands = [types[name].num_bytes for name in instruction.operands if name in types]
        inner = self.computations.get(instruction.called("calls"), [])
        if not inner:
            return instruction.num_bytes + sum(operands)
        by_name = {i.name: i for i in inner}
        written, updated = instruction.num_bytes, set()
        for update in (i for i in inner if i.opcode == "dynamic-update-slice"):
            target, new = by_name.get(update.operands[0]), by_name.get(update.operands[1])
            if target is not None and target.opcode == "parameter" and new is not None:
                written += new.num_bytes - update.num_bytes
                updated.add(target.name)
        read = 0
        for parameter in (i for i in inner if i.opcode == "parameter"):
            if parameter.name in updated:
                continue
            uses = [i for i in inner if parameter.name in i.operands]
            slices = [
                i for i in uses if i.opcode in ("dynamic-slice", "gather", "slice") and i.operands[0] == parameter.name
            ]
            read += sum(i.num_bytes for i in slices) if slices and len(slices) == len(uses) else parameter.num_bytes
        return max(0, written) + read


def _computations(text: str) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield the name of every computation, True if it is the entry, and its lines."""
    name, is_entry, lines = "", False, []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            name, is_entry, lines = header[2], bool(header[1]), []
        elif line == "}" and name:
            yield name, is_entry, lines
            name = ""
        elif name:
            lines.append(line)


def _instruction(line: str) -> Instruction | None:
    head, equals, rest = line.strip().removeprefix("ROOT ").partition(" = ")
    if not equals:
        return None
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    kind, rest = rest[:end], rest[end:].strip()
    opcode, _, _ = rest.partition("(")
    close = _closing(rest, len(opcode))
    operands = tuple(re.findall(r"%([\w.\-]+)", rest[len(opcode) : close]))
    return Instruction(head.lstrip("%"), kind, opcode, operands, rest[close + 1 :])


def _closing(text: str, start: int) -> int:
    """Return the index of the bracket that closes the one at ``start``."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise ValueError(f"unbalanced brackets in an instruction: {text[:200]}")


def _branches(instruction: Instruction) -> list[str]:
    listed = _BRANCHES.search(instruction.attributes)
    if listed:
        return [name.strip().lstrip("%") for name in listed[1].split(",")]
    return [instruction.called("true_computation"), instruction.called("false_computation")]


def _bits(kind: str) -> int:
    digits = re.match(r"[a-z]+(\d+)", kind)
    return max(8, int(digits[1])) if digits else 0


def _size(shape: str) -> int:
    size = 1
    for extent in filter(None, shape.split(",")):
        size *= int(extent)
    return size
