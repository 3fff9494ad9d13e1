"""Workarounds for the CPU compiler are absent from programs for other platforms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from evorl.networks.layers import convolution, dense
from evorl.ops.platform import compiled_for, on_cpu, platform
from evorl.ops.random import unrolled

KEY = jax.random.key(0)


def _of_a_narrow_layer() -> str:
    module, x = dense(2, orthogonal=True, scale=1.0), jnp.zeros((64, 8))
    return str(jax.make_jaxpr(module.apply)(module.init(KEY, x), x))


def _of_a_wide_layer() -> str:
    module, x = dense(64, orthogonal=True, scale=1.0), jnp.zeros((512, 64))
    return str(jax.make_jaxpr(module.apply)(module.init(KEY, x), x))


def _of_a_convolution() -> str:
    module, x = convolution(2, 3, 1, "same", orthogonal=True, scale=1.0), jnp.zeros((1, 8, 8, 1))
    return str(jax.make_jaxpr(module.apply)(module.init(KEY, x), x))


def test_workarounds_are_for_a_cpu() -> None:
    def check_cpu() -> None:
        assert (platform(), on_cpu()) == ("cpu", True)
        assert unrolled(KEY) is not KEY
        assert "optimization_barrier" in _of_a_narrow_layer()
        assert "custom_jvp" in _of_a_wide_layer()
        assert "conv_general_dilated" not in _of_a_convolution()

    check_cpu()
    with compiled_for("cuda"):
        assert (platform(), on_cpu()) == ("gpu", False)
        assert unrolled(KEY) is KEY
        assert "optimization_barrier" not in _of_a_narrow_layer()
        assert "custom_jvp" not in _of_a_wide_layer()
        assert "conv_general_dilated" in _of_a_convolution()
    check_cpu()


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cpu, gpu, cuda, tpu; got 'metal'"), compiled_for("metal"):
        pass
