"""The constants of covariance matrix adaptation."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.ec.optimizers import CMAES, SepCMAES
from evorl.ec.optimizers.covariance_adaptation import AdaptationConstants
from tests.support.errors import raises_naming


def test_defaults_are_those_of_the_tutorial() -> None:
    c = AdaptationConstants.default(20, 12, 6, diagonal=False)
    raw = np.log(6.5) - np.log(np.arange(1, 13))
    np.testing.assert_allclose(c.weights[:6], raw[:6] / raw[:6].sum(), rtol=1e-5)
    assert c.mu_eff == pytest.approx(raw[:6].sum() ** 2 / (raw[:6] ** 2).sum())
    assert c.c_sigma == pytest.approx((c.mu_eff + 2) / (c.mu_eff + 25))
    assert c.damping == pytest.approx(1 + c.c_sigma)
    assert c.c_1 == pytest.approx(2 / (21.3**2 + c.mu_eff))
    # Eq. 53: the negative weights take away at most what the matrix has.
    assert (c.weights[6:] < 0).all()
    assert (1 - c.c_1 - c.c_mu) / 20 + 1e-6 >= c.c_mu * -c.weights[6:].sum()


def test_a_diagonal_is_learned_faster_and_without_negative_weights() -> None:
    full, diagonal = (AdaptationConstants.default(20, 12, 6, diagonal) for diagonal in (False, True))
    assert diagonal.c_1 == pytest.approx(full.c_1 * 22 / 3)
    assert diagonal.c_mu == pytest.approx(full.c_mu * 22 / 3)
    assert diagonal.weights.min() == 0.0
    assert diagonal.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("num_elites", [1, 3, 12])
def test_as_many_are_recombined_as_asked_for(num_elites: int) -> None:
    c = AdaptationConstants.default(20, 12, num_elites, diagonal=True)
    assert (c.weights > 0).sum() == num_elites
    assert 1.0 <= c.mu_eff <= num_elites + 1e-9


@pytest.mark.parametrize("optimizer", [CMAES, SepCMAES])
def test_what_cannot_work_is_refused(optimizer: type[CMAES]) -> None:
    with raises_naming(ValueError, "pop_size=3", "at least 4"):
        optimizer(pop_size=3)
    with raises_naming(ValueError, "num_elites=9", "population of 8"):
        optimizer(pop_size=8, num_elites=9)
