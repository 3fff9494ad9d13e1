"""Output of the learning benchmark."""

from __future__ import annotations

import pytest

from benchmarks.learning.__main__ import main, show
from tests.benchmarks.learning.test_page import RESULT, TASK


def test_screen_tells_what_counts_and_the_end():
    text = show(TASK, {**RESULT, "timesteps": 1000, "seconds": 300.0})
    assert text.splitlines() == [
        "    required >= -160.0 at 500 steps: met",
        "    counts: -150.0 (-160.0 .. -140.0) at 500 steps",
        "    reached at: -150.0 (-160.0 .. -140.0) at 500 steps",
        "    last: -100.0 (-110.0 .. -90.0) at 1,000 steps",
        "    1,000 steps in 300 s",
    ]
    assert "NOT MET" in show(TASK, {"curve": [], "timesteps": 0, "seconds": 1.0})


def test_a_task_that_does_not_exist_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["ppo_cartpoll"])
    assert "there is no task 'ppo_cartpoll'. Did you mean 'ppo_cartpole'?" in capsys.readouterr().err
