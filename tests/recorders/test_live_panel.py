"""The live panel: its contents and its refresh rate."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from evorl.recorders import LivePanel
from tests.support.recorded_runs import make_plan, make_row, record


class Clock:
    now = 0.0
    step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def make_console() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=True, width=100, color_system=None), stream


def test_the_last_frame_stays_and_shows_everything() -> None:
    console, stream = make_console()
    record(LivePanel(console))
    last = stream.getvalue()[stream.getvalue().rindex("PPOWorkflow") :]
    for text in (
        "100%",
        "1,200 of 1,200 steps",
        "100,000 steps/s",
        "done",
        "evaluation return  300.0 ± 4.0",
        "best 300.0",
        "training return    240.0",
        "length 240",
        "policy_loss  -0.008333",
        "value_loss  9.821",
    ):
        assert text in last
    assert all(len(line) <= 84 for line in last.splitlines())


def test_messages_stand_above_the_panel() -> None:
    console, stream = make_console()
    panel = LivePanel(console)
    panel.start(make_plan())
    panel.message("Saved [the best] so far.")
    text = stream.getvalue()
    panel.close()
    assert "[bold]" not in text
    assert text.index("Saved [the best] so far.") < text.rindex("PPOWorkflow")


def test_long_names_of_metrics_are_not_cut() -> None:
    console, stream = make_console()
    panel = LivePanel(console)
    panel.start(make_plan())
    names = ["explained_variance", "approximate_kl", "a_rather_long_name_of_a_metric", "clip_fraction"]
    panel.write({"timesteps": 100} | {f"train/{name}": -1.23456e-7 for name in names})
    panel.close()
    assert all(name in stream.getvalue() for name in names)


def test_the_spread_over_seeds_fits_beside_the_history() -> None:
    console, stream = make_console()
    panel = LivePanel(console)
    panel.start(make_plan(num_seeds=10))
    seeds = {f"eval/episode_return_seed_{i}": -1234.5 for i in range(10)}
    for i in range(40):
        returns = {"eval/episode_return": -1234.5 - i, "eval/episode_return_std_over_seeds": 1234.5}
        panel.write({"timesteps": i, **returns, **seeds})
    panel.close()
    last = stream.getvalue()[stream.getvalue().rindex("PPOWorkflow") :]
    assert "-1,273.5 ± 1,234.5 over 10 seeds" in last
    assert "best -1,235.5" in last  # the first evaluation uses the untrained policy


def test_frames_are_put_off_so_that_they_cost_one_percent() -> None:
    console, stream = make_console()
    clock = Clock()
    panel = LivePanel(console, clock)
    panel.start(make_plan())
    drawn = []
    clock.step = 0.01  # the panel measures 0.01 s per frame
    for i in range(1, 400):
        before = len(stream.getvalue())
        panel.progress(i, 10.0, {})
        drawn.append(len(stream.getvalue()) > before)
        clock.now += 0.01
    assert 3 <= sum(drawn) <= 10
    panel.write(make_row(5))
    panel.close()
    assert "150.0 ± 4.0" in stream.getvalue()  # the last frame shows all data


def test_without_a_start_it_only_prints(capsys: pytest.CaptureFixture) -> None:
    panel = LivePanel()
    panel.write(make_row(5))
    panel.progress(1, 1.0, {})
    panel.message("hello")
    panel.close()
    assert capsys.readouterr().out == "hello\n"


@pytest.mark.parametrize("name", ["loss[actor]", "q[/x]", "[/]", "[red]x", "loss\\", "a[b]\\", ":smile:", "[link=x]y"])
def test_names_are_shown_as_they_are(name: str) -> None:
    console, stream = make_console()
    panel = LivePanel(console)
    panel.start(dataclasses.replace(make_plan(num_seeds=2), side_by_side=f"2 {name}"))
    seeds = {f"eval/episode_return{suffix}": 1.0 for suffix in ("", "_seed_0", "_seed_1", "_std_over_seeds")}
    panel.write({"timesteps": 100, f"train/{name}": 2.5, "train/entropy": 0.5, **seeds})
    panel.close()
    last = stream.getvalue()[stream.getvalue().rindex("PPOWorkflow") :]
    assert f" {name}  2.5" in last
    assert f"± 1.0 over 2 {name} " in last


def test_names_fit_the_encoding_of_the_terminal() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    panel = LivePanel(Console(file=stream, force_terminal=True, width=100, color_system=None))
    panel.start(make_plan())
    panel.write({"timesteps": 100, "train/β_loss": 2.5})
    panel.close()
    stream.flush()
    assert b"?_loss" in stream.buffer.getvalue()
