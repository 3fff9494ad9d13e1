"""Rules by which a learning curve meets its requirement."""

from __future__ import annotations

import pytest

from benchmarks.learning.judgment import BETTER, MET, NOT_MET, NOT_WORSE, WORSE, judge
from tests.benchmarks.learning.figures import over_seeds, point, published, result, task

STEPS = task(threshold=5.0, within_timesteps=200)
THEIRS = task()


def test_the_last_evaluation_at_the_published_steps_counts():
    high_before_and_after = result(point(100, 9.0), point(200, 6.0), point(300, 9.0))
    judged = judge(THEIRS, high_before_and_after)
    assert (judged.verdict, judged.point["timesteps"]) == (NOT_MET, 200)
    assert judge(THEIRS, result(point(100, 6.0), point(200, 7.0), point(300, 6.0))).verdict == MET


def test_what_comes_after_the_published_steps_does_not_count():
    judged = judge(THEIRS, result(point(250, 9.0)))
    assert (judged.verdict, judged.point) == (NOT_MET, None)


@pytest.mark.parametrize(("repeat", "counted"), [(None, 150), (1, 150), (2, 100), (8, 25)])
def test_repeated_actions_count_as_environment_steps(repeat, counted):
    curve = [point(steps, 9.0) for steps in (25, 50, 100, 150, 250)]
    assert judge(THEIRS, result(*curve, action_repeat=repeat)).point["timesteps"] == counted


def test_a_shorter_training_is_marked_by_environment_steps():
    assert judge(THEIRS, result(point(100, 9.0))).shorter
    assert not judge(THEIRS, result(point(190, 9.0))).shorter
    assert not judge(THEIRS, result(point(100, 9.0), action_repeat=2)).shorter


def test_the_mean_of_all_seeds_counts_and_failing_seeds_are_counted():
    judged = judge(THEIRS, result(point(200, 20.0, 6.0, 6.5)))
    assert (judged.verdict, judged.num_met) == (MET, 1)
    judged = judge(THEIRS, result(point(200, 8.0, 8.0, 8.0, 0.0)))
    assert (judged.verdict, judged.num_met) == (NOT_MET, 3)
    assert judged.summary.iqm == 8.0


def test_a_deviation_over_seeds_lowers_the_bar_by_the_standard_error_only():
    with_error = task(published=published(spread_over="seeds", num_seeds=4, spread=4.0))
    assert judge(with_error, result(point(200, 5.0))).met
    assert not judge(with_error, result(point(200, 4.9))).met
    over_episodes = task(published=published(spread_over="episodes", spread=4.0))
    assert not judge(over_episodes, result(point(200, 6.9))).met


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([6.0, 7.0, 8.0, 9.0, 10.0], BETTER),
        ([1.0, 2.0, 3.0, 4.0, 5.0], NOT_WORSE),
        ([2.2, 2.3, 2.4, 3.4, 3.5], NOT_WORSE),
        ([0.1, 0.2, 0.3, 0.4, 0.5], WORSE),
    ],
)
def test_published_seeds_are_compared_by_the_probability_of_improvement(ours, verdict):
    theirs = task(published=over_seeds(1.0, 2.0, 3.0, 4.0, 5.0))
    judged = judge(theirs, result(point(200, *ours)))
    assert judged.verdict == verdict
    assert judged.met == (verdict != WORSE)
    assert judged.improvement.low <= judged.improvement.probability <= judged.improvement.high


def test_one_high_seed_is_not_better_though_its_mean_is():
    theirs = task(published=over_seeds(1.0, 2.0, 3.0, 4.0, 5.0))
    judged = judge(theirs, result(point(200, 0.1, 0.2, 0.3, 0.4, 90.0)))
    assert judged.summary.mean > theirs.published.center
    assert judged.verdict != BETTER
    assert judged.num_met == 1


def test_published_seeds_without_an_evaluation_in_time_are_not_reached():
    theirs = task(published=over_seeds(1.0, 2.0))
    assert judge(theirs, result(point(300, 9.0, 9.0))).verdict == WORSE


def test_an_own_threshold_is_judged_at_the_last_evaluation_within_the_limit():
    assert not judge(STEPS, result(point(100, 9.0), point(200, 4.0), point(300, 9.0))).met
    judged = judge(STEPS, result(point(100, 4.0), point(200, 5.0), point(300, 4.0)))
    assert (judged.met, judged.point["timesteps"]) == (True, 200)


def test_own_steps_are_those_of_the_agent():
    assert judge(STEPS, result(point(200, 5.0), action_repeat=8)).met


@pytest.mark.parametrize(("threshold", "met"), [(5.0, False), (9.5, True)])
def test_an_unsolvable_task_stays_below_at_every_evaluation(threshold, met):
    unsolvable = task(threshold=threshold, within_timesteps=400, solvable=False)
    judged = judge(unsolvable, result(point(100, 4.0), point(300, 9.0), point(400, 4.0)))
    assert (judged.met, judged.num_met) == (met, int(met))


@pytest.mark.parametrize("without", [STEPS, THEIRS])
def test_without_an_evaluation_nothing_is_met(without):
    judged = judge(without, result())
    assert (judged.met, judged.point, judged.summary) == (False, None, None)


def test_a_single_seed_without_scores_by_seed_is_judged_by_its_mean():
    single = {key: value for key, value in point(200, 8.0).items() if key != "by_seed"}
    judged = judge(THEIRS, {**result(point(200, 8.0)), "curve": [single]})
    assert (judged.met, judged.num_met, judged.summary.interval) == (True, 1, None)
