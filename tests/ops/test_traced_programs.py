"""The work of traced programs, counted by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from evorl.ops.traced_programs import Work, programs_in, scan_sizes, work_of

X = jax.ShapeDtypeStruct((4,), jnp.float32)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: jnp.sin(x) + jnp.cos(x), Work(3, 12)),
        (jax.jit(lambda x: jnp.sin(x)), Work(1, 4)),
        (lambda x: jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=5)[0], Work(5, 20)),
        (lambda x: jax.lax.while_loop(lambda x: x.sum() < 1, jnp.sin, x), Work(3, 6)),  # sum, comparison, sine
        (lambda x: jax.lax.cond(True, jnp.sin, lambda x: jnp.sin(jnp.cos(x)), x), Work(2, 8)),
    ],
)
def test_work_is_operations_and_their_results(program, expected: Work) -> None:
    assert work_of(jax.make_jaxpr(program)(X)) == expected


def test_programs_within_an_equation_are_found() -> None:
    (loop,) = jax.make_jaxpr(lambda x: jax.lax.while_loop(lambda x: x.sum() < 1, jnp.sin, x))(X).eqns
    assert len(list(programs_in(loop))) == 2


def test_operands_of_a_scan_are_constants_carried_values_and_rows() -> None:
    def run(x, y, rows):
        return jax.lax.scan(lambda carry, row: ((carry[0] + row * x * y, carry[1] + 1), row), (0.0, 0), rows)

    (*_, loop) = jax.make_jaxpr(run)(1.0, 2.0, jnp.ones(3)).eqns
    assert loop.primitive.name == "scan"
    assert scan_sizes(loop) == (2, 2)
