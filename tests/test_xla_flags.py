"""Compiler flags of the package: results of batched programs are right, and the user's flags take precedence."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import evorl
from evorl.xla_flags import CORRECT_RESULTS, add_xla_flags

# Natural-gradient directions of softmax policies, one at a time and all in one program. XLA's kernels of YNNPACK give
# other directions in one program, which differ between runs.
DIRECTIONS = """
import json

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from evorl.ops.natural_gradient import conjugate_gradient, score_product

def log_probs(params, obs, actions):
    logits = jnp.tanh(obs @ params["hidden"] + params["bias"]) @ params["output"]
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)[..., 0]

def direction(key):
    keys = jax.random.split(key, 5)
    params = {"hidden": jax.random.normal(keys[0], (4, 64)) / 2, "bias": jnp.zeros(64)}
    params["output"] = jax.random.normal(keys[1], (64, 2)) / 10
    obs, actions = jax.random.normal(keys[2], (128, 8, 4)), jax.random.randint(keys[3], (128, 8), 0, 2)
    dones = jax.random.uniform(keys[4], (128, 8)) < 0.05
    product = score_product(lambda params: log_probs(params, obs, actions), params, dones, jnp.ones((128, 8)))
    target = jax.grad(lambda params: (log_probs(params, obs, actions) * obs[..., 0]).mean())(params)
    damped = lambda vector: jax.tree.map(lambda x, y: x + 0.1 * y, product(vector), vector)
    return ravel_pytree(conjugate_gradient(damped, target, 3))[0]

keys = jax.random.split(jax.random.key(0), 4)
alone = jnp.stack([jax.jit(direction)(key) for key in keys])
together = jax.jit(jax.vmap(direction))(keys)
print(json.dumps([float(jnp.abs(together - alone).max()), float(jnp.abs(alone).max())]))
"""


# Rows of the product with which CMA-ES samples, for a whole population and for parts. Devices have a thread each:
# Eigen's kernels divide sums among threads, depending on the number of rows.
ROWS = """
import json

import evorl
import jax
import jax.numpy as jnp

differ = []
for n in (64, 200, 257, 300, 512):
    keys = jax.random.split(jax.random.key(n))
    matrix, rows = jax.random.normal(keys[0], (n, n)), jax.random.normal(keys[1], (128, n))
    product = jax.jit(lambda rows, matrix: rows @ matrix.T)
    together = product(rows, matrix)
    for count in (8, 16, 33, 48, 64, 65):
        if (product(rows[:count], matrix) != together[:count]).any():
            differ.append((n, count))
print(json.dumps(differ))
"""


def run(program: str, **environment: str) -> str:
    """Return the output of a program in a new process that compiles as users do."""
    kept = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True).stdout


def test_seeds_in_one_program_have_the_directions_of_seeds_by_themselves() -> None:
    difference, largest = json.loads(run(DIRECTIONS))
    assert difference < 1e-4 * largest


@pytest.mark.parametrize("devices", ["1", "4"])
def test_rows_of_a_product_do_not_depend_on_their_number_and_on_threads(devices: str) -> None:
    assert json.loads(run(ROWS, JAX_NUM_CPU_DEVICES=devices)) == []


def test_the_package_adds_its_flags_on_import() -> None:
    assert evorl.__version__
    flags = run("import os, evorl; print(os.environ['XLA_FLAGS'])", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")
    assert flags.split() == [
        "--xla_cpu_multi_thread_eigen=false",
        *[f"{name}={value}" for name, value in CORRECT_RESULTS.items()],
    ]


def test_flags_of_the_user_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--a=1 --b=2")
    add_xla_flags({"--b": "3", "--c": "4"})
    assert os.environ["XLA_FLAGS"] == "--a=1 --b=2 --c=4"
