"""The reader of compiled programs, on small programs that XLA has compiled for a described H100."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu.hlo import Loop, Program

PROGRAMS = Path(__file__).with_name("programs")
CALLBACK = """
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %wide = f64[8]{0} convert(%x)
  %asked = f32[8]{0} custom-call(%wide), custom_call_target="xla_ffi_python_gpu_callback"
  %product = f32[8]{0} custom-call(%asked, %asked), custom_call_target="__cublas$gemm"
  ROOT %same = f32[8]{0} bitcast(%product)
}
"""
ASYNCHRONOUS = """
%copied (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %copy = f32[4]{0} copy(%p)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %start = ((f32[4]{0}), f32[4]{0}) async-start(%x), calls=%copied
  ROOT %done = f32[4]{0} async-done(%start)
}
"""

TWO_LOOPS = """
%small (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %one = f32[4]{0} copy(%p)
}

%large (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %one = f32[4]{0} copy(%p)
  ROOT %two = f32[4]{0} copy(%one)
}

%goes (p: f32[4]) -> pred[] {
  %p = f32[4]{0} parameter(0)
  ROOT %less = pred[] compare(%p, %p), direction=LT
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %first = f32[4]{0} while(%x), condition=%goes, body=%small
  ROOT %second = f32[4]{0} while(%first), condition=%goes, body=%large
}
"""


def _program(name: str, unknown_turns: int = 1) -> Program:
    return Program((PROGRAMS / f"{name}.hlo").read_text("utf-8"), unknown_turns)


def test_counted_loops_multiply_their_kernels() -> None:
    cost = _program("counted").cost
    assert cost.loops == (Loop(5, 6, (Loop(3, 3, ()),)),)
    assert cost.kernels == 5 * (6 + 3 * 3) + 3
    assert (cost.outside, cost.unknown_loops) == (3, 0)


def test_a_predicate_that_the_host_reads_is_a_wait_and_costs_kernels() -> None:
    cost = _program("uncounted").cost
    assert cost.loops == (Loop(None, 4, ()),)  # two of the body, two of the condition
    assert (cost.kernels, cost.unknown_loops) == (4 + 1, 1)


def test_the_turns_of_an_outermost_loop_may_be_assumed() -> None:
    once, often = _program("uncounted").cost, _program("uncounted", 500).cost
    assert (often.kernels, often.unknown_loops) == (500 * 4 + 1, 500)
    assert often.traffic_bytes > 100 * once.traffic_bytes


@pytest.mark.parametrize("assumed", [1, 500])
def test_an_uncounted_loop_in_a_counted_one_waits_once_a_turn(assumed: int) -> None:
    cost = _program("nested", assumed).cost
    assert cost.loops == (Loop(4, 1, (Loop(None, 3, ()),)),)
    assert (cost.kernels, cost.unknown_loops) == (4 * (1 + 3) + 2, 4)


def test_of_several_uncounted_loops_the_largest_has_the_assumed_turns() -> None:
    cost = Program(TWO_LOOPS, 64).cost
    assert cost.loops == (Loop(None, 2, ()), Loop(None, 3, ()))
    assert (cost.kernels, cost.unknown_loops) == (2 + 64 * 3, 1 + 64)


def test_of_a_conditional_the_branch_with_more_kernels_counts() -> None:
    cost = _program("branches").cost
    assert cost.kernels == 2 + 2  # the predicate; a product and a sort, not the other branch's sum
    assert cost.conditionals == 1


def test_what_a_kernel_updates_in_place_counts_as_its_slice() -> None:
    cost = _program("buffer").cost
    row, whole, counter = 32 * 4, 64 * 32 * 4, 4
    in_a_turn = 2 * row + counter + 2 * counter  # the row is read and written, at a position; and the counter
    assert cost.traffic_bytes == 64 * in_a_turn + 2 * whole + 2 * counter


def test_all_reduces_are_counted_with_their_bytes() -> None:
    cost = _program("all_reduce").cost
    assert cost.collectives == {"all-reduce": 7}
    assert cost.collective_bytes == 7 * 64 * 4
    assert cost.loops == (Loop(7, 3, ()),)  # the second half of an all-reduce launches nothing


def test_callbacks_and_float64_are_found() -> None:
    cost = Program(CALLBACK).cost
    assert (cost.kernels, cost.host_calls, cost.wide_floats) == (3, 1, 1)


def test_an_asynchronous_computation_counts_once() -> None:
    assert Program(ASYNCHRONOUS).cost.kernels == 1


def test_a_text_without_a_program_is_an_error() -> None:
    with pytest.raises(ValueError, match="ENTRY"):
        Program("HloModule empty\n")
