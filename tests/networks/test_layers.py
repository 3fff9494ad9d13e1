from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamShapeError

from evorl.networks.layers import Dense, dense, dense_kernels, he_normal_dense, orthogonal_matrix
from evorl.ops.low_rank import LowRankNoise, PerturbedMatrix
from tests.support.errors import raises_naming

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (5, 6))


@pytest.mark.parametrize("num_outputs", [1, 3, 16, 17])
def test_layers_of_any_width_have_the_gradient_of_a_product(num_outputs: int) -> None:
    module = dense(num_outputs, orthogonal=True, scale=1.0)
    params = module.init(KEY, X)["params"]

    def loss(params: dict) -> jax.Array:
        return jnp.sum(jnp.sin(module.apply({"params": params}, X)))

    def plain(params: dict) -> jax.Array:
        return jnp.sum(jnp.sin(X @ params["kernel"] + params["bias"]))

    def derivatives(loss) -> tuple:  # first-order, and second-order: forward over reverse
        return jax.grad(loss)(params), jax.jvp(jax.grad(loss), (params,), (params,))[1]

    results = jax.jit(lambda: (derivatives(loss), derivatives(plain)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *results)


def test_a_layer_without_inputs_is_its_biases() -> None:
    layer = dense(3, orthogonal=True, scale=1.0)
    params = layer.init(jax.random.key(0), jnp.zeros((2, 0)))
    params["params"]["bias"] = jnp.arange(3.0)
    assert layer.apply(params, jnp.zeros((2, 0))).tolist() == [[0.0, 1.0, 2.0]] * 2


def test_no_fresh_parameters_are_made_where_there_are_some() -> None:
    made = []

    def initializer(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        made.append(shape)
        return jax.random.normal(key, shape, dtype)

    params = Dense(3, kernel_init=initializer).init(KEY, X)
    assert made.pop() == (6, 3)
    outputs = Dense(3, kernel_init=initializer).apply(params, X)
    assert not made
    np.testing.assert_array_equal(outputs, nn.Dense(3).apply(params, X))
    for name, shape in {"kernel": (6, 4), "bias": (1,)}.items():
        others = {"params": {**params["params"], name: np.zeros(shape)}}
        with raises_naming(ScopeParamShapeError, f'"{name}"', f"has shape {shape}"):
            Dense(3, kernel_init=initializer).apply(others, X)


def test_orthogonal_weights_have_their_gain() -> None:
    kernel = dense(3, orthogonal=True, scale=0.01).init(KEY, X)["params"]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 1e-4 * np.eye(3), atol=1e-7)


@pytest.mark.parametrize("shape", [(40, 6), (6, 40), (16, 16), (1, 5), (3, 3, 2, 8), (3, 3, 8, 40)], ids=str)
def test_the_shorter_side_of_an_orthogonal_matrix_is_orthonormal(shape: tuple[int, ...]) -> None:
    matrix = np.asarray(orthogonal_matrix(KEY, shape, scale=2.0))
    assert (matrix.shape, matrix.dtype) == (shape, np.float32)
    rows = matrix.reshape(-1, shape[-1]) / 2.0  # rows of a convolution: window and inputs
    _assert_orthonormal(rows)


def test_orthogonal_matrices_of_several_keys_are_each_orthonormal_and_differ() -> None:
    keys = jax.random.split(KEY, 8)
    matrices = np.asarray(jax.jit(jax.vmap(lambda key: orthogonal_matrix(key, (24, 12))))(keys))
    for matrix in matrices:
        _assert_orthonormal(matrix)
    np.testing.assert_allclose(matrices[3], orthogonal_matrix(keys[3], (24, 12)), atol=1e-5)
    assert np.abs(matrices[0] - matrices[1]).max() > 0.1


def _assert_orthonormal(rows: np.ndarray) -> None:
    rows = rows.astype(np.float64)
    gram = rows @ rows.T if rows.shape[0] < rows.shape[1] else rows.T @ rows
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)


def test_uniform_weights_stay_within_their_bound() -> None:
    kernel = dense(200, orthogonal=False, scale=1.0).init(KEY, X)["params"]["kernel"]
    bound = np.sqrt(3.0 / 6.0)
    assert 0.9 * bound < np.abs(kernel).max() <= bound


def test_perturbed_kernels_multiply_as_explicit_ones() -> None:
    """Every dense layer of a network finds its kernel; others, such as Flax's own, are not among them."""

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.Dense(4, name="foreign")(x)
            x = Dense(4, name="cell")(x)  # its product is that of Flax
            return dense(3, orthogonal=False, scale=1.0, name="head")(jnp.tanh(x))

    params = Network().init(KEY, X)
    kernels = dense_kernels(Network(), params, X)
    both = {name: {"kernel": name == "head", "bias": False} for name in ("foreign", "cell", "head")}
    assert kernels == {"params": both}
    numbers = jax.random.normal(KEY, (2, 7))
    kernel = params["params"]["head"]["kernel"]
    perturbed = PerturbedMatrix(mean=kernel, noise=LowRankNoise.from_normal(numbers, 4))
    outputs = []
    for changed in (perturbed, perturbed.matrix()):
        head = {**params["params"]["head"], "kernel": changed}
        outputs.append(Network().apply({"params": {**params["params"], "head": head}}, X))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)
    assert not np.allclose(outputs[0], Network().apply(params, X), rtol=1e-2)


def test_dense_layers_of_residual_blocks_may_be_perturbed() -> None:
    layer = he_normal_dense(3)
    params = layer.init(KEY, X)
    assert dense_kernels(layer, params, X) == {"params": {"kernel": True, "bias": False}}
    mean = params["params"]["kernel"]
    numbers = jax.random.normal(KEY, (2, sum(mean.shape)))
    kernel = PerturbedMatrix(mean=mean, noise=LowRankNoise.from_normal(numbers, len(mean)))
    outputs = [layer.apply({"params": {**params["params"], "kernel": x}}, X) for x in (kernel, kernel.matrix())]
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-5)
