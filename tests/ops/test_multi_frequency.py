"""MF-PBT's rules on rankings worked out by hand, and on random ones against a plain loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.multi_frequency import check_sub_populations, multi_frequency_inheritance
from evorl.ops.selection import Inheritance
from tests.support.errors import raises_naming

FREQUENCIES = (1, 10, 25, 50)
_inherit_by_scores = jax.jit(multi_frequency_inheritance, static_argnums=2)


def _inherit(ranking: list[int], after: int, frequencies: tuple[int, ...] = FREQUENCIES) -> Inheritance:
    """Return the inheritance after that number of generations for members listed from best to worst."""
    scores = np.empty(len(ranking), np.float32)
    scores[ranking] = -np.arange(len(ranking))
    return _inherit_by_scores(jnp.asarray(scores), after - 1, frequencies)


def _check(result: Inheritance, states: dict[int, int], settings: dict[int, int], explores: set[int]) -> None:
    """Assert parents of states and hyperparameters; members that are not listed keep their own."""
    size = len(result.states)
    for actual, changed in ((result.states, states), (result.hyper_parameters, settings)):
        expected = np.arange(size)
        expected[list(changed)] = list(changed.values())
        np.testing.assert_array_equal(actual, expected)
    assert set(np.flatnonzero(result.explores)) == explores


# Rankings of 16 members, four in each sub-population: 0..3 evolve most often, 12..15 least often.
STEADY_FIRST = [12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3]
INTERLEAVED = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]
GREEDY_FIRST = list(range(16))
REVERSED = [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12]
CLASPED = [0, 1, 2, 3, 12, 13, 14, 15, 4, 8, 5, 9, 6, 10, 7, 11]


@pytest.mark.parametrize(
    ("ranking", "after", "states", "settings", "explores"),
    [
        # Only 0..3 evolve. 3 copies 0; 2 gets the best steady member with its settings.
        (STEADY_FIRST, 1, {3: 0, 2: 12}, {3: 0, 2: 12}, {3}),
        # 0..7 evolve. The third of each, 2 and 6, is worse than the best of the others, which is 4 and 0: 2 takes the
        # settings of 4, which evolves less often; 6, which 0 enters from a hastier population, takes the settings of 4,
        # its best member.
        (INTERLEAVED, 10, {3: 0, 7: 4, 2: 4, 6: 0}, {3: 0, 7: 4, 2: 4, 6: 4}, {3, 7}),
        # 0..3 and 8..11 evolve: no outsider is better than 2; 10 gets the state of 0 and the settings of 8.
        (GREEDY_FIRST, 25, {3: 0, 11: 8, 10: 0}, {3: 0, 11: 8, 10: 8}, {3, 11}),
        # All evolve. Best first 3 2 1 0: 0 copies 3; no outsider is better than 1. The others import 3.
        (
            REVERSED,
            50,
            {0: 3, 4: 7, 8: 11, 12: 15, 5: 3, 9: 3, 13: 3},
            {0: 3, 4: 7, 8: 11, 12: 15, 5: 7, 9: 11, 13: 15},
            {0, 4, 8, 12},
        ),
        # All evolve: 14 and 2 import each other's best only if it is better: 12 is not better than 2.
        (
            CLASPED,
            100,
            {3: 0, 7: 4, 11: 8, 15: 12, 6: 0, 10: 0, 14: 0},
            {3: 0, 7: 4, 11: 8, 15: 12, 6: 4, 10: 8, 14: 12},
            {3, 7, 11, 15},
        ),
    ],
    ids=["steady first", "interleaved", "greedy first", "reversed", "clasped"],
)
def test_rankings_worked_out_by_hand(
    ranking: list[int], after: int, states: dict[int, int], settings: dict[int, int], explores: set[int]
) -> None:
    _check(_inherit(ranking, after), states, settings, explores)


EIGHTS = (1, 10, 25)  # sub-populations of eight: 0..7, 8..15 and 16..23, with quarters of two
REST = [18, 6, 7, 13, 14, 15, 19, 20, 21, 22, 23]


@pytest.mark.parametrize(
    ("ranking", "after", "states", "settings", "explores"),
    [
        # 8..15 rank first for 4, 16 for 5: no migrant enters a sub-population twice. 12 imports 16 with its settings,
        # 13 imports 0 from a hastier sub-population and takes the settings of 8.
        (
            [8, 16, 0, 1, 2, 3, 17, 9, 4, 5, 10, 11, 12, *REST],
            10,
            {6: 0, 7: 1, 14: 8, 15: 9, 4: 8, 5: 16, 12: 16, 13: 0},
            {6: 0, 7: 1, 14: 8, 15: 9, 4: 8, 5: 16, 12: 16, 13: 8},
            {6, 7, 14, 15},
        ),
        # 4 is better than 8, which then enters for 5.
        (
            [0, 1, 2, 3, 4, 8, 5, 16, 17, 9, 10, 11, 12, *REST],
            1,
            {6: 0, 7: 1, 5: 8},
            {6: 0, 7: 1, 5: 8},
            {6, 7},
        ),
    ],
)
def test_quarters_of_two(
    ranking: list[int], after: int, states: dict[int, int], settings: dict[int, int], explores: set[int]
) -> None:
    _check(_inherit(ranking, after, EIGHTS), states, settings, explores)


def test_migrants_of_the_same_frequency_leave_hyperparameters() -> None:
    _check(_inherit([4, 5, 6, 7, 0, 1, 2, 3], 1, (1, 1)), {3: 0, 7: 4, 2: 4}, {3: 0, 7: 4}, {3, 7})


def test_a_migrant_that_explores_is_detected() -> None:
    result = _inherit(STEADY_FIRST, 1)
    with pytest.raises(AssertionError):
        _check(result.replace(explores=result.replaced), {3: 0, 2: 12}, {3: 0, 2: 12}, {3})


def _by_loop(scores: np.ndarray, after: int, frequencies: tuple[int, ...]) -> tuple[list[int], list[int], list[bool]]:
    """Apply the rules member by member."""
    size = len(scores) // len(frequencies)
    ranking = [int(i) for i in np.argsort(-scores)]
    states, settings, explores = list(range(len(scores))), list(range(len(scores))), [False] * len(scores)
    for group, frequency in enumerate(frequencies):
        if after % frequency:
            continue
        inside = [i for i in ranking if i // size == group]
        outside = [i for i in ranking if i // size != group]
        quarter = size // 4
        for loser, winner in zip(inside[-quarter:], inside[:quarter], strict=True):
            states[loser] = settings[loser] = winner
            explores[loser] = True
        for host in inside[2 * quarter : 3 * quarter]:
            if scores[host] < scores[outside[0]]:
                migrant = outside.pop(0)
                states[host] = migrant
                if frequency != frequencies[migrant // size]:
                    settings[host] = migrant if frequency < frequencies[migrant // size] else inside[0]
    return states, settings, explores


def test_random_rankings_follow_the_rules() -> None:
    rng = np.random.default_rng(0)
    for after in (1, 10, 25, 50, 150):
        for _ in range(20):
            scores = rng.permutation(48).astype(np.float32)
            result = _inherit_by_scores(jnp.asarray(scores), after - 1, FREQUENCIES)
            states, settings, explores = _by_loop(scores, after, FREQUENCIES)
            np.testing.assert_array_equal(result.states, states)
            np.testing.assert_array_equal(result.hyper_parameters, settings)
            np.testing.assert_array_equal(result.explores, explores)


def test_only_better_members_replace_others() -> None:
    for scores in (jnp.zeros(16), jnp.full(16, jnp.nan), jnp.full(16, -jnp.inf)):
        _check(_inherit_by_scores(scores, 49, FREQUENCIES), {}, {}, set())
    scores = jnp.arange(16.0).at[0].set(jnp.nan).at[5].set(-jnp.inf)
    result = _inherit_by_scores(scores, 49, FREQUENCIES)
    assert (int(result.states[0]), int(result.states[5])) == (0, 7)
    assert not np.isin(result.states, [0, 5])[[i for i in range(16) if i not in (0, 5)]].any()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((24, FREQUENCIES), ("pop_size=24", "multiple of 16")),
        ((16, (1,)), ("frequencies=[1]", "at least two")),
        ((16, (0, 1)), ("frequencies=[0, 1]", "at least 1")),
        ((16, FREQUENCIES, "cso"), ("explore=perturb", "cso")),
    ],
)
def test_unsuitable_populations_are_refused(arguments: tuple, parts: tuple[str, ...]) -> None:
    check_sub_populations(16, FREQUENCIES)
    with raises_naming(ValueError, *parts):
        check_sub_populations(*arguments)
