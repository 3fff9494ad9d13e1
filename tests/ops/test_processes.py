"""A single process decides alone. ``tests/test_launch.py`` tests several."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops import processes


def test_a_process_by_itself_decides() -> None:
    assert processes.is_first()
    assert not processes.is_multiprocess()
    answer = object()  # not serializable
    assert processes.decided_by_first(lambda: answer) is answer
    assert processes.number_of_first(2**40) == 2**40
    assert processes.any_says(True)
    assert not processes.any_says(False)
    processes.wait_for_all()
    whole = processes.on_host({"a": jnp.arange(3), "b": 1.5})
    assert isinstance(whole["a"], np.ndarray)
    assert whole["b"] == 1.5


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("UNKNOWN: Gloo all-reduce failed: [pair.cc:538] Read error: Connection reset by peer"), True),
        (RuntimeError("Barrier failed: UNAVAILABLE: coordination service shut down"), True),
        (ValueError("num_envs must be positive, got Gloo"), False),
        (OSError("Gloo all-reduce failed"), False),
    ],
)
def test_what_tells_of_a_lost_process(error: Exception, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not processes.means_lost_process(error)  # a single process cannot lose another
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert processes.means_lost_process(error) == expected
