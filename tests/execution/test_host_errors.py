"""Failures of simulators inside compiled programs are reported as such."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.host.simulators import failures
from evorl.execution.host_errors import translate_host_errors
from tests.support.errors import raises_naming


def _run(fail: Exception) -> None:
    def host(x: jax.Array) -> jax.Array:
        if isinstance(fail, HostEnvError):
            failures.append(fail)
        raise fail

    jax.block_until_ready(jax.jit(lambda x: io_callback(host, jnp.zeros(()), x))(jnp.ones(())))


def test_a_simulators_sentence_comes_out_of_the_program_without_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    expected = pytest.raises(HostEnvError, match=r"^environment 3 is broken$")
    with caplog.at_level(logging.ERROR), expected, translate_host_errors():
        with translate_host_errors():  # nested, like setup within training
            pass
        _run(HostEnvError("environment 3 is broken"))
    assert "Traceback" not in caplog.text


def test_another_error_stays_what_it_is() -> None:
    with raises_naming(jax.errors.JaxRuntimeError, "division"), translate_host_errors():
        _run(ZeroDivisionError("division"))
